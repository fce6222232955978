// Prints the nanoseconds that a cache line takes from one processor to another and back.
//
// Two pinned threads hand one number back and forth. Processors that share a cache take 50 to 100 ns; core
// complexes, sockets or badly placed virtual processors take several times as much, and then every runtime is
// slower on more than one thread. It prints the least of the means of some batches, so that what else runs
// meanwhile does not count, and ends after a tenth of a second.
//
//   g++ -O2 -pthread core_round_trip.cc -o round_trip && ./round_trip 0 1
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

using Clock = std::chrono::steady_clock;

constexpr int kTrips = 500;
alignas(64) std::atomic<int> turn{0};  // even: the first thread writes next; odd: the second one; negative: it is over

void Pin(const char* processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(std::atoi(processor), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) std::exit(1);
}

int main(int count, char** arguments) {
  if (count != 3) return 1;
  std::thread other([&] {
    Pin(arguments[2]);
    for (int value = 0; value >= 0; value = turn.load(std::memory_order_acquire)) {
      if (value & 1) turn.store(value + 1, std::memory_order_release);
    }
  });
  Pin(arguments[1]);
  double least = 1e9;
  for (auto end = Clock::now() + std::chrono::milliseconds(100); Clock::now() < end;) {
    auto start = Clock::now();
    for (int trip = 0; trip < kTrips; ++trip) {
      turn.store(1, std::memory_order_release);
      while (turn.load(std::memory_order_acquire) != 2) {
      }
    }
    std::chrono::duration<double, std::nano> taken = Clock::now() - start;
    least = std::min(least, taken.count() / kTrips);
  }
  turn.store(-2, std::memory_order_release);
  other.join();
  std::printf("%.1f\n", least);
  return 0;
}
