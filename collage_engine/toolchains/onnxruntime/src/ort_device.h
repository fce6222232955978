// A session on an NVIDIA device: the libraries that its provider needs, a stream of its own, and the
// order between that and the caller's stream.
//
// CUDA's runtime is opened by name and not linked: most machines that run this adapter have none.
#ifndef COLLAGE_ORT_DEVICE_H_
#define COLLAGE_ORT_DEVICE_H_

#include <dlfcn.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "collage_module.h"
#include "ort_api.h"

namespace collage {

// Opens libraries for good, in this order: those beside this one, else wherever the system looks.
inline void OpenLibraries(const std::vector<std::string>& names) {
  std::string folder = BesideThisLibrary() + "/";
  for (const std::string& name : names) {
    constexpr int kHow = RTLD_NOW | RTLD_GLOBAL;
    if (dlopen(name.c_str(), kHow | RTLD_NOLOAD) != nullptr) continue;
    if (dlopen((folder + name).c_str(), kHow) != nullptr) continue;
    if (dlopen(name.c_str(), kHow) == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "cannot load " << name << ": " << dlerror();
    }
  }
}

// A stream of the session's own. What the caller has enqueued is done before the session begins,
// and what the caller enqueues later begins when the session is done; the host waits for neither.
class DeviceStream {
 public:
  DeviceStream() {
    Call("cudaStreamCreateWithFlags", &stream_, kNonBlocking);
    Call("cudaEventCreateWithFlags", &before_, kWithoutTimes);
    Call("cudaEventCreateWithFlags", &after_, kWithoutTimes);
    record_ = Find<int (*)(void*, void*)>("cudaEventRecord");
    wait_ = Find<int (*)(void*, void*, unsigned)>("cudaStreamWaitEvent");
  }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream() {
    Find<int (*)(void*)>("cudaEventDestroy")(before_);
    Find<int (*)(void*)>("cudaEventDestroy")(after_);
    Find<int (*)(void*)>("cudaStreamDestroy")(stream_);
  }

  void* get() const { return stream_; }

  template <typename F>
  void Between(F work) {
    void* caller = TVMFFIEnvGetStream(kDLCUDA, 0);
    Check(record_(before_, caller), "cudaEventRecord");
    Check(wait_(stream_, before_, 0), "cudaStreamWaitEvent");
    work();
    Check(record_(after_, stream_), "cudaEventRecord");
    Check(wait_(caller, after_, 0), "cudaStreamWaitEvent");
  }

  // Warms up with zeros as arguments, when a session may allocate and choose algorithms, then captures
  // a call into a CUDA graph, as it is run from then on. The graph must need nothing of the host: what
  // ONNX Runtime copies from there, or frees there, is gone when the graph is replayed.
  template <typename F>
  void WarmUp(const std::vector<TensorSpec>& inputs, const std::vector<TensorSpec>& outputs, F work) {
    std::vector<void*> arguments;
    std::string refused;
    try {
      for (const std::vector<TensorSpec>* specs : {&inputs, &outputs}) {
        for (const TensorSpec& spec : *specs) {
          size_t bytes = std::max<size_t>(spec.bytes, 16);
          arguments.push_back(nullptr);
          Call("cudaMalloc", &arguments.back(), bytes);
          Call("cudaMemset", arguments.back(), 0, bytes);
        }
      }
      Call("cudaDeviceSynchronize");
      // The first call learns how much memory the session takes, the second one takes it at once.
      for (int call = 0; call < 2; ++call) work(arguments);
      Call("cudaStreamSynchronize", stream_);
      refused = Captured([&] { work(arguments); });
    } catch (const std::exception& error) {
      refused = error.what();
    }
    Find<int (*)(void*)>("cudaStreamSynchronize")(stream_);
    for (void* argument : arguments) Find<int (*)(void*)>("cudaFree")(argument);
    if (!refused.empty()) TVM_FFI_THROW(RuntimeError) << refused;
  }

 private:
  static constexpr unsigned kNonBlocking = 1, kWithoutTimes = 2;
  static constexpr int kThreadLocal = 1;
  // Values of cudaGraphNodeType and cudaMemcpyKind, and where cudaMemcpy3DParms has the latter.
  static constexpr int kCopyNode = 1, kHostNode = 3, kDeviceToDevice = 3;
  static constexpr size_t kKindOffset = 152, kParametersSize = 160;

  template <typename F>
  static F Find(const char* name) {
    auto found = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    if (found == nullptr) TVM_FFI_THROW(RuntimeError) << "CUDA's runtime has no " << name;
    return found;
  }

  static void Check(int status, const char* name) {
    if (status == 0) return;
    Find<int (*)()>("cudaGetLastError")();  // what is not sticky must not be blamed on the next call
    TVM_FFI_THROW(RuntimeError) << name << ": "
                                << Find<const char* (*)(int)>("cudaGetErrorString")(status);
  }

  template <typename... Args>
  static void Call(const char* name, Args... args) {
    Check(Find<int (*)(Args...)>(name)(args...), name);
  }

  // Why work cannot be part of a CUDA graph; empty: it can.
  template <typename F>
  std::string Captured(F work) {
    std::string refused;
    void* graph = nullptr;
    Call("cudaStreamBeginCapture", stream_, kThreadLocal);
    try {
      work();
    } catch (const std::exception& error) {
      refused = std::string("it waits for the device: ") + error.what();
    }
    int status = Find<int (*)(void*, void**)>("cudaStreamEndCapture")(stream_, &graph);
    Find<int (*)()>("cudaGetLastError")();
    if (refused.empty() && status != 0) refused = "it cannot be captured into a CUDA graph";
    if (refused.empty() && NeedsHost(graph)) refused = "it needs the host while it runs";
    if (graph != nullptr) Call("cudaGraphDestroy", graph);
    return refused;
  }

  static bool NeedsHost(void* graph) {
    size_t count = 0;
    Call("cudaGraphGetNodes", graph, static_cast<void**>(nullptr), &count);
    if (count == 0) return true;  // whatever it does is elsewhere
    std::vector<void*> nodes(count);
    Call("cudaGraphGetNodes", graph, nodes.data(), &count);
    for (void* node : nodes) {
      int type = 0;
      Call("cudaGraphNodeGetType", node, &type);
      if (type == kHostNode) return true;
      if (type != kCopyNode) continue;
      std::array<char, kParametersSize> parameters{};
      Call("cudaGraphMemcpyNodeGetParams", node, static_cast<void*>(parameters.data()));
      int kind = 0;
      std::memcpy(&kind, parameters.data() + kKindOffset, sizeof kind);
      if (kind != kDeviceToDevice) return true;
    }
    return false;
  }

  void* stream_ = nullptr;
  void* before_ = nullptr;
  void* after_ = nullptr;
  int (*record_)(void*, void*) = nullptr;
  int (*wait_)(void*, void*, unsigned) = nullptr;
};

// Has a session's options name the provider for CUDA, before those that are named later.
inline void AppendProvider(void* session_options,
                           const std::vector<std::pair<std::string, std::string>>& options) {
  const OrtApi& api = OrtApi::Instance();
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  OrtHandle made(kReleaseCUDAProviderOptions);
  api.Call(kCreateCUDAProviderOptions, made.out());
  api.Call(kUpdateCUDAProviderOptions, made.get(), static_cast<const char* const*>(keys.data()),
           static_cast<const char* const*>(values.data()), keys.size());
  api.Call(kSessionOptionsAppendCUDA, session_options, static_cast<const void*>(made.get()));
}

}  // namespace collage

#endif  // COLLAGE_ORT_DEVICE_H_
