// A block of CUDA threads on one CPU thread: enough of the language to run the kernels TVM writes.
//
// Every thread of a block is a fibre that runs until it waits at a barrier for the whole block.
// Fibres run in turns, upwards or downwards, so that code which forgets to wait reads what is not
// there yet, in one order or in the other. A warp's fragment is kept whole by each of its threads.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))

namespace fibres {
struct Place {
  unsigned x = 0, y = 0, z = 0;
};
struct Barrier {
  int arrived = 0, generation = 0;
};
struct State {
  std::vector<ucontext_t> contexts;
  std::vector<char> done;
  Barrier block;
  ucontext_t home;
  int current = 0, size = 0;
  Place extent;
  void (*work)(void**) = nullptr;
  void** arguments = nullptr;
};
inline State state;
}  // namespace fibres

inline fibres::Place threadIdx, blockIdx, blockDim, gridDim;
alignas(128) inline unsigned char dynamic_shared[1 << 18];

namespace fibres {
inline unsigned char exchanged[2][1024][8];
inline unsigned exchanges[1024];
inline void turn() { swapcontext(&state.contexts[state.current], &state.home); }

inline void wait() {
  Barrier& barrier = state.block;
  int mine = barrier.generation;
  if (++barrier.arrived == state.size) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  // A turn is due even for the last one: the others may be behind or ahead of it.
  do turn();
  while (barrier.generation == mine);
}

inline void body() {
  state.work(state.arguments);
  state.done[state.current] = 1;
  swapcontext(&state.contexts[state.current], &state.home);
}

inline void run_block(bool downwards) {
  constexpr size_t kStack = 256 << 10;
  static std::vector<char> stacks;
  stacks.resize(kStack * state.size);
  state.contexts.assign(state.size, {});
  state.done.assign(state.size, 0);
  state.block = {};
  std::memset(exchanges, 0, sizeof(exchanges));
  for (int i = 0; i < state.size; ++i) {
    getcontext(&state.contexts[i]);
    state.contexts[i].uc_stack = {&stacks[kStack * i], 0, kStack};
    state.contexts[i].uc_link = &state.home;
    makecontext(&state.contexts[i], body, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (int k = 0; k < state.size; ++k) {
      int i = downwards ? state.size - 1 - k : k;
      if (state.done[i]) continue;
      left = true;
      state.current = i;
      unsigned plane = state.extent.x * state.extent.y;
      threadIdx = {i % state.extent.x, i % plane / state.extent.x, i / plane};
      swapcontext(&state.home, &state.contexts[i]);
    }
  }
}
}  // namespace fibres

inline void __syncthreads() { fibres::wait(); }

// Exchanges within a warp: all of its threads that take part come to one before any goes on, since
// each has its turn in between. Two buffers, as one may write the next value before another reads.
namespace fibres {
template <typename T>
T from_lane(T value, int lane) {
  int own = state.current, buffer = exchanges[own]++ & 1;
  std::memcpy(exchanged[buffer][own], &value, sizeof(T));
  turn();
  std::memcpy(&value, exchanged[buffer][own / 32 * 32 + lane], sizeof(T));
  return value;
}
}  // namespace fibres

inline unsigned __activemask() { return 0xffffffffu; }
template <typename T>
T __shfl_sync(unsigned, T value, int lane, int) {
  return fibres::from_lane(value, lane);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int by, int width) {
  int own = fibres::state.current % 32;
  return fibres::from_lane(value, own + by < width ? own + by : own);
}
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline __half hexp(__half x) { return __float2half(expf(__half2float(x))); }
using std::max;
using std::min;
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }

namespace nvcuda::wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <typename T>
struct Kept {
  using type = float;
  static float in(float x) { return x; }
};
template <>
struct Kept<int> {
  using type = int;
};
template <>
struct Kept<signed char> {
  using type = int;
  static int in(int x) { return x; }
};
template <typename Use, int m, int n, int k>
struct Extent;
template <int m, int n, int k>
struct Extent<matrix_a, m, n, k> {
  static constexpr int rows = m, columns = k;
};
template <int m, int n, int k>
struct Extent<matrix_b, m, n, k> {
  static constexpr int rows = k, columns = n;
};
template <int m, int n, int k>
struct Extent<accumulator, m, n, k> {
  static constexpr int rows = m, columns = n;
};
template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment : Extent<Use, m, n, k> {
  using Base = Extent<Use, m, n, k>;
  typename Kept<T>::type x[Base::rows][Base::columns];
};
inline void aligned(const void* pointer, size_t row_bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % 32 || row_bytes % 16) __builtin_trap();
}
template <typename Use, int m, int n, int k, typename T, typename P>
void load_matrix_sync(fragment<Use, m, n, k, T, row_major>& f, const P* p, unsigned step) {
  aligned(p, step * sizeof(P));
  for (int i = 0; i < f.rows; ++i)
    for (int j = 0; j < f.columns; ++j)
      f.x[i][j] = Kept<T>::in(static_cast<typename Kept<T>::type>(p[i * step + j]));
}
template <int m, int n, int k, typename T>
void fill_fragment(fragment<accumulator, m, n, k, T>& f, T value) {
  for (auto& row : f.x)
    for (auto& each : row) each = value;
}
template <int m, int n, int k, typename S, typename T, typename A, typename B>
void mma_sync(fragment<accumulator, m, n, k, S>& d, fragment<matrix_a, m, n, k, T, A>& a,
              fragment<matrix_b, m, n, k, T, B>& b, fragment<accumulator, m, n, k, S>& c) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      S sum = c.x[i][j];
      for (int l = 0; l < k; ++l) sum += a.x[i][l] * b.x[l][j];
      d.x[i][j] = sum;
    }
}
template <int m, int n, int k, typename S>
void store_matrix_sync(S* p, fragment<accumulator, m, n, k, S>& f, unsigned step,
                       layout_t layout) {
  aligned(p, step * sizeof(S));
  if (layout != mem_row_major) __builtin_trap();
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) p[i * step + j] = f.x[i][j];
}
}  // namespace nvcuda::wmma

// Kernels write `__shared__` arrays as statics: they must not hold what another block left there.
inline void launch(void (*work)(void**), void** arguments, const unsigned* grid,
                   const unsigned* block, bool downwards) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  fibres::state.extent = blockDim;
  fibres::state.size = block[0] * block[1] * block[2];
  fibres::state.work = work;
  fibres::state.arguments = arguments;
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        std::memset(dynamic_shared, 0xff, sizeof(dynamic_shared));
        fibres::run_block(downwards);
      }
}
