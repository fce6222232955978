// The SHA-256 of an artifact's files, compared with the manifest's before anything is loaded.
//
// SHA-256 is written out here (FIPS 180-4), since a loader that links TVM's runtime only would need a
// cryptographic library, of the right version, for these sixty lines.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace collage {

using Sha256State = std::array<uint32_t, 8>;

inline uint32_t Turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

// Mixes a block of 64 bytes into the state.
inline void MixBlock(Sha256State& state, const char* content) {
  const auto* block = reinterpret_cast<const unsigned char*>(content);
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
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 | static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = Turn(w[i - 15], 7) ^ Turn(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t b = Turn(w[i - 2], 17) ^ Turn(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  std::array<uint32_t, 8> s = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = Turn(s[4], 6) ^ Turn(s[4], 11) ^ Turn(s[4], 25);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t first = s[7] + e + choice + kRound[i] + w[i];
    const uint32_t a = Turn(s[0], 2) ^ Turn(s[0], 13) ^ Turn(s[0], 22);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {first + a + majority, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (size_t i = 0; i < 8; ++i) state[i] += s[i];
}

// The SHA-256 of a file as hexadecimal digits. Throws when it is missing or no regular file: opening a pipe could
// wait for ever.
inline std::string HashOf(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw std::runtime_error(path + " is missing or no regular file");
  std::ifstream file(path, std::ios::binary);
  Sha256State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  char block[64];
  uint64_t bytes = 0;
  for (; file.read(block, sizeof block); bytes += sizeof block) MixBlock(state, block);
  // The end: what is left, a bit, zeros, and the number of bits in the last eight bytes.
  std::string end(block, static_cast<size_t>(file.gcount()));
  bytes += end.size();
  end += '\x80';
  end.resize(end.size() <= 56 ? 64 : 128);
  for (size_t i = 0; i < 8; ++i) end[end.size() - 1 - i] = static_cast<char>(bytes * 8 >> 8 * i);
  for (size_t at = 0; at < end.size(); at += sizeof block) MixBlock(state, end.data() + at);
  if (file.bad()) throw std::runtime_error(path + " cannot be read");
  std::string text;
  char digits[9];
  for (const uint32_t word : state) {
    std::snprintf(digits, sizeof digits, "%08x", word);
    text += digits;
  }
  return text;
}

}  // namespace collage
