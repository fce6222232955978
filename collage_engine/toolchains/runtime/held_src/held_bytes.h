// The bytes that a module was made of, for as long as it lives, at little cost in memory.
#ifndef COLLAGE_HELD_BYTES_H_
#define COLLAGE_HELD_BYTES_H_

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "collage_module.h"

namespace collage {

// A library packs or converts a model's weights and copies them; what was given is needed once more
// only where constants point into it, or when the module is serialised again. Freshly compiled
// modules share their caller's bytes. An artifact's module is lent its bytes only while it loads:
// large ones go into an unlinked file that is mapped, so that only the pages which are in use stay
// in memory; small ones are copied.
class HeldBytes {
 public:
  static constexpr size_t kWorthwhile = 4 << 20;

  explicit HeldBytes(const GivenWeights& given) : data_(given.data), size_(given.size) {
    if (given.owner) {
      bytes_ = *given.owner;
      data_ = bytes_.data();
    } else if (size_ < kWorthwhile || !Map(given.data)) {
      bytes_ = ffi::Bytes(given.data, size_);
      data_ = bytes_.data();
    }
  }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  ~HeldBytes() {
    if (mapped_ != nullptr) munmap(mapped_, size_);
  }

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  ffi::Bytes Get() const { return mapped_ != nullptr ? ffi::Bytes(data_, size_) : bytes_; }

  // What was read once, while packing, need not stay: pages in use come back by themselves.
  void Forget() const {
    if (mapped_ != nullptr) madvise(mapped_, size_, MADV_DONTNEED);
  }

 private:
  bool Map(const char* from) {
    std::FILE* file = std::tmpfile();
    if (file == nullptr) return false;
    bool written = std::fwrite(from, 1, size_, file) == size_ && std::fflush(file) == 0;
    void* at = written ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fileno(file), 0) : MAP_FAILED;
    std::fclose(file);  // the mapping keeps the file
    if (at == MAP_FAILED) return false;
    mapped_ = at;
    data_ = static_cast<const char*>(at);
    return true;
  }

  ffi::Bytes bytes_;
  void* mapped_ = nullptr;
  const char* data_;
  size_t size_;
};

// Reading a model frees more than is kept, and the C library holds on to it: ResNet-50 would stay at
// 250 MB instead of 135.
inline void TrimHeap(size_t model_bytes) {
#ifdef __GLIBC__
  if (model_bytes >= HeldBytes::kWorthwhile) malloc_trim(0);
#endif
}

}  // namespace collage

#endif  // COLLAGE_HELD_BYTES_H_
