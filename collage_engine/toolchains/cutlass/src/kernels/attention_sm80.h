// Attention in one kernel, softmax(scale · Q Kᵀ + mask) · V, by the kernel of CUTLASS's example 41
// (memory-efficient attention): scores never leave a block's shared memory and registers.
#ifndef COLLAGE_CUTLASS_ATTENTION_SM80_H_
#define COLLAGE_CUTLASS_ATTENTION_SM80_H_

#include "common.h"
// Needs CUTLASS's headers before it; of the folder examples/41_fused_multi_head_attention.
#include <kernel_forward.h>

namespace collage {

// Queries × keys of a block; heads of at most kWidest elements. With kWidest <= keys the result
// stays in registers, otherwise it is summed in float32 in the workspace.
template <typename Element, int kQueryTile, int kKeyTile, int kWidest>
struct Attention80 {
  using Inner = AttentionKernel<Element, cutlass::arch::Sm80, true, kQueryTile, kKeyTile, kWidest,
                                false, true>;
  using Params = typename Inner::Params;

  static constexpr int kM = kQueryTile, kN = kKeyTile, kK = kWidest, kStages = 1;
  static constexpr int kShared = static_cast<int>(sizeof(typename Inner::SharedStorage));
  static constexpr int kAlign = 16 / static_cast<int>(sizeof(Element));

  static Params Of(const CollageProblem& p) {
    Params made;
    auto element = [](const void* from) { return static_cast<Element*>(const_cast<void*>(from)); };
    made.query_ptr = element(p.a);
    made.key_ptr = element(p.b);
    made.value_ptr = element(p.v);
    made.attn_bias_ptr = element(p.c);
    made.output_ptr = element(p.d);
    made.scale = p.scale;
    made.head_dim = p.head_size;
    made.head_dim_value = p.head_size_v;
    made.num_queries = p.queries;
    made.num_keys = p.keys;
    made.num_batches = p.batch;
    made.num_heads = p.heads;
    made.custom_mask_type = p.causal ? Inner::CausalFromTopLeft : Inner::NoCustomMask;
    made.q_strideM = static_cast<int32_t>(p.q_row), made.q_strideH = static_cast<int32_t>(p.q_head);
    made.k_strideM = static_cast<int32_t>(p.k_row), made.k_strideH = static_cast<int32_t>(p.k_head);
    made.v_strideM = static_cast<int32_t>(p.v_row), made.v_strideH = static_cast<int32_t>(p.v_head);
    made.q_strideB = p.q_batch, made.k_strideB = p.k_batch, made.v_strideB = p.v_batch;
    made.bias_strideM = static_cast<int32_t>(p.mask_row);
    made.bias_strideH = p.mask_head, made.bias_strideB = p.mask_batch;
    made.o_strideM = p.heads * p.head_size_v;
    return made;
  }

  static cutlass::Status CanImplement(const CollageProblem& p) {
    auto aligned = [](int64_t size) { return size % kAlign == 0; };
    if (p.head_size > kWidest || p.head_size_v > kWidest || p.batch > 65535 || p.heads > 65535) {
      return cutlass::Status::kErrorInvalidProblem;
    }
    const bool operands = aligned(p.head_size) && aligned(p.head_size_v) && aligned(p.q_row) &&
                          aligned(p.k_row) && aligned(p.v_row) && aligned(p.q_head) &&
                          aligned(p.k_head) && aligned(p.v_head) && aligned(p.q_batch) &&
                          aligned(p.k_batch) && aligned(p.v_batch);
    // A row of the mask is read in pieces, so that it must hold whole ones.
    const bool mask = p.c == nullptr || (aligned(p.keys) && aligned(p.mask_row) &&
                                         aligned(p.mask_head) && aligned(p.mask_batch));
    return operands && mask ? cutlass::Status::kSuccess : cutlass::Status::kErrorMisalignedOperand;
  }

  // Looks to the runtime like one of CUTLASS's device-level operators.
  class Device {
   public:
    static size_t get_workspace_size(const Params& p) {
      if (!Inner::kNeedsOutputAccumulatorBuffer) return 0;
      return sizeof(float) * static_cast<size_t>(p.num_batches) * p.num_queries * p.num_heads *
             p.head_dim_value;
    }
    cutlass::Status initialize(const Params& p, void* workspace, cudaStream_t) {
      params_ = p;
      if (Inner::kNeedsOutputAccumulatorBuffer) {
        params_.output_accum_ptr = static_cast<typename Inner::output_accum_t*>(workspace);
      }
      if (kShared <= 48 << 10) return cutlass::Status::kSuccess;
      return cudaFuncSetAttribute(attention_kernel_batched_impl<Inner>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kShared) == cudaSuccess
                 ? cutlass::Status::kSuccess
                 : cutlass::Status::kErrorInternal;
    }
    cutlass::Status run(cudaStream_t stream) {
      attention_kernel_batched_impl<Inner>
          <<<params_.getBlocksGrid(), params_.getThreadsGrid(), kShared, stream>>>(params_);
      return cudaPeekAtLastError() == cudaSuccess ? cutlass::Status::kSuccess
                                                  : cutlass::Status::kErrorInternal;
    }

   private:
    Params params_;
  };
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_ATTENTION_SM80_H_
