// Convolutions of NHWC images as implicit products, by CUTLASS's 2.x templates.
#ifndef COLLAGE_CUTLASS_CONV_H_
#define COLLAGE_CUTLASS_CONV_H_

#include <cutlass/conv/kernel/default_conv2d_fprop.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>
// These need what comes before them.
#include <cutlass/conv/device/implicit_gemm_convolution.h>
#include <cutlass/conv/kernel/default_conv2d_fprop_with_broadcast.h>

#include "epilogue.h"

namespace collage {

using Images = cutlass::layout::TensorNHWC;

// The sizes of the result are given, so that padding behind needs not equal that in front.
inline cutlass::conv::Conv2dProblemSize SizeOf(const CollageProblem& p) {
  return {p.images,   p.height,   p.width,      p.channels,   p.filters,
          p.kernel_h, p.kernel_w, p.out_h,      p.out_w,      p.pad_h,
          p.pad_w,    p.stride_h, p.stride_w,   p.dilation_h, p.dilation_w,
          cutlass::conv::Mode::kCrossCorrelation};
}

template <typename Element, typename Tile, typename Warp, int kStageCount, int kAlign, typename Epilogue>
struct Conv {
  using Instruction = cutlass::gemm::GemmShape<16, 8, 16>;
  using Kernel = typename cutlass::conv::kernel::DefaultConv2dFpropWithBroadcast<
      Element, Images, Element, Images, Element, Images, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, Tile, Warp, Instruction, Epilogue,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>, kStageCount,
      cutlass::arch::OpMultiplyAdd,
      cutlass::conv::IteratorAlgorithm::kOptimized,
      cutlass::conv::StrideSupport::kStrided, kAlign, kAlign>::Kernel;
  using Device = cutlass::conv::device::ImplicitGemmConvolution<Kernel>;

  static constexpr int kM = Tile::kM, kN = Tile::kN, kK = Tile::kK, kStages = kStageCount;
  static constexpr int kShared = static_cast<int>(sizeof(typename Kernel::SharedStorage));

  static typename Device::Arguments Of(const CollageProblem& p) {
    auto* a = static_cast<Element*>(const_cast<void*>(p.a));
    auto* b = static_cast<Element*>(const_cast<void*>(p.b));
    auto* d = static_cast<Element*>(p.d);
    auto* c = p.c != nullptr ? static_cast<Element*>(const_cast<void*>(p.c)) : d;
    const auto images = Images::packed({p.images, p.height, p.width, p.channels});
    const auto filters = Images::packed({p.filters, p.kernel_h, p.kernel_w, p.channels});
    const auto results = Images::packed({p.images, p.out_h, p.out_w, p.filters});
    return {SizeOf(p),
            {a, images},
            {b, filters},
            {c, results},
            {d, results},
            Epilogue::Of(p),
            cutlass::conv::SplitKMode::kSerial,
            const_cast<void*>(p.bias),
            nullptr,
            0,
            0};
  }

  static cutlass::Status CanImplement(const CollageProblem& p) { return Device::can_implement(Of(p)); }
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_CONV_H_
