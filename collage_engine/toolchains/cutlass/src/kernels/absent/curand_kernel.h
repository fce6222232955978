// In the place of cuRAND's header, which not every CUDA installation has: the attention kernel
// includes it for dropout, which is compiled for training with PyTorch only.
#ifndef COLLAGE_CUTLASS_CURAND_KERNEL_H_
#define COLLAGE_CUTLASS_CURAND_KERNEL_H_
#endif  // COLLAGE_CUTLASS_CURAND_KERNEL_H_
