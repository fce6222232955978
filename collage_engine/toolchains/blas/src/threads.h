// The threads that share the work of one call. The BLAS itself runs every product on the thread
// that asks for it: its own threads would spin for each other inside a product, and could neither
// gather columns nor apply what follows.
#ifndef COLLAGE_BLAS_THREADS_H_
#define COLLAGE_BLAS_THREADS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collage {

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// One pool per process, however many modules there are; it is never taken down, so that nothing
// depends on the order in which a process ends.
class Pool {
 public:
  static Pool& Get() {
    static Pool* pool = new Pool();
    return *pool;
  }

  // At load: have this many threads, the caller's included.
  void Grow(int threads, bool spin) {
    std::lock_guard<std::mutex> lock(mutex_);
    spin_.store(spin, std::memory_order_relaxed);
    for (; workers_ + 1 < threads; ++workers_) std::thread([this] { Work(); }).detach();
  }

  // body(job) for jobs 0…count−1 on up to `threads` threads, the caller's among them. When
  // another call has the pool, the caller does all of it. Throws bad_alloc if a body did.
  template <typename Body>
  void Run(int64_t count, int threads, const Body& body) {
    if (count <= 1 || threads <= 1 || !busy_.try_lock()) {
      for (int64_t job = 0; job < count; ++job) body(job);
      return;
    }
    std::lock_guard<std::mutex> owned(busy_, std::adopt_lock);
    next_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    count_ = count;
    body_ = &body;
    call_ = [](const void* b, int64_t job) { (*static_cast<const Body*>(b))(job); };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      places_ = threads - 1;
      joined_ = left_ = 0;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    Take();
    std::unique_lock<std::mutex> lock(mutex_);
    places_ = 0;  // nobody joins from here on
    done_.wait(lock, [this] { return left_ == joined_; });
    if (failed_.load()) throw std::bad_alloc();
  }

 private:
  void Take() {
    try {
      for (int64_t job; (job = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
        call_(body_, job);
      }
    } catch (const std::bad_alloc&) {
      failed_.store(true);
    }
  }

  void Work() {
    uint64_t seen = 0;
    for (;;) {
      if (spin_.load(std::memory_order_relaxed)) {
        for (int i = 0; i < 4000 && generation_.load(std::memory_order_acquire) == seen; ++i) {
          Pause();
        }
      }
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        seen = generation_.load(std::memory_order_relaxed);
        if (places_ == 0) continue;
        --places_;
        ++joined_;
      }
      Take();
      std::lock_guard<std::mutex> lock(mutex_);
      ++left_;
      done_.notify_one();
    }
  }

  std::mutex busy_;   // held by the call that has the pool
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  int workers_ = 0, places_ = 0, joined_ = 0, left_ = 0;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> spin_{false}, failed_{false};
  int64_t count_ = 0;
  const void* body_ = nullptr;
  void (*call_)(const void*, int64_t) = nullptr;
};

// Memory of the calling thread for gathered columns; it grows on a module's first run and stays,
// so that every module of the process finds it in the cache.
inline float* Scratch(size_t elements) {
  struct Owner {
    float* data = nullptr;
    size_t elements = 0;
    ~Owner() { ::operator delete[](data, std::align_val_t(64)); }
  };
  static thread_local Owner own;
  if (own.elements < elements) {
    ::operator delete[](own.data, std::align_val_t(64));
    own.data = nullptr;
    own.elements = 0;
    own.data = static_cast<float*>(
        ::operator new[](elements * sizeof(float), std::align_val_t(64)));
    own.elements = elements;
  }
  return own.data;
}

}  // namespace collage

#endif  // COLLAGE_BLAS_THREADS_H_
