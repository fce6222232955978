// Products by CUTLASS's 3.x collective builder: tensor memory accelerator and wgmma of Hopper.
#ifndef COLLAGE_CUTLASS_GEMM_SM90_H_
#define COLLAGE_CUTLASS_GEMM_SM90_H_

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/kernel_hardware_info.h>

#include "common.h"

namespace collage {

template <typename Element, typename LayoutB, typename Tile, typename Cluster, typename Schedule,
          typename EpilogueSchedule, template <typename> class Activation>
struct Gemm90 {
  using Row = cutlass::layout::RowMajor;
  static constexpr int kAlign = 16 / sizeof(Element);
  using Fusion = cutlass::epilogue::fusion::LinCombPerColBiasEltAct<Activation, Element, float,
                                                                    Element, Element, float, kAlign>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Element, Row, kAlign, Element,
      Row, kAlign, EpilogueSchedule, Fusion>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, kAlign, Element, LayoutB,
      kAlign, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static constexpr int kM = cute::size<0>(Tile{}), kN = cute::size<1>(Tile{}),
                       kK = cute::size<2>(Tile{});
  static constexpr int kStages = Mainloop::DispatchPolicy::Stages;
  static constexpr int kShared = Kernel::SharedStorageSize;

  // One unit step and one leading dimension, as 3.x strides; the batch step last.
  template <typename Stride>
  static Stride StrideOf(int64_t leading, int64_t batch) {
    Stride stride{};
    if constexpr (cute::is_constant<1, decltype(cute::get<1>(stride))>::value) {
      cute::get<0>(stride) = leading;
    } else {
      cute::get<1>(stride) = leading;
    }
    cute::get<2>(stride) = batch;
    return stride;
  }

  static typename Device::Arguments Of(const CollageProblem& p) {
    const int64_t ldb = cutlass::platform::is_same<LayoutB, Row>::value ? p.n : p.k;
    typename Device::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {p.m, p.n, p.k, p.batch},
        {static_cast<const Element*>(p.a), StrideOf<typename Kernel::StrideA>(p.k, p.stride_a),
         static_cast<const Element*>(p.b), StrideOf<typename Kernel::StrideB>(ldb, p.stride_b)},
        {{},
         // Without a source the result's address describes one; it is not read then.
         static_cast<const Element*>(p.c != nullptr ? p.c : p.d),
         StrideOf<typename Kernel::StrideC>(p.n, p.stride_c),
         static_cast<Element*>(p.d),
         StrideOf<typename Kernel::StrideD>(p.n, p.stride_d)}};
    arguments.epilogue.thread.alpha = 1.0f;
    arguments.epilogue.thread.beta = p.c != nullptr ? 1.0f : 0.0f;
    arguments.epilogue.thread.bias_ptr = static_cast<const Element*>(p.bias);
    DescribeDevice(&arguments.hw_info);
    return arguments;
  }

  static cutlass::Status CanImplement(const CollageProblem& p) {
    // A tensor map steps from matrix to matrix; one matrix for a whole batch is left to others.
    if (p.batch > 1 && (p.stride_a == 0 || p.stride_b == 0)) {
      return cutlass::Status::kErrorNotSupported;
    }
    return Device::can_implement(Of(p));
  }
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_GEMM_SM90_H_
