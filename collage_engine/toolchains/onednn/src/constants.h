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
                      program_.buffer(view.buffer).data + view.offset * sizeof(float));
    dnnl::memory into(wanted, Engine(), to.data);
    dnnl::reorder(from, into).execute(stream_, from, into);
    stream_.wait();
    bool whole = static_cast<size_t>(Elements(view.dims)) * sizeof(float) ==
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
      for (const Packed& packed : packed_) {
        if (packed.source.buffer == constant.buffer && packed.whole && read[packed.buffer]) {
          constant.packed = &packed;
        }
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

  // The weights as they were given. Packing only moves elements, so it is undone exactly.
  void Restore(char* to) {
    for (const Constant& constant : constants_) {
      const Buffer& buffer = program_.buffer(constant.buffer);
      if (buffer.data != nullptr) {
        std::memcpy(to + constant.offset, buffer.data, constant.bytes);
        continue;
      }
      const Packed& packed = *constant.packed;
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
  };
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
