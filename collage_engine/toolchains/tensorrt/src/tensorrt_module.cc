// TensorRT engines run through its C++ interface; for users who have its headers.
#include <NvInferRuntime.h>

#include <memory>

#include "engine_module.h"

namespace collage {
namespace {

// Keeps the last error for the exception that follows; prints nothing.
class Log : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (severity > Severity::kERROR || message == nullptr) return;
    std::lock_guard<std::mutex> lock(mutex_);
    last_ = message;
  }
  std::string Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(last_, "");
  }

 private:
  std::mutex mutex_;
  std::string last_;
};

Log& TheLog() {
  static Log* log = new Log;  // engines may outlive every static object
  return *log;
}

nvinfer1::IRuntime& TheRuntime() {
  static nvinfer1::IRuntime* runtime = nvinfer1::createInferRuntime(TheLog());
  if (runtime == nullptr) TVM_FFI_THROW(RuntimeError) << "TensorRT does not start: " << TheLog().Take();
  return *runtime;
}

class TensorrtModule final : public EngineModule {
 public:
  TensorrtModule(const std::string& symbol, const std::string& plan, const GivenWeights& weights)
      : EngineModule(symbol, plan, weights) {
    PrepareIfPossible();
  }

 protected:
  void Open(const char* data, size_t size) override {
    engine_.reset(TheRuntime().deserializeCudaEngine(data, size));
    if (!engine_) {
      TVM_FFI_THROW(RuntimeError) << symbol() << ": TensorRT does not open the engine: "
                                  << TheLog().Take();
    }
    context_.reset(engine_->createExecutionContext());
    if (!context_) {
      TVM_FFI_THROW(RuntimeError) << symbol() << ": TensorRT makes no context: " << TheLog().Take();
    }
    bound_.assign(names().size(), nullptr);
  }

  void Enqueue(const std::vector<void*>& pointers, cudaStream_t stream) override {
    for (size_t i = 0; i < pointers.size(); ++i) {
      if (pointers[i] == bound_[i]) continue;
      if (!context_->setTensorAddress(names()[i].c_str(), pointers[i])) {
        TVM_FFI_THROW(RuntimeError) << symbol() << ": TensorRT takes no memory for " << names()[i]
                                    << ": " << TheLog().Take();
      }
      bound_[i] = pointers[i];
    }
    if (!context_->enqueueV3(stream)) {
      TVM_FFI_THROW(RuntimeError) << symbol() << ": TensorRT: " << TheLog().Take();
    }
  }

 private:
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  std::vector<void*> bound_;
};

TVM_FFI_STATIC_INIT_BLOCK() { RegisterModule<TensorrtModule>(); }

}  // namespace
}  // namespace collage
