// A program: primitives over buffers, with one arena for everything that lives inside a call.
#ifndef COLLAGE_ONEDNN_PROGRAM_H_
#define COLLAGE_ONEDNN_PROGRAM_H_

#include <chrono>
#include <cstring>

#include "layout.h"

namespace collage {

using SetThreadsFunction = void (*)(int);

struct Buffer {
  enum Kind { kArena, kArgument, kConstant };
  Kind kind = kArena;
  size_t bytes = 0;
  int argument = -1;    // of kArgument
  int first = -1;       // first and last program step that touches it
  int last = -1;
  size_t offset = 0;    // of kArena, within the arena
  char* data = nullptr; // of kConstant
  Storage owned;        // of kConstant, once packed or copied
};

// A memory object of a step and where its data lies.
struct Slot {
  dnnl::memory memory;
  int buffer;
  size_t offset;  // bytes
};

struct Step {
  dnnl::primitive primitive;
  std::vector<dnnl_exec_arg_t> arguments;
  std::string what, implementation, takes, gives, fused;
  int threads = 1;
  int source = -1;             // the step of the plan that it belongs to; -1: none
  std::vector<double> us;      // of each call, where they are timed
};

struct Binding {
  const View* view;
  Desc desc;
  int name;
};

// Memory for what lives inside a call. All programs that a thread runs share it, since they run
// one after another: what one wrote is warm in the caches when the next one overwrites it.
inline char* SharedArena(size_t bytes) {
  thread_local Storage arena;
  thread_local size_t capacity = 0;
  if (bytes > capacity) {
    arena.reset();
    arena = Allocate(bytes);
    std::memset(arena.get(), 0, bytes);
    capacity = bytes;
  }
  return arena.get();
}

class Program {
 public:
  int NewBuffer(Buffer::Kind kind, size_t bytes) {
    Buffer buffer;
    buffer.kind = kind;
    buffer.bytes = bytes;
    buffers_.push_back(std::move(buffer));
    return static_cast<int>(buffers_.size()) - 1;
  }
  int NewArgument(int argument, size_t bytes) {
    int id = NewBuffer(Buffer::kArgument, bytes);
    buffers_[id].argument = argument;
    return id;
  }
  Buffer& buffer(int id) { return buffers_[id]; }
  const Buffer& buffer(int id) const { return buffers_[id]; }
  size_t buffer_count() const { return buffers_.size(); }
  const std::vector<Step>& steps() const { return steps_; }
  // What is appended from now on belongs to this step of the plan.
  void SetSource(int source) { source_ = source; }
  std::vector<Slot>& slots() { return slots_; }

  // OpenMP's thread count belongs to the calling thread: it is set when a primitive is made, which
  // divides the work, and again when it runs.
  void SetThreads(SetThreadsFunction function, int threads) {
    set_threads_ = function;
    threads_ = threads;
    set_threads_(threads);
  }

  // Append a primitive; its scratchpad becomes a buffer that lives for this step only.
  void Append(Step step, const dnnl::primitive_desc_base& pd, std::vector<Binding> bindings) {
    step.primitive = dnnl::primitive(pd.get());
    step.implementation = pd.impl_info_str();
    step.threads = threads_;
    step.source = source_;
    View scratch;
    Desc scratch_desc = pd.scratchpad_desc();
    if (!scratch_desc.is_zero() && scratch_desc.get_size() > 0) {
      scratch.buffer = NewBuffer(Buffer::kArena, scratch_desc.get_size());
      bindings.push_back({&scratch, scratch_desc, DNNL_ARG_SCRATCHPAD});
    }
    int index = static_cast<int>(steps_.size());
    for (const Binding& b : bindings) {
      Buffer& used = buffers_[b.view->buffer];
      if (used.first < 0) used.first = index;
      used.last = index;
      slots_.push_back({dnnl::memory(b.desc, Engine(), DNNL_MEMORY_NONE), b.view->buffer,
                        static_cast<size_t>(b.view->offset) * ItemBytes(b.desc)});
      step.arguments.push_back({b.name, slots_.back().memory.get()});
    }
    steps_.push_back(std::move(step));
  }

  // Lay the arena out, bind everything but the arguments. Nothing can be appended afterwards.
  void Finish() {
    PlanArena();
    for (Slot& slot : slots_) {
      const Buffer& b = buffers_[slot.buffer];
      if (b.kind == Buffer::kArena) {
        in_arena_.push_back({slot.memory.get(), b.offset + slot.offset});
      } else if (b.kind == Buffer::kConstant) {
        slot.memory.set_data_handle(b.data + slot.offset);
      } else {
        bound_.push_back({slot.memory.get(), b.argument, slot.offset});
      }
    }
  }

  void Run(dnnl::stream& stream, const std::vector<void*>& pointers) {
    if (pointers != last_) {
      for (const Bound& b : bound_) {
        Check(dnnl_memory_set_data_handle(b.memory,
                                          static_cast<char*>(pointers[b.argument]) + b.offset));
      }
      last_.assign(pointers.begin(), pointers.end());
    }
    if (char* arena = SharedArena(arena_bytes_); arena != arena_) {
      for (const InArena& slot : in_arena_) {
        Check(dnnl_memory_set_data_handle(slot.memory, arena + slot.offset));
      }
      arena_ = arena;
    }
    int threads = 0;
    for (Step& step : steps_) {
      auto began = timed_ ? Clock::now() : Clock::time_point();
      if (step.threads != threads) set_threads_(threads = step.threads);
      dnnl_status_t status = dnnl_primitive_execute(
          step.primitive.get(), stream.get(), static_cast<int>(step.arguments.size()),
          step.arguments.data());
      if (status != dnnl_success) {
        TVM_FFI_THROW(RuntimeError) << "oneDNN: step " << step.what << " failed ("
                                    << dnnl_status2str(status) << ")";
      }
      if (timed_) {
        step.us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
      }
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Bound {
    dnnl_memory_t memory;
    int argument;
    size_t offset;
  };
  struct InArena {
    dnnl_memory_t memory;
    size_t offset;
  };

  static void Check(dnnl_status_t status) {
    if (status != dnnl_success) {
      TVM_FFI_THROW(RuntimeError) << "oneDNN: " << dnnl_status2str(status);
    }
  }

  // Greedy by size: each buffer goes to the lowest gap that no buffer alive at the same time
  // covers (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference").
  void PlanArena() {
    std::vector<int> order;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].kind == Buffer::kArena && buffers_[i].first >= 0) {
        order.push_back(static_cast<int>(i));
      }
    }
    auto rounded = [&](int i) {
      return (buffers_[i].bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return buffers_[a].bytes > buffers_[b].bytes; });
    std::vector<int> placed;
    for (int i : order) {
      std::vector<std::pair<size_t, size_t>> busy;
      for (int j : placed) {
        if (buffers_[j].last >= buffers_[i].first && buffers_[i].last >= buffers_[j].first) {
          busy.push_back({buffers_[j].offset, buffers_[j].offset + rounded(j)});
        }
      }
      std::sort(busy.begin(), busy.end());
      size_t at = 0;
      for (auto [begin, end] : busy) {
        if (at + rounded(i) <= begin) break;
        at = std::max(at, end);
      }
      buffers_[i].offset = at;
      arena_bytes_ = std::max(arena_bytes_, at + rounded(i));
      placed.push_back(i);
    }
  }

  SetThreadsFunction set_threads_ = nullptr;
  int threads_ = 1;
  int source_ = -1;
  bool timed_ = LayersFolder() != nullptr;
  std::vector<Buffer> buffers_;
  std::vector<Step> steps_;
  std::vector<Slot> slots_;
  std::vector<Bound> bound_;
  std::vector<void*> last_;
  std::vector<InArena> in_arena_;
  char* arena_ = nullptr;  // to which in_arena_ is bound
  size_t arena_bytes_ = 0;
};

// A program's weights: packed while it is built, kept as the program reads them.
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

#endif  // COLLAGE_ONEDNN_PROGRAM_H_
