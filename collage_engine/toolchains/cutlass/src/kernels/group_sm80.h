// Convolutions in groups of NHWC images, by CUTLASS's 2.x templates: a block computes one group's
// filters or those of several groups.
#ifndef COLLAGE_CUTLASS_GROUP_SM80_H_
#define COLLAGE_CUTLASS_GROUP_SM80_H_

#include "conv_sm80.h"
// This needs what comes before it.
#include <cutlass/conv/kernel/default_conv2d_group_fprop.h>

namespace collage {

template <typename Element, bool kSeveral, typename Tile, typename Warp, typename Instruction,
          int kStageCount, int kAlign, typename Epilogue>
struct Group80 {
  static constexpr auto kMode = kSeveral ? cutlass::conv::GroupMode::kMultipleGroup
                                         : cutlass::conv::GroupMode::kSingleGroup;
  static constexpr auto kIterator = kSeveral ? cutlass::conv::IteratorAlgorithm::kAnalytic
                                             : cutlass::conv::IteratorAlgorithm::kOptimized;
  using Kernel = typename cutlass::conv::kernel::DefaultConv2dGroupFprop<
      Element, Images, Element, Images, Element, Images, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, Tile, Warp, Instruction, Epilogue,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, kStageCount,
      cutlass::arch::OpMultiplyAdd, kMode, kIterator, cutlass::conv::StrideSupport::kStrided, kAlign,
      kAlign>::Kernel;
  using Device = cutlass::conv::device::ImplicitGemmConvolution<Kernel>;

  static constexpr int kM = Tile::kM, kN = Tile::kN, kK = Tile::kK, kStages = kStageCount;
  static constexpr int kShared = static_cast<int>(sizeof(typename Kernel::SharedStorage));

  static typename Device::Arguments Of(const CollageProblem& p) {
    auto element = [](const void* from) { return static_cast<Element*>(const_cast<void*>(from)); };
    const auto results = Images::packed({p.images, p.out_h, p.out_w, p.filters});
    // The bias is the source, the same row for every pixel.
    const cutlass::TensorRef<Element, Images> source =
        p.bias != nullptr
            ? cutlass::TensorRef<Element, Images>(element(p.bias), Images(Images::Stride(0)))
            : cutlass::TensorRef<Element, Images>(element(p.d), results);
    return {SizeOf(p),
            {element(p.a), Images::packed({p.images, p.height, p.width, p.channels})},
            {element(p.b),
             Images::packed({p.filters, p.kernel_h, p.kernel_w, p.channels / p.groups})},
            source,
            {element(p.d), results},
            Epilogue::Of(p),
            cutlass::conv::SplitKMode::kSerial};
  }

  static cutlass::Status CanImplement(const CollageProblem& p) {
    if (p.c != nullptr) return cutlass::Status::kErrorNotSupported;
    if (p.groups < 2 || p.channels / p.groups % kAlign != 0 || p.filters / p.groups % kAlign != 0) {
      return cutlass::Status::kErrorMisalignedOperand;
    }
    return Device::can_implement(Of(p));
  }
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_GROUP_SM80_H_
