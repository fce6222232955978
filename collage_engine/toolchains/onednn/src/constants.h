// A program's weights: packed while it is built, kept as the program reads them.
#ifndef COLLAGE_ONEDNN_CONSTANTS_H_
#define COLLAGE_ONEDNN_CONSTANTS_H_

#include "program.h"

namespace collage {

class Constants {
 public:
  Constants(Program& program, dnnl::stream& stream) : program_(program), stream_(stream) {}

  // A constant of the plan, whose values are the buffer's data until Keep().
  void Add(int buffer) { constants_.push_back(buffer); }

  View Pack(const View& view, const Desc& wanted) {
    int buffer = Own(wanted.get_size());
    dnnl::memory from(view.desc, Engine(),
                      program_.buffer(view.buffer).data + view.offset * ItemBytes(view.desc));
    dnnl::memory into(wanted, Engine(), program_.buffer(buffer).data);
    dnnl::reorder(from, into).execute(stream_, from, into);
    stream_.wait();
    packed_.push_back(buffer);
    return {view.dims, wanted, buffer, 0};
  }

  View Zeros(const Dims& dims) {
    int buffer = Own(Elements(dims) * sizeof(float));
    std::memset(program_.buffer(buffer).data, 0, program_.buffer(buffer).bytes);
    return {dims, PlainDesc(dims), buffer, 0};
  }

  // Own what the program reads, and let the given bytes go.
  void Keep() {
    std::vector<bool> read(program_.buffer_count(), false);
    for (const Slot& slot : program_.slots()) read[slot.buffer] = true;
    for (int constant : constants_) {
      Buffer& buffer = program_.buffer(constant);
      const char* given = buffer.data;
      buffer.data = nullptr;
      if (!read[constant]) continue;
      buffer.owned = Allocate(buffer.bytes);
      std::memcpy(buffer.owned.get(), given, buffer.bytes);
      buffer.data = buffer.owned.get();
    }
    for (int packed : packed_) {
      // Packed on the way to another layout, or for an attempt that was given up.
      if (!read[packed]) program_.buffer(packed).owned.reset();
    }
  }

 private:
  // A new buffer with memory of its own.
  int Own(size_t bytes) {
    int id = program_.NewBuffer(Buffer::kConstant, bytes);
    Buffer& buffer = program_.buffer(id);
    buffer.owned = Allocate(bytes);
    buffer.data = buffer.owned.get();
    return id;
  }

  Program& program_;
  dnnl::stream& stream_;
  std::vector<int> constants_;  // buffers of what the plan was given
  std::vector<int> packed_;     // buffers of what was made of it
};

}  // namespace collage

#endif  // COLLAGE_ONEDNN_CONSTANTS_H_
