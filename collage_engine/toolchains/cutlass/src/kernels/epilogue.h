// The epilogues of the sm_80 templates, as functors over pieces of a row.
#ifndef COLLAGE_CUTLASS_EPILOGUE_H_
#define COLLAGE_CUTLASS_EPILOGUE_H_

#include <cutlass/array.h>
#include <cutlass/functional.h>
#include <cutlass/numeric_conversion.h>

#include "common.h"

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

// The same for kernels whose epilogue knows no vector: there the bias is the source, a row that is
// repeated, and nothing else is added.
template <typename Element, int kElements, template <typename> class Activation>
class FusedSource : public Fused<Element, kElements, Activation> {
 public:
  using Base = Fused<Element, kElements, Activation>;
  using typename Base::FragmentAccumulator;
  using typename Base::FragmentC;
  using typename Base::FragmentOutput;
  using typename Base::Params;
  static Params Of(const CollageProblem& p) { return {p.bias != nullptr}; }

  CUTLASS_HOST_DEVICE explicit FusedSource(Params const& params) : Base(params) {}
  CUTLASS_HOST_DEVICE FragmentOutput operator()(FragmentAccumulator const& product,
                                                FragmentC const& source) const {
    cutlass::plus<FragmentAccumulator> plus;
    cutlass::NumericArrayConverter<float, Element, kElements> widen;
    FragmentOutput z;
    Base::Finish(z, plus(product, widen(source)));
    return z;
  }
  CUTLASS_HOST_DEVICE FragmentOutput operator()(FragmentAccumulator const& product) const {
    FragmentOutput z;
    Base::Finish(z, product);
    return z;
  }
};

// What a column of an integer product is multiplied by, and what is added then.
struct alignas(8) ScaleShift {
  float scale, shift;
  ScaleShift() = default;
  CUTLASS_HOST_DEVICE explicit ScaleShift(int value)
      : scale(static_cast<float>(value)), shift(static_cast<float>(value)) {}
};

// clamp(accumulator · scale + shift + factor · source, low, high), rounded to the nearest integer,
// ties to the even one, where the result has 8 bits.
template <typename Out, int kElements>
class Requantized {
 public:
  using ElementOutput = Out;
  using ElementC = Out;
  using ElementAccumulator = int32_t;
  using ElementCompute = ScaleShift;
  using ElementVector = ScaleShift;
  using ElementZ = Out;
  using ElementT = Out;
  static int const kElementsPerAccess = kElements;
  static int const kCount = kElements;
  static bool const kIsSingleSource = true;
  static bool const kStoreZ = true;
  static bool const kStoreT = false;
  static bool const kIsHeavy = false;

  using FragmentAccumulator = cutlass::Array<int32_t, kElements>;
  using FragmentCompute = cutlass::Array<ScaleShift, kElements>;
  using FragmentC = cutlass::Array<Out, kElements>;
  using FragmentOutput = cutlass::Array<Out, kElements>;
  using FragmentZ = FragmentOutput;
  using FragmentT = FragmentOutput;

  struct Params {
    bool source = false;
    float factor = 0, low = 0, high = 0;
  };
  static Params Of(const CollageProblem& p) {
    return {p.c != nullptr, p.source_factor, p.low, p.high};
  }

  CUTLASS_HOST_DEVICE explicit Requantized(Params const& params) : params_(params) {}
  CUTLASS_HOST_DEVICE bool is_source_needed() const { return params_.source; }
  CUTLASS_HOST_DEVICE void set_k_partition(int, int) {}  // never split along k

  CUTLASS_HOST_DEVICE void operator()(FragmentZ& z, FragmentT&, FragmentAccumulator const& product,
                                      FragmentC const& source,
                                      FragmentCompute const& columns) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float added = params_.factor * static_cast<float>(Out(source[i]));
      z[i] = Finish(Scaled(product[i], columns[i]) + added);
    }
  }
  CUTLASS_HOST_DEVICE void operator()(FragmentZ& z, FragmentT&, FragmentAccumulator const& product,
                                      FragmentCompute const& columns) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; ++i) z[i] = Finish(Scaled(product[i], columns[i]));
  }

 private:
  CUTLASS_HOST_DEVICE static float Scaled(int32_t product, ScaleShift const& column) {
    return static_cast<float>(product) * column.scale + column.shift;
  }
  CUTLASS_HOST_DEVICE Out Finish(float value) const {
    const float limited = fminf(fmaxf(value, params_.low), params_.high);
    if constexpr (sizeof(Out) == 1) return static_cast<Out>(static_cast<int>(rintf(limited)));
    return static_cast<Out>(limited);
  }

  Params params_;
};

}  // namespace collage

#endif  // COLLAGE_CUTLASS_EPILOGUE_H_
