// The epilogue of all kernels, as a functor over pieces of a row.
#ifndef COLLAGE_CUTLASS_EPILOGUE_H_
#define COLLAGE_CUTLASS_EPILOGUE_H_

#include <cutlass/array.h>
#include <cutlass/functional.h>
#include <cutlass/numeric_conversion.h>

#include "../collage_cutlass_abi.h"

namespace collage {

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

}  // namespace collage

#endif  // COLLAGE_CUTLASS_EPILOGUE_H_
