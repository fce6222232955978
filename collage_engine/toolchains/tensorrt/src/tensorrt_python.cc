// TensorRT engines run through its Python interface, for want of the C++ headers.
//
// Whoever loads such a module runs python_runtime.py first, which registers the function that
// opens an engine. It returns a function of (stream, addresses...) that enqueues it.
#include "engine_module.h"

namespace collage {
namespace {

constexpr const char* kOpen = "collage.tensorrt.open";

class PythonEngineModule final : public EngineModule {
 public:
  PythonEngineModule(const std::string& symbol, const std::string& plan,
                     const GivenWeights& weights)
      : EngineModule(symbol, plan, weights) {
    PrepareIfPossible();
  }

 protected:
  void Open(const char* data, size_t size) override {
    auto open = ffi::Function::GetGlobal(kOpen);
    if (!open.has_value()) {
      TVM_FFI_THROW(RuntimeError)
          << symbol() << " runs through TensorRT's Python interface: load it from Python, and run "
          << "collage_tensorrt.py of the artifact first";
    }
    enqueue_ = (*open)(ffi::String(plan_text()), ffi::Bytes(data, size)).cast<ffi::Function>();
  }

  void Enqueue(const std::vector<void*>& pointers, cudaStream_t stream) override {
    std::vector<ffi::AnyView> arguments;
    arguments.reserve(pointers.size() + 1);
    arguments.emplace_back(static_cast<void*>(stream));
    for (void* pointer : pointers) arguments.emplace_back(pointer);
    ffi::Any result;
    (*enqueue_).CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  }

 private:
  std::optional<ffi::Function> enqueue_;
};

TVM_FFI_STATIC_INIT_BLOCK() { RegisterModule<PythonEngineModule>(); }

}  // namespace
}  // namespace collage
