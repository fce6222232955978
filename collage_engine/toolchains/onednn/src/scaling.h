// Scales and zero points of a step's 8-bit operands and result: values that primitives read when
// they run. `real = scale · (q − zero)`; a result is rounded half to even and saturated.
#ifndef COLLAGE_ONEDNN_SCALING_H_
#define COLLAGE_ONEDNN_SCALING_H_

#include "layout.h"

namespace collage {

struct Scaling {
  struct Entry {
    int argument;        // DNNL_ARG_SRC …
    int64_t scale = -1;  // plan values; -1: one, or zero
    int64_t zero = -1;
    int mask = 0;  // bits of the axes along which they vary
  };
  std::vector<Entry> entries;

  void AddTo(dnnl::primitive_attr& attr) const {
    for (const Entry& e : entries) {
      if (e.scale >= 0) attr.set_scales_mask(e.argument, e.mask);
      if (e.zero >= 0) attr.set_zero_points_mask(e.argument, e.mask);
    }
  }

  // The entries of the result only, or of everything else.
  Scaling Part(bool result) const {
    Scaling part;
    for (const Entry& e : entries) {
      if ((e.argument == DNNL_ARG_DST) == result) part.entries.push_back(e);
    }
    return part;
  }
};

}  // namespace collage

#endif  // COLLAGE_ONEDNN_SCALING_H_
