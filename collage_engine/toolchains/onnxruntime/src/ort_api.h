// ONNX Runtime's C API without its header, which the wheel does not carry.
#ifndef COLLAGE_ORT_API_H_
#define COLLAGE_ORT_API_H_

#include <dlfcn.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace collage {

// Positions of functions in OrtApi, the table of ONNX Runtime's C API, which is only ever appended to.
// Each is checked by what the function does: those of the adapter in
// tests/engine/test_toolchain_onnxruntime.py, those of an artifact that is an operator of ONNX Runtime
// (machine/loader/custom_op.cc) in tests/engine/test_operator_for_onnxruntime.py.
enum OrtSlot : int {
  kCreateStatus = 0,
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kDisableTelemetryEvents = 6,
  kCreateSession = 7,
  kCreateSessionFromArray = 8,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetOptimizedModelFilePath = 11,
  kEnableProfiling = 14,
  kSetIntraOpNumThreads = 24,
  kSetInterOpNumThreads = 25,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kCreateTensorAsOrtValue = 48,
  kCreateTensorWithDataAsOrtValue = 49,
  kGetTensorMutableData = 51,
  kFillStringTensor = 52,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kCreateCpuMemoryInfo = 69,
  kGetAllocatorWithDefaultOptions = 78,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseMemoryInfo = 94,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseTensorTypeAndShapeInfo = 99,
  kReleaseSessionOptions = 100,
  kCreateEnvWithGlobalThreadPools = 119,
  kDisablePerSessionThreads = 120,
  kCreateThreadingOptions = 121,
  kReleaseThreadingOptions = 122,
  kGetStringTensorElementLength = 127,
  kGetStringTensorElement = 128,
  kAddSessionConfigEntry = 130,
  kSetGlobalIntraOpNumThreads = 147,
  kSetGlobalInterOpNumThreads = 148,
  kSetGlobalSpinControl = 149,
  kAddExternalInitializersFromFilesInMemory = 279,
};

// The version of the table that is asked for: that of ONNX Runtime 1.18.
inline constexpr uint32_t kOrtApiVersion = 18;

inline constexpr int kOrtWarning = 2;
inline constexpr int kOrtError = 3;
inline constexpr int kOrtDeviceAllocator = 0;
inline constexpr int kOrtMemTypeDefault = 0;

class OrtApi {
 public:
  struct Base {
    const void* const* (*GetApi)(uint32_t);
    const char* (*GetVersionString)();
  };

  // The process's copy: one already loaded under the SONAME, else the file beside this library.
  static const OrtApi& Instance() {
    static const OrtApi api;
    return api;
  }

  template <typename... Args>
  void Call(OrtSlot slot, Args... args) const {
    auto function = reinterpret_cast<void* (*)(Args...)>(const_cast<void*>(table_[slot]));
    Check(function(args...));
  }

  void Check(void* status) const {
    if (status == nullptr) return;
    using Message = const char* (*)(void*);
    std::string text =
        reinterpret_cast<Message>(const_cast<void*>(table_[kGetErrorMessage]))(status);
    Release(kReleaseStatus, status);
    for (char& c : text) {
      if (c == '\n') c = ' ';
    }
    TVM_FFI_THROW(RuntimeError) << "ONNX Runtime: " << text;
  }

  void Release(OrtSlot slot, void* object) const {
    if (object == nullptr) return;
    reinterpret_cast<void (*)(void*)>(const_cast<void*>(table_[slot]))(object);
  }

  template <typename F>
  F Function(OrtSlot slot) const {
    return reinterpret_cast<F>(const_cast<void*>(table_[slot]));
  }

  // Whether the process belongs to ONNX Runtime, whose environment and settings are the user's.
  bool hosted() const { return hosted_; }

 private:
  // A copy that the process has, the file beside this library, else wherever the system looks.
  static void* Open() {
    static constexpr const char* kName = "libonnxruntime.so.1";
    if (void* loaded = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return loaded;
    Dl_info self;
    if (dladdr(reinterpret_cast<void*>(&Open), &self) != 0 && self.dli_fname != nullptr) {
      std::string path = self.dli_fname;
      path = path.substr(0, path.rfind('/') + 1) + kName;
      if (void* beside = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return beside;
    }
    void* library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "cannot load ONNX Runtime: " << dlerror();
    }
    return library;
  }

  OrtApi() {
    const Base* base = nullptr;
    // An artifact that a session of ONNX Runtime runs (machine/loader/custom_op.cc) says which copy that is.
    if (const auto host = tvm::ffi::Function::GetGlobal("collage.host_onnxruntime")) {
      base = static_cast<const Base*>((*host)().cast<void*>());
      hosted_ = true;
    } else {
      // Read when the library is loaded: no queue of events is made in the user's cache.
      setenv("ORT_DISABLE_TELEMETRY", "1", 1);
      auto get = reinterpret_cast<const Base* (*)()>(dlsym(Open(), "OrtGetApiBase"));
      if (get == nullptr) TVM_FFI_THROW(RuntimeError) << "libonnxruntime.so.1 has no OrtGetApiBase";
      base = get();
    }
    table_ = base->GetApi(kOrtApiVersion);
    if (table_ == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "ONNX Runtime " << base->GetVersionString() << " lacks API version "
                                  << kOrtApiVersion;
    }
  }

  const void* const* table_ = nullptr;
  bool hosted_ = false;
};

// An owned API object.
class OrtHandle {
 public:
  explicit OrtHandle(OrtSlot release) : release_(release) {}
  OrtHandle(OrtHandle&& other) noexcept
      : release_(other.release_), object_(std::exchange(other.object_, nullptr)) {}
  OrtHandle(const OrtHandle&) = delete;
  OrtHandle& operator=(const OrtHandle&) = delete;
  ~OrtHandle() { Reset(); }
  void Reset() {
    if (object_ != nullptr) OrtApi::Instance().Release(release_, object_);
    object_ = nullptr;
  }
  void* get() const { return object_; }
  void** out() {
    Reset();
    return &object_;
  }

 private:
  OrtSlot release_;
  void* object_ = nullptr;
};

// ONNX's number of an element type, by the name that plans and manifests use.
inline int OnnxType(const std::string& name) {
  static const std::map<std::string, int> known = {
      {"float32", 1}, {"uint8", 2},  {"int8", 3},     {"uint16", 4},  {"int16", 5},
      {"int32", 6},   {"int64", 7},  {"bool", 9},     {"float16", 10}, {"float64", 11},
      {"uint32", 12}, {"uint64", 13}, {"bfloat16", 16}};
  auto it = known.find(name);
  if (it == known.end()) TVM_FFI_THROW(TypeError) << "ONNX Runtime takes no tensors of " << name;
  return it->second;
}

// The shape of a tensor.
inline std::vector<int64_t> OrtShape(const void* value) {
  const OrtApi& api = OrtApi::Instance();
  OrtHandle info(kReleaseTensorTypeAndShapeInfo);
  api.Call(kGetTensorTypeAndShape, value, info.out());
  size_t rank = 0;
  api.Call(kGetDimensionsCount, static_cast<const void*>(info.get()), &rank);
  std::vector<int64_t> shape(rank);
  api.Call(kGetDimensions, static_cast<const void*>(info.get()), shape.data(), rank);
  return shape;
}

}  // namespace collage

#endif  // COLLAGE_ORT_API_H_
