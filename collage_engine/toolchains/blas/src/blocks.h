// Products in pieces.
//
// A large product is cut so that the result's piece stays in the cache until everything that
// follows it has been applied, and so that gathered columns are used while they are hot. Where
// the library has kernels for small products that read their operands unpacked (OpenBLAS with
// AVX-512: up to 10^6 multiply-adds), pieces of that size are faster than one large product by
// 10 to 45 %, most of all where one extent is short and packing the other operand would cost as
// much as the product.
#ifndef COLLAGE_BLAS_BLOCKS_H_
#define COLLAGE_BLAS_BLOCKS_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "threads.h"

namespace collage {

// c (m×n) = op(a) (m×k) · op(b) (k×n) + beta·c, row major. Defined by the library's own file.
void Multiply(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k,
              const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
              int64_t ldc);
// y (rows) = op(a)·x + beta·y; a is rows×columns before op, x and y have the given strides.
void MultiplyVector(bool transposed, int64_t rows, int64_t columns, const float* a, int64_t lda,
                    const float* x, int64_t incx, float beta, float* y, int64_t incy);
// Multiply-adds of the largest product the library computes unpacked; 0 when it packs always.
double SmallProduct();
std::string LibraryName();

inline int64_t SecondLevelCache() {
  long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 512 * 1024;
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A piece of about `most`, so that equal pieces fill `extent`; a multiple of 16 when it is cut.
inline int64_t EvenPiece(int64_t extent, int64_t most) {
  if (extent <= most) return extent;
  int64_t piece = CeilDiv(extent, CeilDiv(extent, most));
  return std::min(extent, CeilDiv(piece, 16) * 16);
}

struct Blocks {
  int64_t m, n, k;
  bool rows_outside;  // whether row pieces are the outer loop
};

// `gathered`: whether one operand is gathered piece by piece into scratch memory (im2col): the
// columns of b, or with rows_outside the rows of a.
inline Blocks ChooseBlocks(int64_t m, int64_t n, int64_t k, bool rows_outside, bool gathered,
                           bool followed) {
  Blocks out{m, n, k, rows_outside};
  double small = SmallProduct();
  if (small > 0) {
    if (static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) <= small &&
        (!gathered || k * (rows_outside ? m : n) * 4 <= SecondLevelCache() / 2)) {
      return out;
    }
    // Over 13 products of ResNet-50 and BERT (Zen 4, interleaved), on the mean 5 % behind the best
    // of nine choices for each; the others are 4 to 7 % behind.
    out.k = EvenPiece(k, 192);
    int64_t& outer = rows_outside ? out.m : out.n;
    int64_t& inner = rows_outside ? out.n : out.m;
    outer = EvenPiece(rows_outside ? m : n, 224);
    auto fits = static_cast<int64_t>(small / static_cast<double>(out.k * outer));
    int64_t room = std::max<int64_t>(16, std::min<int64_t>(128, fits / 16 * 16));
    inner = std::min(rows_outside ? n : m, room);
    return out;
  }
  // Each piece packs the operand that is not cut again: pieces of at least 256, and no smaller
  // than what lets the result's piece and the gathered columns lie in the second-level cache.
  if (!gathered && !followed) return out;
  int64_t line = 4 * (gathered ? k + (rows_outside ? n : m) : (rows_outside ? n : m));
  int64_t room = std::max<int64_t>(256, SecondLevelCache() / 2 / std::max<int64_t>(1, line));
  (rows_outside ? out.m : out.n) = EvenPiece(rows_outside ? m : n, room);
  return out;
}

// The operand as it lies in memory.
struct Matrix {
  const float* data;
  int64_t ld;
  bool transposed;

  const float* At(int64_t row, int64_t column) const {
    return transposed ? data + column * ld + row : data + row * ld + column;
  }
};

// One outer piece of a product, from `begin` for `size`, over inner range [from, to).
// gather(begin, size, k0, size_k) returns the piece of the gathered operand; null: read in place.
// then(row, column, rows, columns) applies what follows to the finished piece of the result.
template <typename Gather, typename Then>
void OuterPiece(const Blocks& blocks, const Matrix& a, const Matrix& b, float* c, int64_t ldc,
                int64_t depth, int64_t begin, int64_t size, int64_t from, int64_t to,
                const Gather& gather, const Then& then) {
  for (int64_t k0 = 0; k0 < depth; k0 += blocks.k) {
    int64_t ks = std::min(blocks.k, depth - k0);
    Matrix gathered = gather(begin, size, k0, ks);
    const float beta = k0 == 0 ? 0.0f : 1.0f;
    int64_t step = blocks.rows_outside ? blocks.n : blocks.m;
    for (int64_t i = from; i < to; i += step) {
      int64_t is = std::min(step, to - i);
      if (blocks.rows_outside) {
        Matrix left = gathered.data ? gathered : Matrix{a.At(begin, k0), a.ld, a.transposed};
        Multiply(left.transposed, b.transposed, size, is, ks, left.data, left.ld, b.At(k0, i),
                 b.ld, beta, c + begin * ldc + i, ldc);
      } else {
        Matrix right = gathered.data ? gathered : Matrix{b.At(k0, begin), b.ld, b.transposed};
        Multiply(a.transposed, right.transposed, is, size, ks, a.At(i, k0), a.ld, right.data,
                 right.ld, beta, c + i * ldc + begin, ldc);
      }
    }
  }
  if (blocks.rows_outside) {
    then(begin, from, size, to - from);
  } else {
    then(from, begin, to - from, size);
  }
}

// Shares the outer pieces of `batches` products among threads; when they are too few, each is
// cut along the inner extent too. piece(batch, begin, size, from, to).
template <typename Piece>
void SharePieces(const Blocks& blocks, int64_t m, int64_t n, int64_t batches, int threads,
                 const Piece& piece) {
  int64_t extent = blocks.rows_outside ? m : n, inner = blocks.rows_outside ? n : m;
  int64_t step = blocks.rows_outside ? blocks.m : blocks.n;
  int64_t inner_step = blocks.rows_outside ? blocks.n : blocks.m;
  int64_t pieces = CeilDiv(extent, step);
  int64_t cuts = 1;
  if (threads > 1 && pieces * batches % threads != 0 && pieces * batches < 4 * threads) {
    cuts = std::min<int64_t>(threads, CeilDiv(inner, 16));
  }
  int64_t cut = CeilDiv(inner, cuts);
  if (cuts > 1) cut = cut > inner_step ? CeilDiv(cut, inner_step) * inner_step
                                       : CeilDiv(cut, 16) * 16;
  cuts = CeilDiv(inner, cut);
  Pool::Get().Run(batches * pieces * cuts, threads, [&](int64_t job) {
    int64_t part = job % cuts, at = job / cuts % pieces, batch = job / cuts / pieces;
    int64_t begin = at * step, from = part * cut;
    piece(batch, begin, std::min(step, extent - begin), from, std::min(inner, from + cut));
  });
}

}  // namespace collage

#endif  // COLLAGE_BLAS_BLOCKS_H_
