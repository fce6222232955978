// Gathering what a convolution multiplies by (im2col), piece by piece.
#ifndef COLLAGE_BLAS_COLUMNS_H_
#define COLLAGE_BLAS_COLUMNS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "functions.h"

namespace collage {

struct Window {
  int64_t channels;           // of one group
  int64_t all_channels;       // of the image, as it lies in memory
  int64_t height, width;      // of the data
  int64_t out_width;
  int64_t kernel_h, kernel_w;
  int64_t stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;

  int64_t depth() const { return channels * kernel_h * kernel_w; }
  // Whether the data are the columns: a 1×1 kernel that looks at every pixel.
  bool direct() const {
    return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 &&
           pad_w == 0;
  }
};

// First and last+1 of the positions q in [from, to) for which 0 ≤ q·stride + shift < extent.
inline void Inside(int64_t from, int64_t to, int64_t stride, int64_t shift, int64_t extent,
                   int64_t* first, int64_t* last) {
  int64_t low = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  int64_t high = extent - shift <= 0 ? 0 : (extent - shift + stride - 1) / stride;
  *first = std::min(to, std::max(from, low));
  *last = std::max(*first, std::min(to, high));
}

// d[i] = s[i·stride]. Most rows are short: a call of memcpy costs more than the copy.
COLLAGE_FAST inline void CopyRows(float* d, int64_t d_step, const float* s, int64_t s_step,
                                  int64_t stride, int64_t count, int64_t times) {
  for (int64_t t = 0; t < times; ++t, d += d_step, s += s_step) {
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) d[i] = s[i];
    } else if (stride == 2) {
      for (int64_t i = 0; i < count; ++i) d[i] = s[2 * i];
    } else {
      for (int64_t i = 0; i < count; ++i) d[i] = s[stride * i];
    }
  }
}

inline void ZeroRows(float* d, int64_t d_step, int64_t count, int64_t times) {
  for (int64_t t = 0; count > 0 && t < times; ++t, d += d_step) {
    for (int64_t i = 0; i < count; ++i) d[i] = 0.0f;
  }
}

// Channels first: rows [k0, k0+ks) of (channel, i, j) by pixels [p0, p0+ps); `image` is the
// group's first channel. Written to out, row by row without gaps. What is inside the image is
// the same for every channel, so channels are the innermost loop.
inline void GatherColumns(const Window& w, const float* image, int64_t k0, int64_t ks, int64_t p0,
                          int64_t ps, float* out) {
  const int64_t taps = w.kernel_h * w.kernel_w, plane = w.height * w.width;
  for (int64_t tap = 0; tap < taps; ++tap) {
    // Channels whose row of this tap is wanted.
    int64_t c0 = k0 <= tap ? 0 : (k0 - tap + taps - 1) / taps;
    int64_t times = c0 * taps + tap >= k0 + ks ? 0 : (k0 + ks - 1 - tap) / taps - c0 + 1;
    if (times == 0) continue;
    int64_t i = tap / w.kernel_w, shift = tap % w.kernel_w * w.dilation_w - w.pad_w;
    float* d = out + (c0 * taps + tap - k0) * ps;
    const int64_t step = taps * ps;
    for (int64_t p = p0; p < p0 + ps;) {
      int64_t oy = p / w.out_width, from = p % w.out_width;
      int64_t to = std::min(w.out_width, from + (p0 + ps - p));
      int64_t y = oy * w.stride_h + i * w.dilation_h - w.pad_h;
      if (y < 0 || y >= w.height) {
        ZeroRows(d, step, to - from, times);
      } else {
        int64_t first, last;
        Inside(from, to, w.stride_w, shift, w.width, &first, &last);
        ZeroRows(d, step, first - from, times);
        CopyRows(d + (first - from), step,
                 image + c0 * plane + y * w.width + shift + first * w.stride_w, plane, w.stride_w,
                 last - first, times);
        ZeroRows(d + (last - from), step, to - last, times);
      }
      d += to - from;
      p += to - from;
    }
  }
}

// Channels last: pixels [p0, p0+ps) by columns [k0, k0+ks) of (i, j, channel); `image` is the
// first pixel's first channel of the group.
inline void GatherRows(const Window& w, const float* image, int64_t k0, int64_t ks, int64_t p0,
                       int64_t ps, float* out) {
  for (int64_t p = p0; p < p0 + ps; ++p) {
    int64_t oy = p / w.out_width, ox = p % w.out_width;
    for (int64_t k = k0; k < k0 + ks;) {
      int64_t c = k % w.channels, tap = k / w.channels;
      int64_t count = std::min(w.channels - c, k0 + ks - k);
      int64_t y = oy * w.stride_h + tap / w.kernel_w * w.dilation_h - w.pad_h;
      int64_t x = ox * w.stride_w + tap % w.kernel_w * w.dilation_w - w.pad_w;
      size_t bytes = sizeof(float) * static_cast<size_t>(count);
      if (y < 0 || y >= w.height || x < 0 || x >= w.width) {
        std::memset(out, 0, bytes);
      } else {
        std::memcpy(out, image + (y * w.width + x) * w.all_channels + c, bytes);
      }
      out += count;
      k += count;
    }
  }
}

}  // namespace collage

#endif  // COLLAGE_BLAS_COLUMNS_H_
