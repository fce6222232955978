// What a kernel library offers to the runtime: plain C, so that one runtime serves all of them.
//
// A library holds the kernels of one family (element type, activation) for one architecture, one
// per tile. Sizes are run-time arguments.
#ifndef COLLAGE_CUTLASS_ABI_H_
#define COLLAGE_CUTLASS_ABI_H_

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// D = activation(A * B + bias + C): A is the images, NHWC, B the filters [K,R,S,C], bias [K], C and D
// images. bias and c may be null. Plans give the sizes in the order of these members.
typedef struct CollageProblem {
  int32_t images, height, width, channels;
  int32_t filters, kernel_h, kernel_w, out_h, out_w;
  int32_t pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
  const void* a;
  const void* b;
  const void* c;
  const void* bias;
  void* d;
} CollageProblem;

// Numbers returned are a cutlass::Status; 0 is success.
typedef struct CollageKernel {
  const char* name;
  int32_t (*run)(const CollageProblem*, cudaStream_t);  // enqueues only
} CollageKernel;

typedef struct CollageLibrary {
  int32_t count;
  const CollageKernel* kernels;
  const char* (*status)(int32_t);
  // Each of `batch` matrices [rows, columns] of elements of 2 bytes → [columns, rows].
  int32_t (*transpose)(const void* from, void* to, int32_t batch, int32_t rows, int32_t columns,
                       cudaStream_t);
} CollageLibrary;

const CollageLibrary* collage_cutlass_library(void);

#ifdef __cplusplus
}
#endif

#endif  // COLLAGE_CUTLASS_ABI_H_
