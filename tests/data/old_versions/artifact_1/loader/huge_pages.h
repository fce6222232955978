// Puts the memory that a loaded model holds on huge pages (Linux 6.1 or newer; else nothing).
//
// Weights and intermediate values lie on pages of 4 KiB where transparent huge pages are left to
// programs ("madvise", the default of most distributions), more of them than the processor's
// address caches hold. The C++ standard library only; the same as huge_pages.py, which says more.
//
//   collage::HugePages pages;          // before the model is loaded: notes what is there
//   ...                                // load it and run it once: now it holds all that it keeps
//   collage::Moved moved = pages.Collapse();
//
// Only anonymous private memory that appeared in between is touched, and only extents at least half
// of which are in use. COLLAGE_HUGE_PAGES=0 in the environment switches it off.

#ifndef COLLAGE_HUGE_PAGES_H_
#define COLLAGE_HUGE_PAGES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#endif

namespace collage {

struct Moved {
  size_t bytes = 0;    // of the model's memory on huge pages now
  double seconds = 0;  // what moving it took
  std::string reason;  // why nothing was moved; empty: something was
};

class HugePages {
 public:
  // Make it before the model is loaded; unless: why nothing is to be moved, where that is known.
  explicit HugePages(std::string unless = {}) : reason_(std::move(unless)) {
    if (reason_.empty()) reason_ = ReasonAgainst();
    if (reason_.empty()) before_ = PrivateRegions();
  }

  // Puts what appeared since on huge pages.
  Moved Collapse() {
    Moved moved;
    moved.reason = reason_;
    if (!moved.reason.empty()) return moved;
    const auto start = std::chrono::steady_clock::now();
    Move(&moved);
    moved.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return moved;
  }

 private:
  using Span = std::pair<uintptr_t, uintptr_t>;  // begin and end

#ifdef __linux__
  static constexpr int kHugePage = 14;  // MADV_HUGEPAGE
  static constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1

  static std::string ReasonAgainst() {
    const char* chosen = std::getenv("COLLAGE_HUGE_PAGES");
    if (chosen != nullptr && std::strcmp(chosen, "0") == 0) return "COLLAGE_HUGE_PAGES=0";
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string line;
    if (!std::getline(file, line)) return "not supported here";
    if (line.find("[never]") != std::string::npos) return "switched off on this machine";
    return {};
  }

  // Anonymous private read-write regions of this process, ascending.
  static std::vector<Span> PrivateRegions() {
    std::vector<Span> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long long begin = 0, end = 0, inode = 0;
      char rights[8] = {};
      int name = 0;
      if (std::sscanf(line.c_str(), "%llx-%llx %7s %*s %*s %llu %n", &begin, &end, rights, &inode,
                      &name) < 4) {
        continue;
      }
      const std::string of = name != 0 ? line.substr(name) : std::string();
      const bool anonymous = of.empty() || of == "[heap]" || of.compare(0, 6, "[anon:") == 0;
      if (std::strcmp(rights, "rw-p") == 0 && inode == 0 && anonymous) {
        found.emplace_back(static_cast<uintptr_t>(begin), static_cast<uintptr_t>(end));
      }
    }
    return found;
  }

  void Move(Moved* moved) const {
    size_t size = 0;
    std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> size;
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (size < page) {
      moved->reason = "not supported here";
      return;
    }
    std::vector<unsigned char> seen(size / page);
    int refused = 0;
    // What was there before splits a region into what appeared around it.
    size_t place = 0;
    for (const Span& region : PrivateRegions()) {
      uintptr_t begin = region.first;
      while (place < before_.size() && before_[place].second <= begin) ++place;
      for (size_t at = place; begin < region.second; ++at) {
        const bool cut = at < before_.size() && before_[at].first < region.second;
        const uintptr_t end = cut ? before_[at].first : region.second;
        for (uintptr_t extent = (begin + size - 1) / size * size; extent + size <= end;
             extent += size) {
          if (MoveExtent(reinterpret_cast<void*>(extent), size, &seen, &refused)) {
            moved->bytes += size;
          }
          if (refused == ENOMEM) break;  // looking for room at every extent would take long
        }
        if (!cut || refused == ENOMEM) break;
        begin = before_[at].second;
      }
      if (refused == ENOMEM) break;
    }
    if (moved->bytes != 0) return;
    moved->reason = refused != 0
                        ? std::string("the kernel refused it: ") + std::strerror(refused)
                        : "the model holds no " + std::to_string(size >> 20) + " MiB in one piece";
  }

  static bool MoveExtent(void* extent, size_t size, std::vector<unsigned char>* seen,
                         int* refused) {
    if (mincore(extent, size, seen->data()) != 0) return false;  // gone by now
    size_t used = 0;
    for (const unsigned char value : *seen) used += value & 1;
    if (used * 2 < seen->size()) return false;
    if (madvise(extent, size, kCollapse) != 0) {
      *refused = errno;
      return false;
    }
    madvise(extent, size, kHugePage);  // given back and taken again, it shall come as a huge page
    return true;
  }
#else
  static std::string ReasonAgainst() { return "not Linux"; }
  static std::vector<Span> PrivateRegions() { return {}; }
  void Move(Moved*) const {}
#endif

  std::string reason_;
  std::vector<Span> before_;
};

}  // namespace collage

#endif  // COLLAGE_HUGE_PAGES_H_
