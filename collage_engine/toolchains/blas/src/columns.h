// Gathering what a convolution multiplies by (im2col), piece by piece.
#ifndef COLLAGE_BLAS_COLUMNS_H_
#define COLLAGE_BLAS_COLUMNS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

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

// Channels first: rows [k0, k0+ks) of (channel, i, j) by pixels [p0, p0+ps); `image` is the
// group's first channel. Written to out, row by row without gaps.
inline void GatherColumns(const Window& w, const float* image, int64_t k0, int64_t ks, int64_t p0,
                          int64_t ps, float* out) {
  for (int64_t k = k0; k < k0 + ks; ++k, out += ps) {
    int64_t j = k % w.kernel_w, i = k / w.kernel_w % w.kernel_h;
    const float* plane = image + k / (w.kernel_w * w.kernel_h) * w.height * w.width;
    int64_t shift = j * w.dilation_w - w.pad_w;
    float* d = out;
    for (int64_t p = p0; p < p0 + ps;) {
      int64_t oy = p / w.out_width, from = p % w.out_width;
      int64_t to = std::min(w.out_width, from + (p0 + ps - p));
      int64_t y = oy * w.stride_h + i * w.dilation_h - w.pad_h;
      if (y < 0 || y >= w.height) {
        std::memset(d, 0, sizeof(float) * static_cast<size_t>(to - from));
        d += to - from;
      } else {
        int64_t first, last;
        Inside(from, to, w.stride_w, shift, w.width, &first, &last);
        for (int64_t q = from; q < first; ++q) *d++ = 0.0f;
        const float* row = plane + y * w.width + shift;
        if (w.stride_w == 1) {
          std::memcpy(d, row + first, sizeof(float) * static_cast<size_t>(last - first));
          d += last - first;
        } else {
          for (int64_t q = first; q < last; ++q) *d++ = row[q * w.stride_w];
        }
        for (int64_t q = last; q < to; ++q) *d++ = 0.0f;
      }
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
