// Convolutions of NHWC images by CUTLASS's 3.x collectives: images come through the tensor memory
// accelerator's im2col mode, products are wgmma.
#ifndef COLLAGE_CUTLASS_CONV_SM90_H_
#define COLLAGE_CUTLASS_CONV_SM90_H_

#include <cute/tensor.hpp>
#include <cutlass/kernel_hardware_info.h>
// These need what comes before them.
#include <cutlass/conv/collective/collective_builder.hpp>
#include <cutlass/conv/convnd_problem_shape.hpp>
#include <cutlass/conv/device/conv_universal_adapter.hpp>
#include <cutlass/conv/kernel/conv_universal.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>

#include "common.h"

namespace collage {

template <typename Element, typename Tile, typename Cluster, template <typename> class Activation>
struct Conv90 {
  using Images = cutlass::layout::TensorNHWC;
  static constexpr int kAlign = 16 / sizeof(Element);
  static constexpr auto kOperator = cutlass::conv::Operator::kFprop;
  using Fusion = cutlass::epilogue::fusion::LinCombPerColBiasEltAct<Activation, Element, float,
                                                                    Element, Element, float, kAlign>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Element, Images, kAlign,
      Element, Images, kAlign, cutlass::epilogue::TmaWarpSpecialized, Fusion>::CollectiveOp;
  using Mainloop = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, kOperator, Element, Images, kAlign,
      Element, Images, kAlign, float, Tile, Cluster,
      cutlass::conv::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  using Problem = cutlass::conv::ConvProblemShape<kOperator, Mainloop::NumSpatialDimensions>;
  using Kernel = cutlass::conv::kernel::ConvUniversal<Problem, Mainloop, Epilogue>;
  using Device = cutlass::conv::device::ConvUniversalAdapter<Kernel>;

  static constexpr int kM = cute::size<0>(Tile{}), kN = cute::size<1>(Tile{}),
                       kK = cute::size<2>(Tile{});
  static constexpr int kStages = Mainloop::DispatchPolicy::Stages;
  static constexpr int kShared = Kernel::SharedStorageSize;

  // What the result's size asks for behind the image; negative: rows that no window reaches.
  static int Behind(int out, int stride, int kernel, int dilation, int size, int before) {
    return (out - 1) * stride + (kernel - 1) * dilation + 1 - size - before;
  }

  static typename Device::Arguments Of(const CollageProblem& p) {
    const int after_h = Behind(p.out_h, p.stride_h, p.kernel_h, p.dilation_h, p.height, p.pad_h);
    const int after_w = Behind(p.out_w, p.stride_w, p.kernel_w, p.dilation_w, p.width, p.pad_w);
    const Problem shape(cutlass::conv::Mode::kCrossCorrelation,
                        {p.images, p.height, p.width, p.channels},
                        {p.filters, p.kernel_h, p.kernel_w, p.channels}, {p.pad_h, p.pad_w},
                        {after_h > 0 ? after_h : 0, after_w > 0 ? after_w : 0},
                        {p.stride_h, p.stride_w}, {p.dilation_h, p.dilation_w}, 1);
    typename Kernel::StrideC source{};
    typename Kernel::StrideD result{};
    cute::for_each(cute::make_seq<cute::rank<0>(typename Kernel::StrideC{})>{}, [&](auto i) {
      cute::get<0, i>(source) = shape.stride_C[Problem::RankT - 2 - i];
      cute::get<0, i>(result) = shape.stride_C[Problem::RankT - 2 - i];
    });
    typename Device::Arguments arguments{};
    arguments.problem_shape = shape;
    arguments.mainloop = {static_cast<const Element*>(p.a), static_cast<const Element*>(p.b)};
    // Without a source the result's address describes one; it is not read then.
    arguments.epilogue = {{},
                          static_cast<const Element*>(p.c != nullptr ? p.c : p.d),
                          source,
                          static_cast<Element*>(p.d),
                          result};
    arguments.epilogue.thread.alpha = 1.0f;
    arguments.epilogue.thread.beta = p.c != nullptr ? 1.0f : 0.0f;
    arguments.epilogue.thread.bias_ptr = static_cast<const Element*>(p.bias);
    DescribeDevice(&arguments.hw_info);
    return arguments;
  }

  static cutlass::Status CanImplement(const CollageProblem& p) {
    // Strides of the tensor memory accelerator are at most 8.
    if (p.stride_h > 8 || p.stride_w > 8 || p.filters % kAlign != 0) {
      return cutlass::Status::kErrorNotSupported;
    }
    const auto arguments = Of(p);
    const auto& shape = arguments.problem_shape.shape_C;  // N, P, Q, K as CUTLASS counts them
    if (shape[1] != p.out_h || shape[2] != p.out_w) return cutlass::Status::kErrorInvalidProblem;
    return Device::can_implement(arguments);
  }
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_CONV_SM90_H_
