// Products by CUTLASS's 2.x templates: cp.async pipelines with mma.sync.
#ifndef COLLAGE_CUTLASS_GEMM_H_
#define COLLAGE_CUTLASS_GEMM_H_

#include <cutlass/gemm/device/gemm_universal_base.h>
#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>
// These need what comes before them.
#include <cutlass/epilogue/threadblock/default_epilogue_with_broadcast.h>
#include <cutlass/gemm/kernel/gemm_with_fused_epilogue.h>

#include "epilogue.h"

namespace collage {

template <typename Element, typename LayoutB, typename Tile, typename Warp, typename Instruction,
          int kStageCount, int kAlign, typename Epilogue>
struct Gemm {
  using Row = cutlass::layout::RowMajor;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;
  using Base = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      Element, Row, cutlass::ComplexTransform::kNone, kAlign, Element, LayoutB,
      cutlass::ComplexTransform::kNone, kAlign, Element, Row, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, Tile, Warp, Instruction, Epilogue, Swizzle, kStageCount,
      cutlass::arch::OpMultiplyAdd>::GemmKernel;
  using Broadcast = typename cutlass::epilogue::threadblock::DefaultEpilogueWithBroadcastTensorOp<
      typename Base::Epilogue::Shape, typename Base::Epilogue::WarpMmaOperator,
      Base::Epilogue::kPartitionsK, Element, Element, Element, Epilogue,
      Base::Epilogue::kElementsPerAccess>::Epilogue;
  using Kernel = cutlass::gemm::kernel::GemmWithFusedEpilogue<
      typename Base::Mma, Broadcast, Swizzle>;
  using Device = cutlass::gemm::device::GemmUniversalBase<Kernel>;

  static constexpr int kM = Tile::kM, kN = Tile::kN, kK = Tile::kK, kStages = kStageCount;
  static constexpr int kShared = static_cast<int>(sizeof(typename Kernel::SharedStorage));

  static typename Device::Arguments Of(const CollageProblem& p) {
    const int ldb = cutlass::platform::is_same<LayoutB, Row>::value ? p.n : p.k;
    const auto mode = p.batch > 1 ? cutlass::gemm::GemmUniversalMode::kBatched
                                  : cutlass::gemm::GemmUniversalMode::kGemm;
    return {mode,
            {p.m, p.n, p.k},
            p.batch,
            Epilogue::Of(p),
            p.a,
            p.b,
            p.c != nullptr ? p.c : p.d,  // an address to count from; not read without a source
            p.d,
            const_cast<void*>(p.bias),
            nullptr,
            p.stride_a,
            p.stride_b,
            p.stride_c,
            p.stride_d,
            0,
            0,
            p.k,
            ldb,
            p.n,
            p.n,
            0,
            0};
  }

  // Asked of the kernel, not of the device-level operator, which looks for a device first.
  static cutlass::Status CanImplement(const CollageProblem& p) {
    const int64_t columns = (static_cast<int64_t>(p.n) + kN - 1) / kN;
    if (columns > 65535 || p.batch > 65535) return cutlass::Status::kErrorInvalidProblem;
    return Kernel::can_implement(Of(p));
  }
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_GEMM_H_
