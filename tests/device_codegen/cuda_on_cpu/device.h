// A block of CUDA threads on one CPU thread: enough of the language to run the kernels TVM writes.
//
// Every thread of a block is a fibre that runs until it waits at a barrier for the whole block.
// Fibres run in turns, upwards or downwards, so that code which forgets to wait reads what is not
// there yet, in one order or in the other.
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
