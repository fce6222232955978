// Functions of a row of numbers, in place: what follows a product while its result is in the
// cache. Written so that the compiler vectorises them; on x86 one copy per instruction set, the
// best chosen when the library loads.
#ifndef COLLAGE_BLAS_FUNCTIONS_H_
#define COLLAGE_BLAS_FUNCTIONS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define COLLAGE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define COLLAGE_CLONES
#endif
#if defined(__GNUC__) && !defined(__clang__)
#define COLLAGE_FAST COLLAGE_CLONES __attribute__((optimize("O3", "no-trapping-math", "no-math-errno")))
#else
#define COLLAGE_FAST COLLAGE_CLONES
#endif
#define COLLAGE_INLINE static inline __attribute__((always_inline))

namespace collage {
namespace row {

// e^x by reduction to |r| ≤ ln2/2 and a polynomial (coefficients of Cephes' expf); 0 and infinity
// where it under- and overflows.
COLLAGE_INLINE float Exp(float x) {
  float y = x > 89.0f ? 89.0f : x;
  y = y < -88.0f ? -88.0f : y;
  float n = y * 1.44269504088896341f + 12582912.0f;  // rounds to an integer in the low bits
  int32_t bits;
  std::memcpy(&bits, &n, 4);
  n -= 12582912.0f;
  float r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors: n is 128 at most, which no float's exponent holds.
  int32_t whole = bits - 0x4B400000;
  int32_t half = whole >> 1;
  int32_t a = (half + 127) << 23, b = (whole - half + 127) << 23;
  float fa, fb;
  std::memcpy(&fa, &a, 4);
  std::memcpy(&fb, &b, 4);
  float e = p * fa * fb;
  e = x < -88.0f ? 0.0f : e;
  return x != x ? x : e;
}

COLLAGE_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// Rational approximations where the function differs from ±1 in float32 (coefficients as published
// in Eigen's MathFunctionsImpl.h).
COLLAGE_INLINE float Tanh(float v) {
  float x = v > 7.90531110763549805f ? 7.90531110763549805f : v;
  x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
  float s = x * x;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  float t = x * p / q;
  return v != v ? v : t;
}

COLLAGE_INLINE float Erf(float v) {
  float x = v > 4.0f ? 4.0f : v;
  x = x < -4.0f ? -4.0f : x;
  float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  float e = x * p / q;
  e = e > 1.0f ? 1.0f : e;
  e = e < -1.0f ? -1.0f : e;
  return v != v ? v : e;
}

COLLAGE_INLINE float Clamp(float x, float low, float high) {
  float y = x < low ? low : x;  // not a number stays what it is
  return y > high ? high : y;
}

#define COLLAGE_UNARY(name, expression)                                          \
  COLLAGE_FAST inline void name(float* c, int64_t n, float a, float b) {         \
    (void)a;                                                                     \
    (void)b;                                                                     \
    for (int64_t i = 0; i < n; ++i) {                                            \
      float x = c[i];                                                            \
      c[i] = (expression);                                                       \
    }                                                                            \
  }

COLLAGE_UNARY(Relu, x < 0.0f ? 0.0f : x)
COLLAGE_UNARY(Clip, Clamp(x, a, b))
COLLAGE_UNARY(Affine, a* x + b)
COLLAGE_UNARY(Reciprocal, a / x)
COLLAGE_UNARY(Leaky, x < 0.0f ? a * x : x)
COLLAGE_UNARY(Square, x* x)
COLLAGE_UNARY(Cube, x* x* x)
COLLAGE_UNARY(Root, std::sqrt(x))
COLLAGE_UNARY(Absolute, std::fabs(x))
COLLAGE_UNARY(ExpRow, Exp(x))
COLLAGE_UNARY(SigmoidRow, Sigmoid(x))
COLLAGE_UNARY(TanhRow, Tanh(x))
COLLAGE_UNARY(ErfRow, Erf(x))
COLLAGE_UNARY(GeluErf, 0.5f * x * (1.0f + Erf(x * 0.70710678118654752f)))
COLLAGE_UNARY(GeluTanh,
              0.5f * x * (1.0f + Tanh(0.79788456080286536f * (x + 0.044715f * x * x * x))))
COLLAGE_UNARY(Silu, x* Sigmoid(x))
COLLAGE_UNARY(HardSigmoid, Clamp(a* x + b, 0.0f, 1.0f))
COLLAGE_UNARY(HardSwish, x* Clamp(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f))

// c = f(c, d): d a row, or one number for the whole row.
#define COLLAGE_BINARY(name, expression)                                         \
  COLLAGE_FAST inline void name##Row(float* c, const float* d, int64_t n) {      \
    for (int64_t i = 0; i < n; ++i) {                                            \
      float x = c[i], y = d[i];                                                  \
      c[i] = (expression);                                                       \
    }                                                                            \
  }                                                                              \
  COLLAGE_FAST inline void name##One(float* c, const float* d, int64_t n) {      \
    const float y = *d;                                                          \
    for (int64_t i = 0; i < n; ++i) {                                            \
      float x = c[i];                                                            \
      c[i] = (expression);                                                       \
    }                                                                            \
  }

COLLAGE_BINARY(Add, x + y)
COLLAGE_BINARY(AddRelu, x + y < 0.0f ? 0.0f : x + y)
COLLAGE_BINARY(Subtract, x - y)
COLLAGE_BINARY(SubtractFrom, y - x)
COLLAGE_BINARY(Multiply, x* y)
COLLAGE_BINARY(Divide, x / y)
COLLAGE_BINARY(DivideInto, y / x)
COLLAGE_BINARY(Maximum, y != y ? y : (x < y ? y : x))
COLLAGE_BINARY(Minimum, y != y ? y : (x > y ? y : x))

#undef COLLAGE_UNARY
#undef COLLAGE_BINARY

}  // namespace row
}  // namespace collage

#endif  // COLLAGE_BLAS_FUNCTIONS_H_
