// Loops that run as fast as a core can: what `peaks.py` measures. One thread each.
//
// Built with -O2 -march=native; vectors are GCC's, so it is the same source on every processor.
#include <chrono>
#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif

namespace {
double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Multiply-adds in twelve independent chains: more than latency times throughput of any core.
template <typename T>
double fma_rate(long turns) {
  typedef T V __attribute__((vector_size(WIDTH)));
  // No lane is ever indexed by a variable: that would move the vectors to memory.
  V x = V{} + T(0.999999), y = V{} + T(1e-7);
  V a[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) a[i] = V{} + T(i);
  double start = now();
  for (long turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = a[i] * x + y;
    // Opaque to the compiler: nothing is hoisted out of the loop or folded over turns.
    __asm__ volatile("" : "+x"(x), "+x"(y));
  }
  double seconds = now() - start;
  V sum = a[0];
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum += a[i];
  volatile T sink = sum[0];
  (void)sink;
  return 2.0 * 12 * (WIDTH / sizeof(T)) * turns / seconds;
}
}  // namespace

extern "C" {

// FLOP/s of one window of multiply-adds.
double collage_fma_f32(long turns) { return fma_rate<float>(turns); }
double collage_fma_f64(long turns) { return fma_rate<double>(turns); }

// Clock cycles per second, from a chain of integer multiplications, three cycles each on every
// x86-64 core since 2008; 0 on other processors.
double collage_cycles(long turns) {
#if defined(__x86_64__)
  uint64_t value = 3;
  double start = now();
  for (long turn = 0; turn < turns; ++turn) {
    __asm__ volatile(
        "imulq %0, %0\n\timulq %0, %0\n\timulq %0, %0\n\timulq %0, %0\n\t"
        "imulq %0, %0\n\timulq %0, %0\n\timulq %0, %0\n\timulq %0, %0"
        : "+r"(value));
  }
  return 3.0 * 8 * turns / (now() - start);
#else
  (void)turns;
  return 0.0;
#endif
}

// Bytes per second of reading a buffer from end to end, again and again.
double collage_read(const char* data, size_t bytes, long turns) {
  typedef int64_t V __attribute__((vector_size(WIDTH)));
  const V* from = reinterpret_cast<const V*>(data);
  size_t count = bytes / (8 * WIDTH) * 8;
  V s[8] = {};
  double start = now();
  for (long turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < count; i += 8)
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k)
        s[k] |= from[i + k];
    __asm__ volatile("" ::: "memory");
  }
  double seconds = now() - start;
  V sum = s[0];
#pragma GCC unroll 8
  for (int k = 1; k < 8; ++k) sum |= s[k];
  volatile int64_t sink = sum[0];
  (void)sink;
  return double(count) * WIDTH * turns / seconds;
}
}
