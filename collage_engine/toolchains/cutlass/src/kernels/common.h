// The table of a kernel library, and what its templates share.
#ifndef COLLAGE_CUTLASS_COMMON_H_
#define COLLAGE_CUTLASS_COMMON_H_

#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/version.h>

#include "../collage_cutlass_abi.h"

#define COLLAGE_TEXT_(x) #x
#define COLLAGE_TEXT(x) COLLAGE_TEXT_(x)
#define COLLAGE_CUTLASS_VERSION \
  COLLAGE_TEXT(CUTLASS_MAJOR) "." COLLAGE_TEXT(CUTLASS_MINOR) "." COLLAGE_TEXT(CUTLASS_PATCH)

namespace collage {

// A failed call leaves its error behind, and the next caller must not be blamed for it.
inline int32_t Code(cutlass::Status status) {
  if (status != cutlass::Status::kSuccess) cudaGetLastError();
  return static_cast<int32_t>(status);
}

inline const char* StatusText(int32_t code) {
  return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(code));
}

// The entry of one kernel. Op offers: Device (a CUTLASS device-level operator), Arguments Of(problem),
// Status CanImplement(arguments), and its tile.
template <typename Op>
struct Entry {
  using Device = typename Op::Device;

  static int32_t CanImplement(const CollageProblem* p) {
    return static_cast<int32_t>(Op::CanImplement(*p));
  }
  static int64_t Workspace(const CollageProblem* p) {
    return static_cast<int64_t>(Device::get_workspace_size(Op::Of(*p)));
  }
  static void* Create() { return new Device; }
  static void Destroy(void* state) { delete static_cast<Device*>(state); }
  static int32_t Prepare(void* state, const CollageProblem* p, void* workspace, cudaStream_t stream) {
    return Code(static_cast<Device*>(state)->initialize(Op::Of(*p), workspace, stream));
  }
  static int32_t Run(void* state, cudaStream_t stream) {
    return Code(static_cast<Device*>(state)->run(stream));
  }
  static constexpr CollageKernel Make(const char* name) {
    return {name,          Op::kM,        Op::kN,    Op::kK,    Op::kStages, Op::kShared,
            &CanImplement, &Workspace,    &Create,   &Destroy,  &Prepare,    &Run};
  }
};

// Square tiles through shared memory; a warp reads and writes rows of 32 elements.
template <typename T>
__global__ void TransposeKernel(const T* from, T* to, int rows, int columns) {
  __shared__ T tile[32][33];
  const int64_t base = static_cast<int64_t>(blockIdx.z) * rows * columns;
  int column = blockIdx.x * 32 + threadIdx.x;
  int row = blockIdx.y * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8) {
    if (column < columns && row + i < rows) {
      tile[threadIdx.y + i][threadIdx.x] =
          from[base + static_cast<int64_t>(row + i) * columns + column];
    }
  }
  __syncthreads();
  column = blockIdx.y * 32 + threadIdx.x;  // of the result
  row = blockIdx.x * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8) {
    if (column < rows && row + i < columns) {
      to[base + static_cast<int64_t>(row + i) * rows + column] = tile[threadIdx.x][threadIdx.y + i];
    }
  }
}

inline int32_t Transpose(const void* from, void* to, int32_t batch, int32_t rows, int32_t columns,
                         int32_t element_bytes, cudaStream_t stream) {
  const dim3 grid((columns + 31) / 32, (rows + 31) / 32, batch), block(32, 8);
  if (grid.y > 65535 || grid.z > 65535) return Code(cutlass::Status::kErrorInvalidProblem);
  if (element_bytes == 2) {
    TransposeKernel<<<grid, block, 0, stream>>>(static_cast<const uint16_t*>(from),
                                                static_cast<uint16_t*>(to), rows, columns);
  } else if (element_bytes == 4) {
    TransposeKernel<<<grid, block, 0, stream>>>(static_cast<const uint32_t*>(from),
                                                static_cast<uint32_t*>(to), rows, columns);
  } else {
    return Code(cutlass::Status::kErrorInvalidDataType);
  }
  return Code(cudaPeekAtLastError() == cudaSuccess ? cutlass::Status::kSuccess
                                                   : cutlass::Status::kErrorInternal);
}

}  // namespace collage

// Ends a library's source: its table, under the one name that the runtime looks for.
#define COLLAGE_LIBRARY(family, kernels)                                                            \
  extern "C" __attribute__((visibility("default"))) const CollageLibrary* collage_cutlass_library() { \
    static const CollageLibrary library = {                                                         \
        COLLAGE_CUTLASS_ABI, family, COLLAGE_CUTLASS_VERSION,                                        \
        static_cast<int32_t>(sizeof(kernels) / sizeof(kernels[0])), kernels,                        \
        &collage::StatusText, &collage::Transpose};                                                 \
    return &library;                                                                                \
  }

#endif  // COLLAGE_CUTLASS_COMMON_H_
