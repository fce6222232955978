// An artifact as one operator of ONNX Runtime.
//
// This library lies in the artifact's folder. SessionOptions.register_custom_ops_library loads it; it
// then checks the artifact and offers an operator of the domain "collage" whose name ends in the hash
// of model.so, so that a file that names it runs this placement or none. Everything is done by the
// table of functions that the host gives: no second copy of ONNX Runtime is loaded.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "artifact.h"
#include "ort_slots.h"

namespace {

using collage::Extents;
using collage::Fail;
using collage::OrtSlot;
using collage::Value;
namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr int kOrtFail = 1;

using Table = const void* const*;
struct ApiBase {
  Table (*GetApi)(uint32_t);
  const char* (*GetVersionString)();
};

template <typename R = void*, typename... Args>
R Call(Table api, OrtSlot slot, Args... args) {
  return reinterpret_cast<R (*)(Args...)>(const_cast<void*>(api[slot]))(args...);
}

// Throws what a status of ONNX Runtime says; none is no error.
void Check(Table api, void* status) {
  if (status == nullptr) return;
  const std::string text = Call<const char*>(api, collage::kGetErrorMessage, static_cast<const void*>(status));
  Call<void>(api, collage::kReleaseStatus, status);
  Fail(text);
}

void* Status(Table api, const char* text) {
  return Call(api, collage::kCreateStatus, kOrtFail, static_cast<const char*>(text));
}

// Does some work; returns the status of its exception, or none.
template <typename Work>
void* Guarded(Table api, const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return Status(api, error.what());
  }
}

// ONNX's number of an element type.
int OnnxType(const std::string& dtype) {
  static const std::map<std::string, int> kTypes = {
      {"float32", 1}, {"uint8", 2},  {"int8", 3},    {"uint16", 4},  {"int16", 5},   {"int32", 6},  {"int64", 7},
      {"bool", 9},    {"float16", 10}, {"float64", 11}, {"uint32", 12}, {"uint64", 13}, {"bfloat16", 16}};
  const auto found = kTypes.find(dtype);
  if (found == kTypes.end()) Fail("an operator of ONNX Runtime cannot take " + dtype + " here");
  return found->second;
}

// Has a library stay until the process ends. The host closes this one with its session, and a module
// those that it names; what they registered with TVM's runtime, and threads, would be left.
void Stay(const std::string& library) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_NODELETE) == nullptr) Fail(dlerror());
}

// Has a library that an artifact carries stay: the copy of another artifact, where the process has one. Ours name
// their sources and versions, so that it is the same code, and it cannot register itself twice.
void StayOnce(const std::string& folder, const std::string& name) {
  if (dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) Stay(folder + "/" + name);
}

struct Artifact {
  std::string folder;
  json::Object manifest;
  std::vector<Value> inputs, outputs;
  std::string name;
};

// The artifact in whose folder this library lies; its files are as they were when it was exported.
const Artifact& OwnArtifact() {
  static const Artifact* artifact = [] {
    Dl_info self;
    if (dladdr(reinterpret_cast<void*>(&OnnxType), &self) == 0 || self.dli_fname == nullptr) {
      Fail("the system does not say where this library lies");
    }
    const std::string file = collage::fs::absolute(self.dli_fname).string();
    const std::string folder = file.substr(0, file.rfind('/'));
    const json::Object manifest = collage::Opened(folder);
    collage::SetEnvironment(manifest);
    Stay(file);
    for (const json::Object& library : collage::Objects(manifest, "libraries")) {
      if (collage::Field(library, "needed").cast<bool>()) StayOnce(folder, collage::Text(library, "file"));
    }
    const auto files = collage::Field(manifest, "files").cast<json::Object>();
    const auto module = collage::Field(files, "model.so").cast<json::Object>();
    const std::string name = "Placement_" + collage::Text(module, "sha256").substr(0, 12);
    const auto inputs = collage::ValuesOf(manifest, "inputs"), outputs = collage::ValuesOf(manifest, "outputs");
    return new Artifact{folder, manifest, inputs, outputs, name};
  }();
  return *artifact;
}

// The loaded placement of one session. Calls from several threads take turns.
class Kernel {
 public:
  explicit Kernel(Table api)
      : api_(api),
        model_(OwnArtifact().folder, OwnArtifact().manifest) {
    for (const Value& value : OwnArtifact().inputs) {
      inputs_.push_back(collage::NewTensor(value.shape, ffi::StringToDLDataType(ffi::String(value.dtype))));
    }
  }

  Table api() const { return api_; }

  void Compute(void* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < inputs_.size(); ++i) Fill(context, i);
    const std::vector<ffi::Tensor> outputs = model_.Outputs(model_.Call(inputs_));
    if (outputs.size() != OwnArtifact().outputs.size()) Fail("the model returned another number of outputs");
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].IsContiguous()) Fail("an output is not contiguous");
      const Extents shape(outputs[i].shape().begin(), outputs[i].shape().end());
      void* value = nullptr;
      void* data = nullptr;
      Check(api_, Call(api_, collage::kKernelContextGetOutput, context, i, shape.data(), shape.size(), &value));
      Check(api_, Call(api_, collage::kGetTensorMutableData, value, &data));
      const char* from = static_cast<const char*>(outputs[i].data_ptr()) + outputs[i].byte_offset();
      std::memcpy(data, from, ffi::GetDataSize(outputs[i]));
    }
  }

 private:
  // Copies an input into the model's own tensor, which is aligned as TVM wants it; the host's seldom are.
  void Fill(void* context, size_t i) {
    const Value& about = OwnArtifact().inputs[i];
    void* value = nullptr;
    void* data = nullptr;
    Check(api_, Call(api_, collage::kKernelContextGetInput, static_cast<const void*>(context), i, &value));
    if (value == nullptr || ShapeOf(value) != about.shape) {
      Fail("the input '" + about.name + "' has another shape than the model takes");
    }
    Check(api_, Call(api_, collage::kGetTensorMutableData, value, &data));
    std::memcpy(inputs_[i].data_ptr(), data, ffi::GetDataSize(inputs_[i]));
  }

  Extents ShapeOf(const void* value) const {
    void* info = nullptr;
    size_t rank = 0;
    Check(api_, Call(api_, collage::kGetTensorTypeAndShape, value, &info));
    Call(api_, collage::kGetDimensionsCount, static_cast<const void*>(info), &rank);
    Extents shape(rank);
    Call(api_, collage::kGetDimensions, static_cast<const void*>(info), shape.data(), rank);
    Call<void>(api_, collage::kReleaseTensorTypeAndShapeInfo, info);
    return shape;
  }

  Table api_;
  collage::Model model_;
  std::vector<ffi::Tensor> inputs_;
  std::mutex mutex_;
};

// OrtCustomOp of version 18: the callbacks by which ONNX Runtime knows an operator, in its header's order.
struct CustomOp {
  using Self = const CustomOp*;
  uint32_t version = collage::kOrtApiVersion;
  void* (*CreateKernel)(Self, Table, const void*) = nullptr;
  const char* (*GetName)(Self) = [](Self) { return OwnArtifact().name.c_str(); };
  const char* (*GetExecutionProviderType)(Self) = [](Self) { return "CPUExecutionProvider"; };
  int (*GetInputType)(Self, size_t) = [](Self, size_t i) { return OnnxType(OwnArtifact().inputs[i].dtype); };
  size_t (*GetInputTypeCount)(Self) = [](Self) { return OwnArtifact().inputs.size(); };
  int (*GetOutputType)(Self, size_t) = [](Self, size_t i) { return OnnxType(OwnArtifact().outputs[i].dtype); };
  size_t (*GetOutputTypeCount)(Self) = [](Self) { return OwnArtifact().outputs.size(); };
  void (*KernelCompute)(void*, void*) = nullptr;
  void (*KernelDestroy)(void*) = [](void* held) { delete static_cast<Kernel*>(held); };
  int (*GetInputCharacteristic)(Self, size_t) = [](Self, size_t) { return 0; };   // required
  int (*GetOutputCharacteristic)(Self, size_t) = [](Self, size_t) { return 0; };  // required
  int (*GetInputMemoryType)(Self, size_t) = [](Self, size_t) { return 0; };       // the default
  int (*GetVariadicInputMinArity)(Self) = [](Self) { return 1; };
  int (*GetVariadicInputHomogeneity)(Self) = [](Self) { return 0; };
  int (*GetVariadicOutputMinArity)(Self) = [](Self) { return 1; };
  int (*GetVariadicOutputHomogeneity)(Self) = [](Self) { return 0; };
  void* (*CreateKernelV2)(Self, Table, const void*, void**) = [](Self, Table api, const void*, void** made) {
    return Guarded(api, [&] { *made = new Kernel(api); });
  };
  void* (*KernelComputeV2)(void*, void*) = [](void* held, void* context) {
    Kernel& kernel = *static_cast<Kernel*>(held);
    return Guarded(kernel.api(), [&] { kernel.Compute(context); });
  };
  void* (*InferOutputShape)(Self, void*) = nullptr;
  int (*GetStartVersion)(Self) = [](Self) { return 1; };
  int (*GetEndVersion)(Self) = [](Self) { return INT32_MAX; };
  size_t (*GetMayInplace)(int**, int**) = nullptr;
  void (*ReleaseMayInplace)(int*, int*) = nullptr;
  size_t (*GetAliasMap)(int**, int**) = nullptr;
  void (*ReleaseAliasMap)(int*, int*) = nullptr;
};

}  // namespace

// The function that ONNX Runtime looks for in a library of operators.
extern "C" __attribute__((visibility("default"))) void* RegisterCustomOps(void* options, const ApiBase* base) {
  Table api = base->GetApi(collage::kOrtApiVersion);
  if (api == nullptr) {
    return Status(base->GetApi(1), "the operator of this artifact needs ONNX Runtime 1.18 or newer");
  }
  return Guarded(api, [&] {
    // Partitions on ONNX Runtime use this copy of it (ort_api.h): a process must not hold two.
    const auto host = [base] { return static_cast<void*>(const_cast<ApiBase*>(base)); };
    ffi::Function::SetGlobal("collage.host_onnxruntime", ffi::Function::FromTyped(host), /*override=*/true);
    for (const auto* values : {&OwnArtifact().inputs, &OwnArtifact().outputs}) {
      for (const Value& value : *values) OnnxType(value.dtype);
    }
    static const CustomOp op;
    static void* domain = nullptr;  // as long as the process: sessions point into it
    if (domain == nullptr) {
      Check(api, Call(api, collage::kCreateCustomOpDomain, static_cast<const char*>("collage"), &domain));
      Check(api, Call(api, collage::kCustomOpDomainAdd, domain, static_cast<const void*>(&op)));
    }
    Check(api, Call(api, collage::kAddCustomOpDomain, options, domain));
  });
}
