// The kernels of one family for one architecture: convolutions by CUTLASS's 2.x templates, for tensor
// cores from Ampere on, and the other order of the axes of images.
//
// The compiler is given COLLAGE_ELEMENT, the C++ type of an element, and COLLAGE_ACTIVATION, the name of
// CUTLASS's functor. (CUTLASS's 3.x collectives for Hopper need files that TVM's wheel leaves out. Its
// products, and float32 rounded to tf32, were the fastest nowhere: tests/gpu/RESULTS.md.)
#include <cutlass/array.h>
#include <cutlass/cutlass.h>
#include <cutlass/functional.h>
#include <cutlass/numeric_conversion.h>

#include <cutlass/conv/kernel/default_conv2d_fprop.h>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>
// These need what comes before them.
#include <cutlass/conv/device/implicit_gemm_convolution.h>
#include <cutlass/conv/kernel/default_conv2d_fprop_with_broadcast.h>

#include "../collage_cutlass_abi.h"

namespace {

// activation(accumulator + bias + source), summed in float32. Models CUTLASS's
// EpilogueWithBroadcastOp. Bias and source are there or not at run time: no bias is a vector of
// zeros that the epilogue makes itself, no source is never read.
template <typename Element, int kElements, template <typename> class Activation>
class Fused {
 public:
  using ElementOutput = Element;
  using ElementC = Element;
  using ElementAccumulator = float;
  using ElementCompute = float;
  using ElementVector = Element;
  using ElementZ = Element;
  using ElementT = Element;
  static int const kElementsPerAccess = kElements;
  static int const kCount = kElements;
  static bool const kIsSingleSource = true;
  static bool const kStoreZ = true;
  static bool const kStoreT = false;
  static bool const kIsHeavy = Activation<float>::kIsHeavy;

  using FragmentAccumulator = cutlass::Array<float, kElements>;
  using FragmentCompute = cutlass::Array<float, kElements>;
  using FragmentC = cutlass::Array<Element, kElements>;
  using FragmentOutput = cutlass::Array<Element, kElements>;
  using FragmentZ = FragmentOutput;
  using FragmentT = FragmentOutput;

  struct Params {
    bool source = false;
  };
  static Params Of(const CollageProblem& p) { return {p.c != nullptr}; }

  CUTLASS_HOST_DEVICE explicit Fused(Params const& params) : source_(params.source) {}
  CUTLASS_HOST_DEVICE bool is_source_needed() const { return source_; }
  CUTLASS_HOST_DEVICE void set_k_partition(int, int) {}  // never split along k

  CUTLASS_HOST_DEVICE void operator()(FragmentZ& z, FragmentT&, FragmentAccumulator const& product,
                                      FragmentC const& source, FragmentCompute const& bias) const {
    cutlass::plus<FragmentCompute> plus;
    cutlass::NumericArrayConverter<float, Element, kElements> widen;
    Finish(z, plus(plus(product, bias), widen(source)));
  }
  CUTLASS_HOST_DEVICE void operator()(FragmentZ& z, FragmentT&, FragmentAccumulator const& product,
                                      FragmentCompute const& bias) const {
    cutlass::plus<FragmentCompute> plus;
    Finish(z, plus(product, bias));
  }

 protected:
  CUTLASS_HOST_DEVICE static void Finish(FragmentZ& z, FragmentCompute const& sum) {
    Activation<FragmentCompute> activation;
    cutlass::NumericArrayConverter<Element, float, kElements> narrow;
    z = narrow(activation(sum));
  }

  bool source_;
};

using Element = COLLAGE_ELEMENT;
template <typename T>
using Activation = cutlass::epilogue::thread::COLLAGE_ACTIVATION<T>;
using Images = cutlass::layout::TensorNHWC;
constexpr int kAlign = 8;  // elements that are read at once

// A failed call leaves its error behind, and the next caller must not be blamed for it.
int32_t Code(cutlass::Status status) {
  if (status != cutlass::Status::kSuccess) cudaGetLastError();
  return static_cast<int32_t>(status);
}

const char* StatusText(int32_t code) {
  return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(code));
}

// A block computes kM x kN of an implicit product in slices of kK, by warps of kWarpM x kWarpN, in a
// pipeline of kStages.
template <int kM, int kN, int kK, int kWarpM, int kWarpN, int kStages>
struct Convolution {
  using Epilogue = Fused<Element, kAlign, Activation>;
  using Kernel = typename cutlass::conv::kernel::DefaultConv2dFpropWithBroadcast<
      Element, Images, Element, Images, Element, Images, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, cutlass::gemm::GemmShape<kM, kN, kK>,
      cutlass::gemm::GemmShape<kWarpM, kWarpN, kK>, cutlass::gemm::GemmShape<16, 8, 16>, Epilogue,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>, kStages,
      cutlass::arch::OpMultiplyAdd, cutlass::conv::IteratorAlgorithm::kOptimized,
      cutlass::conv::StrideSupport::kStrided, kAlign, kAlign>::Kernel;
  using Device = cutlass::conv::device::ImplicitGemmConvolution<Kernel>;

  static typename Device::Arguments Of(const CollageProblem& p) {
    auto* a = static_cast<Element*>(const_cast<void*>(p.a));
    auto* b = static_cast<Element*>(const_cast<void*>(p.b));
    auto* d = static_cast<Element*>(p.d);
    auto* c = p.c != nullptr ? static_cast<Element*>(const_cast<void*>(p.c)) : d;
    const auto images = Images::packed({p.images, p.height, p.width, p.channels});
    const auto filters = Images::packed({p.filters, p.kernel_h, p.kernel_w, p.channels});
    const auto results = Images::packed({p.images, p.out_h, p.out_w, p.filters});
    // The sizes of the result are given, so that padding behind needs not equal that in front.
    const cutlass::conv::Conv2dProblemSize sizes(
        p.images, p.height, p.width, p.channels, p.filters, p.kernel_h, p.kernel_w, p.out_h, p.out_w,
        p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w,
        cutlass::conv::Mode::kCrossCorrelation);
    return {sizes,
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

  // It is never split along k, so that it wants no workspace.
  static int32_t Run(const CollageProblem* p, cudaStream_t stream) {
    const auto arguments = Of(*p);
    cutlass::Status status = Device::can_implement(arguments);
    if (status != cutlass::Status::kSuccess) return Code(status);
    Device device;
    return Code(device(arguments, nullptr, stream));
  }
};

// Square tiles through shared memory; a warp reads and writes rows of 32 elements.
__global__ void TransposeKernel(const uint16_t* from, uint16_t* to, int rows, int columns) {
  __shared__ uint16_t tile[32][33];
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

int32_t Transpose(const void* from, void* to, int32_t batch, int32_t rows, int32_t columns,
                  cudaStream_t stream) {
  const dim3 grid((columns + 31) / 32, (rows + 31) / 32, batch), block(32, 8);
  if (grid.y > 65535 || grid.z > 65535) return Code(cutlass::Status::kErrorInvalidProblem);
  TransposeKernel<<<grid, block, 0, stream>>>(static_cast<const uint16_t*>(from),
                                              static_cast<uint16_t*>(to), rows, columns);
  return Code(cudaPeekAtLastError() == cudaSuccess ? cutlass::Status::kSuccess
                                                   : cutlass::Status::kErrorInternal);
}

// The tiles are chosen.
const CollageKernel kKernels[] = {
    {"128x256x32_3", &Convolution<128, 256, 32, 64, 64, 3>::Run},
    {"128x128x32_4", &Convolution<128, 128, 32, 64, 64, 4>::Run},
    {"128x64x32_4", &Convolution<128, 64, 32, 64, 32, 4>::Run},
    {"64x64x64_4", &Convolution<64, 64, 64, 32, 32, 4>::Run},
};

const CollageLibrary kLibrary = {sizeof(kKernels) / sizeof(kKernels[0]), kKernels, &StatusText,
                                 &Transpose};

}  // namespace

extern "C" __attribute__((visibility("default"))) const CollageLibrary* collage_cutlass_library() {
  return &kLibrary;
}
