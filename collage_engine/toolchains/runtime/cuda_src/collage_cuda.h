// What the runtime modules of toolchains for NVIDIA devices share.
//
// Everything is made ready before the first call where a device is there, at load or when the
// module is created: handles, weights on the device, workspaces, the choice of algorithms. A call
// only launches, on the caller's stream; it allocates nothing and waits for nothing, so it can be
// captured into a CUDA graph. Without a device a module can be made and serialised, not called.
#ifndef COLLAGE_CUDA_H_
#define COLLAGE_CUDA_H_

#include <cuda_runtime_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <memory>

#include "collage_module.h"

namespace collage {

inline void CheckCuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // what is not sticky must not be blamed on the next call
    TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status);
  }
}

inline bool HasDevice() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return count > 0;
}

// Memory on the current device, owned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) : size_(size) {
    if (size > 0) CheckCuda(cudaMalloc(&data_, size), "allocating device memory");
  }
  DeviceBuffer(const void* from, size_t size) : DeviceBuffer(size) {
    if (size > 0) {
      CheckCuda(cudaMemcpy(data_, from, size, cudaMemcpyHostToDevice), "copying to the device");
    }
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) cudaFree(data_);
  }
  void* data() const { return data_; }
  char* at(size_t offset) const { return static_cast<char*>(data_) + offset; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Two events around work on a stream; for choosing between algorithms, never in a call.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    CheckCuda(cudaEventCreate(&begin_), "creating an event");
    CheckCuda(cudaEventCreate(&end_), "creating an event");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // Median milliseconds of one call of `work`, after a call to warm up.
  template <typename F>
  float Time(F work, int rounds = 5, int calls = 4) {
    work();
    std::vector<float> taken;
    for (int r = 0; r < rounds; ++r) {
      CheckCuda(cudaEventRecord(begin_, stream_), "recording an event");
      for (int c = 0; c < calls; ++c) work();
      CheckCuda(cudaEventRecord(end_, stream_), "recording an event");
      CheckCuda(cudaEventSynchronize(end_), "waiting for the device");
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "reading events");
      taken.push_back(ms / calls);
    }
    std::nth_element(taken.begin(), taken.begin() + rounds / 2, taken.end());
    return taken[rounds / 2];
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Which of so many ways to do a step takes the least time; -1: none of them runs.
template <typename F>
int Fastest(cudaStream_t stream, int count, F run) {
  Stopwatch watch(stream);
  int fastest = -1;
  float least = 0;
  for (int i = 0; i < count; ++i) {
    float ms;
    try {
      ms = watch.Time([&] { run(i); });
    } catch (const ffi::Error&) {
      continue;  // refused when it came to it, as where it needs more shared memory than there is
    }
    if (fastest < 0 || ms < least) {
      least = ms;
      fastest = i;
    }
  }
  return fastest;
}

// A plan module whose arguments lie on an NVIDIA device.
class CudaModule : public PlanModule {
 public:
  CudaModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : PlanModule(symbol, plan_text),
        weights_(weights.owner ? *weights.owner : ffi::Bytes(weights.data, weights.size)) {}

 protected:
  // Handles, weights, workspaces and algorithms; called once, where a device is there.
  virtual void Prepare(cudaStream_t stream) = 0;
  // Enqueue the work on the stream; pointers() holds the arguments.
  virtual void Launch(cudaStream_t stream) = 0;

  // To be called at the end of a derived constructor.
  void PrepareIfPossible() {
    if (HasDevice()) {
      EnsureReady(nullptr);
      CheckCuda(cudaStreamSynchronize(nullptr), "making ready");
    }
  }

  void Execute() final {
    auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device_));
    EnsureReady(stream);
    Launch(stream);
  }

  DLDeviceType device_type() const final { return kDLCUDA; }
  ffi::Bytes Weights() const final { return weights_; }
  const char* weight(size_t offset) const { return weights_.data() + offset; }
  size_t weight_bytes() const { return weights_.size(); }
  bool ready() const { return ready_; }

 private:
  void EnsureReady(cudaStream_t stream) {
    if (ready_) return;
    CheckCuda(cudaGetDevice(&device_), "finding the device");
    Prepare(stream);
    ready_ = true;
  }

  ffi::Bytes weights_;
  int device_ = 0;
  bool ready_ = false;
};

// Memory like the arguments', to choose algorithms on before the arguments are known. It holds
// small numbers, not zeros, on which products run faster than on real data.
class StandIns {
 public:
  StandIns(const std::vector<TensorSpec>& inputs, const std::vector<TensorSpec>& outputs,
           std::vector<void*>* pointers) {
    uint32_t state = 2463534242u;
    for (const std::vector<TensorSpec>* specs : {&inputs, &outputs}) {
      for (const TensorSpec& spec : *specs) {
        std::vector<uint8_t> noise(std::max<size_t>(spec.bytes, 16));
        size_t size = (spec.dtype.bits + 7) / 8;
        for (size_t i = 0; i < noise.size(); ++i) {
          state ^= state << 13, state ^= state >> 17, state ^= state << 5;
          // The high byte of a float of any width stays below that of 2.
          noise[i] = static_cast<uint8_t>(i % size == size - 1 ? 0x30 + state % 12 : state);
        }
        buffers_.emplace_back(noise.data(), noise.size());
        pointers->push_back(buffers_.back().data());
      }
    }
  }

 private:
  std::vector<DeviceBuffer> buffers_;
};

// Where a step's operand lies: an argument of the call, a weight, or a temporary.
struct Operand {
  explicit Operand(const json::Object& about)
      : where(GetString(about, "where")),
        at(static_cast<size_t>(Get<int64_t>(about, "at"))),
        offset(static_cast<size_t>(GetInt(about, "offset", 0))) {}
  // That of a step which a plan has under a key, if it has one.
  static std::optional<Operand> Of(const json::Object& step, const char* key) {
    if (!Has(step, key)) return std::nullopt;
    return Operand(Get<json::Object>(step, key));
  }
  std::string where;
  size_t at;
  size_t offset;  // bytes from there to the first element, where it is a part of what lies there
};

// Where everything lies during one call.
struct Memory {
  const std::vector<void*>& arguments;
  const DeviceBuffer& weights;
  const DeviceBuffer& scratch;
  void* At(const Operand& operand) const {
    if (operand.where == "argument") return static_cast<char*>(arguments[operand.at]) + operand.offset;
    return (operand.where == "weight" ? weights : scratch).at(operand.at + operand.offset);
  }
};

// A module whose plan is a list of steps. A Step has
//   static Make(about)                              the step that an object of the plan describes
//   static Library()                                the library that runs it, for the faces
//   kChoice                                         what its choice is called in the plan
//   size_t MakeReady()                              bytes of workspace it wants; a device is there
//   void Choose(const Memory&, void*, cudaStream_t) chooses how; its result lies there from then on
//   void Launch(const Memory&, void*, cudaStream_t) enqueues only
//   choice()                                        what it chose by measuring, if anything
//   Describe()                                      what is inside, for the faces
template <typename Step>
class StepsModule final : public CudaModule {
 public:
  StepsModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : CudaModule(symbol, plan_text, weights), plan_(ParseObject(plan_text, "the plan")) {
    for (const ffi::Any& step : Get<json::Array>(plan_, "steps")) {
      steps_.push_back(Step::Make(step.cast<json::Object>()));
    }
    PrepareIfPossible();
  }

 protected:
  void Prepare(cudaStream_t stream) final {
    device_weights_ = DeviceBuffer(weight(0), weight_bytes());
    scratch_ = DeviceBuffer(static_cast<size_t>(Get<int64_t>(plan_, "scratch_bytes")));
    size_t most = 0;
    for (auto& step : steps_) most = std::max(most, step->MakeReady());
    workspace_ = DeviceBuffer(most);
    std::vector<void*> arguments;
    StandIns stand_ins(inputs(), outputs(), &arguments);
    const Memory memory{arguments, device_weights_, scratch_};
    for (auto& step : steps_) step->Choose(memory, workspace_.data(), stream);
    CheckCuda(cudaStreamSynchronize(stream), "choosing how to run");
    KeepChoices();
  }

  void Launch(cudaStream_t stream) final {
    const Memory memory{pointers(), device_weights_, scratch_};
    for (auto& step : steps_) step->Launch(memory, workspace_.data(), stream);
  }

  void Describe(json::Object* out) const final {
    out->Set(ffi::String("library"), ffi::String(Step::Library()));
    out->Set(ffi::String("ready"), ready());
    json::Array described;
    for (const auto& step : steps_) described.push_back(step->Describe());
    out->Set(ffi::String("steps"), described);
  }

 private:
  // Serialise from now on what was chosen by measuring: the next process that loads the plan has nothing to
  // choose.
  void KeepChoices() {
    json::Array kept;
    size_t place = 0;
    for (const ffi::Any& step : Get<json::Array>(plan_, "steps")) {
      json::Object with;
      for (const auto& [name, value] : step.cast<json::Object>()) with.Set(name, value);
      if (std::optional<std::string> choice = steps_[place]->choice()) {
        with.Set(ffi::String(Step::kChoice), ffi::String(*choice));
      }
      kept.push_back(with);
      ++place;
    }
    plan_.Set(ffi::String("steps"), kept);
    set_plan_text(std::string(json::Stringify(plan_)));
  }

  json::Object plan_;
  std::vector<std::unique_ptr<Step>> steps_;
  DeviceBuffer device_weights_, scratch_, workspace_;
};

}  // namespace collage

#endif  // COLLAGE_CUDA_H_
