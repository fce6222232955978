// A program's weights: packed while it is built, kept once, given back as they came.
#ifndef COLLAGE_ONEDNN_CONSTANTS_H_
#define COLLAGE_ONEDNN_CONSTANTS_H_

#include "program.h"

namespace collage {

class Constants {
 public:
  Constants(Program& program, dnnl::stream& stream) : program_(program), stream_(stream) {}

  // A constant of the plan, whose values are the buffer's data until Keep().
  void Add(int buffer, size_t offset, size_t bytes) {
    constants_.push_back({buffer, offset, bytes});
  }

  View Pack(const View& view, const Desc& wanted) {
    int buffer = program_.NewBuffer(Buffer::kConstant, wanted.get_size());
    Buffer& to = program_.buffer(buffer);
    to.owned = Allocate(to.bytes);
    to.data = to.owned.get();
    dnnl::memory from(view.desc, Engine(),
                      program_.buffer(view.buffer).data + view.offset * ItemBytes(view.desc));
    dnnl::memory into(wanted, Engine(), to.data);
    dnnl::reorder(from, into).execute(stream_, from, into);
    stream_.wait();
    bool whole = static_cast<size_t>(Elements(view.dims)) * ItemBytes(view.desc) ==
                 program_.buffer(view.buffer).bytes;
    packed_.push_back({view, wanted, buffer, whole});
    return {view.dims, wanted, buffer, 0};
  }

  View Zeros(const Dims& dims) {
    int buffer = program_.NewBuffer(Buffer::kConstant, Elements(dims) * sizeof(float));
    Buffer& to = program_.buffer(buffer);
    to.owned = Allocate(to.bytes);
    to.data = to.owned.get();
    std::memset(to.data, 0, to.bytes);
    return {dims, PlainDesc(dims), buffer, 0};
  }

  // Own what the program reads, then let the given bytes go; see Restore().
  void Keep() {
    std::vector<bool> read(program_.buffer_count(), false);
    for (const Slot& slot : program_.slots()) read[slot.buffer] = true;
    for (Constant& constant : constants_) {
      Buffer& buffer = program_.buffer(constant.buffer);
      bool exactly = false;  // whether anything reads all bits of the constant
      for (const Packed& packed : packed_) {
        if (packed.source.buffer != constant.buffer || !read[packed.buffer]) continue;
        exactly |= packed.exact();
        if (packed.whole && Recoverable(packed) &&
            (constant.packed == nullptr || packed.exact())) {
          constant.packed = &packed;
        }
      }
      if (constant.packed != nullptr && exactly && !constant.packed->exact()) {
        constant.packed = nullptr;
      }
      if (!read[constant.buffer] && constant.packed != nullptr) {
        buffer.data = nullptr;
      } else {
        buffer.owned = Allocate(constant.bytes);
        std::memcpy(buffer.owned.get(), buffer.data, constant.bytes);
        buffer.data = buffer.owned.get();
      }
    }
    for (const Packed& packed : packed_) {
      // Packed on the way to another layout, or for an attempt that was given up.
      if (!read[packed.buffer]) program_.buffer(packed.buffer).owned.reset();
    }
  }

  // The weights as they were given. Packing only moves elements, so it is undone exactly; what
  // is read in bfloat16 alone comes back rounded to it, which packs to the same bits again.
  void Restore(char* to) {
    for (const Constant& constant : constants_) {
      const Buffer& buffer = program_.buffer(constant.buffer);
      if (buffer.data != nullptr) {
        std::memcpy(to + constant.offset, buffer.data, constant.bytes);
        continue;
      }
      const Packed& packed = *constant.packed;
      if (IsSmall(packed.desc.get_data_type())) {
        Unpack(packed, to + constant.offset);
        continue;
      }
      dnnl::memory from(packed.desc, Engine(), program_.buffer(packed.buffer).data);
      dnnl::memory into(packed.source.desc, Engine(), to + constant.offset);
      dnnl::reorder(from, into).execute(stream_, from, into);
    }
    stream_.wait();
  }

 private:
  struct Packed {
    View source;
    Desc desc;
    int buffer;
    bool whole;  // holds every element of the constant

    bool exact() const { return desc.get_data_type() == source.type(); }
  };

  // 8-bit weights may be packed with sums of their own behind them, which no reorder undoes: the
  // elements are picked one by one.
  void Unpack(const Packed& packed, char* to) const {
    const Dims& dims = packed.source.dims;
    Dims strides = packed.desc.get_strides(), blocks = packed.desc.get_inner_blks(),
         axes = packed.desc.get_inner_idxs(), out = packed.source.desc.get_strides();
    const char* data = program_.buffer(packed.buffer).data;
    Dims at(dims.size(), 0);
    for (int64_t count = Elements(dims); count-- > 0;) {
      Dims outer = at;
      int64_t from = 0, stride = 1, into = packed.source.offset;
      for (size_t k = blocks.size(); k-- > 0;) {
        from += outer[axes[k]] % blocks[k] * stride;
        stride *= blocks[k];
        outer[axes[k]] /= blocks[k];
      }
      for (size_t d = 0; d < dims.size(); ++d) {
        from += outer[d] * strides[d];
        into += at[d] * out[d];
      }
      to[into] = data[from];
      for (size_t d = dims.size(); d-- > 0;) {
        if (++at[d] < dims[d]) break;
        at[d] = 0;
      }
    }
  }

  // Whether packing can be undone, and kept every value: without VNNI the library may halve 8-bit
  // weights.
  bool Recoverable(const Packed& packed) const {
    if (!IsSmall(packed.desc.get_data_type())) {
      // The library knows no way back from some layouts of its own, such as those of RNN weights.
      return static_cast<bool>(dnnl::reorder::primitive_desc(
          Engine(), packed.desc, Engine(), packed.source.desc, dnnl::primitive_attr(), true));
    }
    const Buffer& given = program_.buffer(packed.source.buffer);
    std::string bytes(given.bytes, '\0');
    Unpack(packed, bytes.data());
    return std::memcmp(bytes.data(), given.data, given.bytes) == 0;
  }

  struct Constant {
    int buffer;
    size_t offset, bytes;
    const Packed* packed = nullptr;
  };

  Program& program_;
  dnnl::stream& stream_;
  std::vector<Constant> constants_;
  std::vector<Packed> packed_;
};

}  // namespace collage

#endif  // COLLAGE_ONEDNN_CONSTANTS_H_
