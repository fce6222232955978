// Views: how a tensor lies in a buffer. Strided views are transposed, reshaped and sliced without
// touching memory; blocked layouts (chosen by the library) are opaque.
#ifndef COLLAGE_ONEDNN_LAYOUT_H_
#define COLLAGE_ONEDNN_LAYOUT_H_

#include <algorithm>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_debug.h>
#include <optional>
#include <string>
#include <vector>

#include "collage_module.h"

namespace collage {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using Type = dnnl::memory::data_type;
inline constexpr Type kFloat = Type::f32;
inline constexpr Type kBrain = Type::bf16;

// Bytes of an element.
inline size_t ItemBytes(Type type) { return dnnl::memory::data_type_size(type); }
inline size_t ItemBytes(const Desc& desc) { return ItemBytes(desc.get_data_type()); }

inline Type TypeOf(const std::string& name) {
  if (name.empty() || name == "float32") return Type::f32;
  if (name == "bfloat16") return kBrain;
  TVM_FFI_THROW(TypeError) << "the oneDNN runtime takes no " << name;
  TVM_FFI_UNREACHABLE();
}

inline dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

inline int64_t Elements(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>());
}

// Strides of a dense tensor whose axes lie in `order`, outermost first.
inline Dims StridesInOrder(const Dims& dims, const std::vector<int64_t>& order) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = stride;
    stride *= dims[order[k]];
  }
  return strides;
}

inline std::vector<int64_t> PlainOrder(size_t rank) {
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline std::vector<int64_t> ChannelsLastOrder(size_t rank) {
  std::vector<int64_t> order = PlainOrder(rank);
  if (rank >= 3) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  return order;
}

inline Desc PlainDesc(const Dims& dims, Type type = kFloat) {
  return Desc(dims, type, StridesInOrder(dims, PlainOrder(dims.size())));
}

inline Desc ChannelsLastDesc(const Dims& dims, Type type = kFloat) {
  return Desc(dims, type, StridesInOrder(dims, ChannelsLastOrder(dims.size())));
}

inline Desc AnyDesc(const Dims& dims, Type type = kFloat) {
  return Desc(dims, type, dnnl::memory::format_tag::any);
}

// Equal but for the strides of axes of extent one, which mean nothing.
inline bool SameStrides(const Dims& dims, const Dims& a, const Dims& b) {
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] != 1 && a[d] != b[d]) return false;
  }
  return true;
}

inline bool IsStrided(const Desc& desc) {
  return desc.get_format_kind() == dnnl::memory::format_kind::blocked &&
         desc.get_inner_nblks() == 0 && desc.get_padded_dims() == desc.get_dims();
}

// Equal element type and place in memory.
inline bool SameLayout(const Desc& a, const Desc& b) {
  if (a == b) return true;
  return IsStrided(a) && IsStrided(b) && a.get_data_type() == b.get_data_type() &&
         a.get_dims() == b.get_dims() &&
         SameStrides(a.get_dims(), a.get_strides(), b.get_strides());
}

struct View {
  Dims dims;
  Desc desc;
  int buffer = -1;
  int64_t offset = 0;  // elements from the buffer's start

  Type type() const { return desc.get_data_type(); }
  size_t byte_offset() const { return static_cast<size_t>(offset) * ItemBytes(type()); }
  bool strided() const { return IsStrided(desc); }
  bool plain() const { return SameLayout(desc, PlainDesc(dims, type())); }
  bool channels_last() const {
    return dims.size() >= 3 && SameLayout(desc, ChannelsLastDesc(dims, type()));
  }
  // Every element of the covered span belongs to it: what elementwise kernels want.
  bool dense() const {
    return !strided() || desc.get_size() == static_cast<size_t>(Elements(dims)) * ItemBytes(desc);
  }
};

// A strided desc; dense row-major and channels-last ones get the library's own strides for axes
// of extent one, by which it recognises its format tags.
inline Desc StridedDesc(const Dims& dims, const Dims& strides, Type type = kFloat) {
  for (const auto& order : {PlainOrder(dims.size()), ChannelsLastOrder(dims.size())}) {
    Dims known = StridesInOrder(dims, order);
    if (SameStrides(dims, strides, known)) return Desc(dims, type, known);
  }
  Dims chosen = strides;
  for (size_t d = dims.size(); d-- > 0;) {
    // Any value will do; the span of the inner axes keeps the library's checks content.
    if (dims[d] == 1) chosen[d] = d + 1 < dims.size() ? chosen[d + 1] * dims[d + 1] : 1;
  }
  return Desc(dims, type, chosen);
}

// The same strides under another element type; row-major where the layout has none.
inline Desc Retyped(const Desc& desc, Type type) {
  if (desc.get_data_type() == type) return desc;
  if (!IsStrided(desc)) return PlainDesc(desc.get_dims(), type);
  return StridedDesc(desc.get_dims(), desc.get_strides(), type);
}

inline View Permuted(const View& view, const std::vector<int64_t>& axes) {
  Dims strides = view.desc.get_strides(), dims, moved;
  for (int64_t axis : axes) {
    dims.push_back(view.dims[axis]);
    moved.push_back(strides[axis]);
  }
  return {dims, StridedDesc(dims, moved, view.type()), view.buffer, view.offset};
}

inline View Sliced(const View& view, const Dims& begin, const Dims& step, const Dims& dims) {
  Dims strides = view.desc.get_strides();
  int64_t offset = view.offset;
  for (size_t d = 0; d < dims.size(); ++d) {
    offset += begin[d] * strides[d];
    strides[d] *= step[d];
  }
  return {dims, StridedDesc(dims, strides, view.type()), view.buffer, offset};
}

// The same elements in row-major order under other dims, or nothing when that needs a copy.
inline std::optional<View> Reshaped(const View& view, const Dims& dims) {
  if (view.plain()) return View{dims, PlainDesc(dims, view.type()), view.buffer, view.offset};
  Desc desc = view.desc.reshape(dims, true);
  if (desc.get(true) == nullptr) return std::nullopt;
  return View{dims, StridedDesc(dims, desc.get_strides(), view.type()), view.buffer, view.offset};
}

inline std::string LayoutName(const Desc& desc) {
  if (desc.is_zero()) return "none";
  Dims dims = desc.get_dims();
  Type type = desc.get_data_type();
  std::string suffix = type == kBrain ? " bf16" : "";
  if (IsStrided(desc)) {
    if (SameLayout(desc, PlainDesc(dims, type))) return "plain" + suffix;
    if (dims.size() >= 3 && SameLayout(desc, ChannelsLastDesc(dims, type))) {
      return "channels-last" + suffix;
    }
    return "strided" + suffix;
  }
  std::string name = "blocked";
  Dims blocks = desc.get_inner_blks(), indices = desc.get_inner_idxs();
  for (size_t i = 0; i < blocks.size(); ++i) {
    name += (i ? "" : " ") + std::to_string(blocks[i]) + std::string(1, 'a' + indices[i]);
  }
  return name + suffix;
}

}  // namespace collage

#endif  // COLLAGE_ONEDNN_LAYOUT_H_
