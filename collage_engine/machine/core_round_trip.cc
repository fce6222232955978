// Prints the nanoseconds that a cache line takes from one processor to another and back.
//
// Two pinned threads hand one number back and forth. Processors that share a cache take 50 to 100 ns; core
// complexes, sockets or badly placed virtual processors take several times as much, and then every runtime is
// slower on more than one thread. It prints the least of the means of some batches, so that what else runs
// meanwhile does not count, and ends after a tenth of a second.
//
//   g++ -O2 -pthread core_round_trip.cc -o round_trip && ./round_trip 0 1
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

namespace {

constexpr int kTrips = 500;
constexpr double kSeconds = 0.1;
alignas(64) int turn = 0;  // even: the first thread writes next; odd: the second one; negative: it is over

bool Pin(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

void* Answer(void* processor) {
  if (!Pin(*static_cast<int*>(processor))) exit(1);
  for (int value = 0; value >= 0;) {
    value = __atomic_load_n(&turn, __ATOMIC_ACQUIRE);
    if (value & 1) __atomic_store_n(&turn, value + 1, __ATOMIC_RELEASE);
  }
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3 || !Pin(atoi(arguments[1]))) return 1;
  int second = atoi(arguments[2]);
  pthread_t other;
  if (pthread_create(&other, nullptr, Answer, &second) != 0) return 1;
  double end = Now() + kSeconds, least = 1.0;
  while (Now() < end) {
    double start = Now();
    for (int trip = 0; trip < kTrips; ++trip) {
      __atomic_store_n(&turn, 1, __ATOMIC_RELEASE);
      while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != 2) {
      }
    }
    double taken = (Now() - start) / kTrips;
    if (taken < least) least = taken;
  }
  __atomic_store_n(&turn, -2, __ATOMIC_RELEASE);
  pthread_join(other, nullptr);
  printf("%.1f\n", least * 1e9);
  return 0;
}
