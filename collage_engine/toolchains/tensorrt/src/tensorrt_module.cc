// TensorRT engines run through its Python interface, for want of the C++ headers.
//
// A program that loads such a module runs python_runtime.py first, which registers the function that
// opens an engine. It returns a function of (stream, addresses...) that enqueues it.
#include "collage_cuda.h"

namespace collage {
namespace {

constexpr const char* kOpen = "collage.tensorrt.open";

// The weights of such a module are the serialised engine.
class EngineModule final : public CudaModule {
 public:
  EngineModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : CudaModule(symbol, plan_text, weights) {
    json::Object plan = ParseObject(plan_text, "the plan");
    engine_bytes_ = static_cast<size_t>(Get<int64_t>(plan, "engine_bytes"));
    if (engine_bytes_ > weight_bytes()) {
      TVM_FFI_THROW(ValueError) << symbol << ": the engine is truncated";
    }
    PrepareIfPossible();
  }
  EngineModule(const EngineModule&) = delete;
  EngineModule& operator=(const EngineModule&) = delete;
  ~EngineModule() {
    for (cudaEvent_t event : {before_, after_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (own_ != nullptr) cudaStreamDestroy(own_);
  }

 protected:
  void Prepare(cudaStream_t) final {
    Open(weight(0), engine_bytes_);
    CheckCuda(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "creating a stream");
    CheckCuda(cudaEventCreateWithFlags(&before_, cudaEventDisableTiming), "creating an event");
    CheckCuda(cudaEventCreateWithFlags(&after_, cudaEventDisableTiming), "creating an event");
    // The first run loads kernels, which a call that is captured into a CUDA graph could not.
    // Zeros, since whole numbers among the inputs may be indices.
    std::vector<DeviceBuffer> buffers;
    std::vector<void*> pointers;
    for (const std::vector<TensorSpec>* specs : {&inputs(), &outputs()}) {
      for (const TensorSpec& spec : *specs) {
        buffers.emplace_back(std::max<size_t>(spec.bytes, 16));
        CheckCuda(cudaMemsetAsync(buffers.back().data(), 0, buffers.back().size(), own_),
                  "clearing memory");
        pointers.push_back(buffers.back().data());
      }
    }
    Enqueue(pointers, own_);
    CheckCuda(cudaStreamSynchronize(own_), "running the engine the first time");
  }

  void Launch(cudaStream_t stream) final {
    // On the default stream TensorRT would wait for the device in every call; a stream of our own
    // between two events keeps the order without that.
    if (stream != nullptr && stream != cudaStreamLegacy) {
      Enqueue(pointers(), stream);
      return;
    }
    CheckCuda(cudaEventRecord(before_, stream), "recording an event");
    CheckCuda(cudaStreamWaitEvent(own_, before_, 0), "ordering streams");
    Enqueue(pointers(), own_);
    CheckCuda(cudaEventRecord(after_, own_), "recording an event");
    CheckCuda(cudaStreamWaitEvent(stream, after_, 0), "ordering streams");
  }

  std::string Describe() const final {
    json::Object plan = ParseObject(plan_text(), "the plan");
    json::Object out;
    for (const char* key : {"title", "version", "architecture", "precision", "layers",
                            "strongly_typed", "engine_bytes"}) {
      if (Has(plan, key)) out.Set(ffi::String(key), Field(plan, key));
    }
    out.Set(ffi::String("steps"), json::Array());
    return std::string(json::Stringify(out));
  }

 private:
  // Make ready to run the engine; it may allocate and wait.
  void Open(const char* data, size_t size) {
    auto open = ffi::Function::GetGlobal(kOpen);
    if (!open.has_value()) {
      TVM_FFI_THROW(RuntimeError)
          << symbol() << " runs through TensorRT's Python interface: load it from Python, and run "
          << "collage_tensorrt.py of the artifact first";
    }
    enqueue_ = (*open)(ffi::String(plan_text()), ffi::Bytes(data, size)).cast<ffi::Function>();
  }

  // Enqueue it once; pointers to the inputs, then the outputs.
  void Enqueue(const std::vector<void*>& pointers, cudaStream_t stream) {
    std::vector<ffi::AnyView> arguments;
    arguments.reserve(pointers.size() + 1);
    arguments.emplace_back(static_cast<void*>(stream));
    for (void* pointer : pointers) arguments.emplace_back(pointer);
    ffi::Any result;
    (*enqueue_).CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  }

  size_t engine_bytes_ = 0;
  std::optional<ffi::Function> enqueue_;
  cudaStream_t own_ = nullptr;
  cudaEvent_t before_ = nullptr, after_ = nullptr;
};

TVM_FFI_STATIC_INIT_BLOCK() { RegisterModule<EngineModule>(); }

}  // namespace
}  // namespace collage
