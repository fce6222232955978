// What is checked of an artifact before anything of it is loaded, as run_artifact.py does it: names
// inside the folder, regular files, their SHA-256, and environment variables that it may set.
//
// SHA-256 is written out here (FIPS 180-4), since a loader that links TVM's runtime only would need a
// cryptographic library, of the right version, for these sixty lines.

#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace collage {

// How the name ends of a variable that a manifest may set; run_artifact.py has the same list.
constexpr const char* kKnownEndings[] = {
    "_BIND_THREADS",
    "_BLOCKTIME",
    "_DYNAMIC",
    "_NUM_THREADS",
    "_SPINCOUNT",
    "_SPIN_COUNT",
    "_THREADING_LAYER",
    "_WAIT_POLICY",
};

// Files that a runtime reads where they lie beside its library, to learn which others to load;
// run_artifact.py has the same list.
constexpr const char* kLibraryLists[] = {
    "plugins.xml",
};

// Whether a manifest may set a variable of this name.
inline bool IsKnown(const std::string& name) {
  if (name.size() < 2 || name.size() > 61 || name[0] < 'A' || name[0] > 'Z') return false;
  for (const char c : name) {
    if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  for (const std::string ending : kKnownEndings) {
    if (name.size() >= ending.size() &&
        name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
      return true;
    }
  }
  return false;
}

// Throws unless a manifest may set this variable to this value: a number or a word, never a path.
inline void CheckVariable(const std::string& name, const std::string& value) {
  if (!IsKnown(name)) {
    throw std::runtime_error("the manifest sets the environment variable '" + name.substr(0, 80) +
                             "', which no artifact does");
  }
  bool plain = !value.empty() && value.size() <= 32;
  for (const char c : value) {
    plain = plain && (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ',');
  }
  if (!plain) throw std::runtime_error("the manifest sets " + name + " to what no artifact does");
}

class Sha256 {
 public:
  void Add(const unsigned char* data, size_t size) {
    total_ += size;
    while (size > 0) {
      const size_t take = std::min(size, block_.size() - filled_);
      std::memcpy(block_.data() + filled_, data, take);
      filled_ += take;
      data += take;
      size -= take;
      if (filled_ == block_.size()) {
        Mix();
        filled_ = 0;
      }
    }
  }

  // Hexadecimal digits; nothing can be added afterwards.
  std::string Digest() {
    const uint64_t bits = total_ * 8;
    const unsigned char one = 0x80, zero = 0;
    Add(&one, 1);
    while (filled_ != 56) Add(&zero, 1);
    unsigned char size[8];
    for (int i = 0; i < 8; ++i) size[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
    Add(size, 8);
    std::string text;
    char digits[9];
    for (const uint32_t word : state_) {
      std::snprintf(digits, sizeof digits, "%08x", word);
      text += digits;
    }
    return text;
  }

 private:
  static uint32_t Turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

  void Mix() {
    static constexpr uint32_t kRound[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = static_cast<uint32_t>(block_[4 * i]) << 24 | static_cast<uint32_t>(block_[4 * i + 1]) << 16 |
             static_cast<uint32_t>(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = Turn(w[i - 15], 7) ^ Turn(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t b = Turn(w[i - 2], 17) ^ Turn(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    std::array<uint32_t, 8> s = state_;
    for (int i = 0; i < 64; ++i) {
      const uint32_t e = Turn(s[4], 6) ^ Turn(s[4], 11) ^ Turn(s[4], 25);
      const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
      const uint32_t first = s[7] + e + choice + kRound[i] + w[i];
      const uint32_t a = Turn(s[0], 2) ^ Turn(s[0], 13) ^ Turn(s[0], 22);
      const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
      s = {first + a + majority, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

// A text without control characters, by which a name could change the terminal that it is printed on.
inline std::string Printable(const std::string& text) {
  std::string found;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool second = i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;  // of U+0080 to U+009F
    if (byte < 0x20 || byte == 0x7f || (second && byte < 0xa0)) {
      char code[5];
      std::snprintf(code, sizeof code, "\\x%02x", byte);
      found += code;
    } else {
      found += text[i];
    }
  }
  return found;
}

// Throws unless a manifest can be parsed without harm: by its size, and by how deep it is nested, since
// parsers of JSON call themselves.
inline void CheckJson(const std::string& text) {
  constexpr size_t kLargest = 64 << 20;
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && text.size() <= kLargest && depth <= kDeepest; ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      ++depth;
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  if (text.size() > kLargest || depth > kDeepest) throw std::runtime_error("manifest.json is no manifest of an artifact");
}

// The SHA-256 of a file of the folder, by its name in the manifest. Throws when it is missing, outside
// of the folder, or no regular file: opening a pipe could wait for ever.
inline std::string HashOfListed(const std::string& folder, const std::string& name) {
  namespace fs = std::filesystem;
  if (name.find('\0') != std::string::npos) {
    const std::string text = Printable(name.substr(0, 80));  // the sentence would end at the zero
    throw std::runtime_error("the manifest names '" + text + "', which no file can be called");
  }
  const std::string shown = name.substr(0, 80);
  const fs::path relative(name);
  bool inside = !name.empty() && !relative.is_absolute();
  for (const fs::path& part : relative) inside = inside && part != "..";
  std::error_code error;
  const fs::path path = fs::canonical(fs::path(folder) / relative, error);
  if (inside && error) throw std::runtime_error(shown + " is missing");
  const fs::path root = fs::canonical(folder, error);
  const fs::path below = path.lexically_relative(root);
  if (!inside || below.empty() || *below.begin() == "..") {
    throw std::runtime_error("the manifest names '" + shown + "', outside the folder");
  }
  struct stat about {};
  if (stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) {
    throw std::runtime_error(shown + " is no regular file");
  }
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) throw std::runtime_error(shown + " cannot be read");
  Sha256 hash;
  std::vector<unsigned char> buffer(1 << 20);
  ssize_t count = 0;
  while ((count = read(file, buffer.data(), buffer.size())) > 0) {
    hash.Add(buffer.data(), static_cast<size_t>(count));
  }
  close(file);
  if (count < 0) throw std::runtime_error(shown + " cannot be read");
  return hash.Digest();
}

// Whether a file of this name is a library, or says which are to be loaded. The case counts for nothing,
// as on disks that do not tell libm.so from LIBM.SO.
inline bool BringsCode(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (const std::string list : kLibraryLists) {
    if (name == list) return true;
  }
  return name.find(".so") != std::string::npos;
}

// Throws when the folder holds a library that is not listed. The system would find it there, or in
// folders below that are named after the processor (glibc-hwcaps, tls and others), which are searched
// before. A runtime looks there for lists of more.
template <typename Listed>
void CheckLibraries(const std::string& folder, const Listed& listed) {
  namespace fs = std::filesystem;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink() && entry.is_directory()) {
      throw std::runtime_error("it holds the folder '" + path.substr(0, 80) + "', which is a link");
    }
    const bool library = BringsCode(entry.path().filename().string());
    if (library && !entry.is_directory() && !listed(path)) {
      throw std::runtime_error("it holds the library '" + path.substr(0, 80) +
                               "', which the manifest does not list");
    }
  }
}

}  // namespace collage
