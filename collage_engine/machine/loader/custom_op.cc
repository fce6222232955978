// An artifact as one operator of ONNX Runtime.
//
// This library lies in the artifact's folder. SessionOptions.register_custom_ops_library loads it; it
// then checks the artifact and offers an operator of the domain "collage" whose name ends in a hash of
// the artifact, so that a file that names it runs this placement or none. Everything is done by the
// table of functions that the host gives: no second copy of ONNX Runtime is loaded.
#include <dlfcn.h>

#include "artifact.h"

namespace {

using collage::Fail;
using collage::OrtApi;
using collage::Value;
namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr int kOrtFail = 1;

using Table = const void* const*;

void* Status(Table api, const char* text) {
  using Make = void* (*)(int, const char*);
  return reinterpret_cast<Make>(const_cast<void*>(api[collage::kCreateStatus]))(kOrtFail, text);
}

Table host = nullptr;  // the functions of the host, from when it loads this library on

// Does some work; returns the status of its exception, or none.
template <typename Work>
void* Guarded(const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return Status(host, error.what());
  }
}

struct OwnFolder {
  std::string folder;
  json::Object manifest;
  std::vector<Value> inputs, outputs;
  std::string name;
};

// The artifact in whose folder this library lies; its files are as they were when it was exported.
const OwnFolder& OwnArtifact() {
  static const OwnFolder* artifact = [] {
    Dl_info self;
    if (dladdr(reinterpret_cast<void*>(&Status), &self) == 0 || self.dli_fname == nullptr) {
      Fail("the system does not say where this library lies");
    }
    const std::string file = collage::fs::absolute(self.dli_fname).string();
    const std::string folder = file.substr(0, file.rfind('/'));
    const json::Object manifest = collage::Opened(folder);
    collage::SetEnvironment(manifest);
    // It stays until the process ends. The host closes it with its session, and sessions point into it.
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_NODELETE) == nullptr) Fail(dlerror());
    const std::vector<json::Object> entries = collage::Objects(manifest, "entries");
    const json::Object& first = entries.empty() ? manifest : entries.front();
    const auto inputs = collage::ValuesOf(first, "inputs"), outputs = collage::ValuesOf(first, "outputs");
    return new OwnFolder{folder, manifest, inputs, outputs, collage::GetString(manifest, "operator")};
  }();
  return *artifact;
}

// Memory of the host, which a tensor does not own.
struct Borrowed {
  void* data;
  void AllocData(DLTensor* tensor) const { tensor->data = data; }
  void FreeData(DLTensor*) const {}
};

// The loaded placement of one session.
class Kernel {
 public:
  Kernel() : artifact_(OwnArtifact().folder, OwnArtifact().manifest) {}

  void Compute(void* context) {
    const OrtApi& ort = OrtApi::Instance();
    std::vector<ffi::Tensor> inputs;
    void* value = nullptr;
    void* data = nullptr;
    for (const Value& about : OwnArtifact().inputs) {
      ort.Call(collage::kKernelContextGetInput, static_cast<const void*>(context), inputs.size(), &value);
      if (value == nullptr) Fail("the input '" + about.name + "' is missing");
      const collage::Extents shape = collage::OrtShape(value);
      ort.Call(collage::kGetTensorMutableData, value, &data);
      inputs.push_back(ffi::Tensor::FromNDAlloc(Borrowed{data}, ffi::ShapeView(shape.data(), shape.size()), about.type,
                                                DLDevice{kDLCPU, 0}));
    }
    const std::vector<ffi::Tensor> outputs = artifact_.Run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ffi::ShapeView shape = outputs[i].shape();
      ort.Call(collage::kKernelContextGetOutput, context, i, shape.data(), shape.size(), &value);
      ort.Call(collage::kGetTensorMutableData, value, &data);
      std::memcpy(data, collage::DataOf(outputs[i]), ffi::GetDataSize(outputs[i]));
    }
  }

 private:
  collage::Artifact artifact_;
};

// OrtCustomOp of version 18: the callbacks by which ONNX Runtime knows an operator, in its header's order.
struct CustomOp {
  using Self = const CustomOp*;
  uint32_t version = collage::kOrtApiVersion;
  void* (*CreateKernel)(Self, Table, const void*) = nullptr;
  const char* (*GetName)(Self) = [](Self) { return OwnArtifact().name.c_str(); };
  const char* (*GetExecutionProviderType)(Self) = [](Self) { return "CPUExecutionProvider"; };
  int (*GetInputType)(Self, size_t) = [](Self, size_t i) { return collage::OnnxType(OwnArtifact().inputs[i].dtype); };
  size_t (*GetInputTypeCount)(Self) = [](Self) { return OwnArtifact().inputs.size(); };
  int (*GetOutputType)(Self, size_t) = [](Self, size_t i) { return collage::OnnxType(OwnArtifact().outputs[i].dtype); };
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
  void* (*CreateKernelV2)(Self, Table, const void*, void**) = [](Self, Table, const void*, void** made) {
    return Guarded([&] { *made = new Kernel(); });
  };
  void* (*KernelComputeV2)(void*, void*) = [](void* held, void* context) {
    return Guarded([&] { static_cast<Kernel*>(held)->Compute(context); });
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
extern "C" __attribute__((visibility("default"))) void* RegisterCustomOps(void* options, const OrtApi::Base* base) {
  host = base->GetApi(collage::kOrtApiVersion);
  if (host == nullptr) {
    return Status(base->GetApi(1), "the operator of this artifact needs ONNX Runtime 1.18 or newer");
  }
  return Guarded([&] {
    // Partitions on ONNX Runtime use this copy of it (ort_api.h): a process must not hold two.
    const auto own = [base] { return static_cast<void*>(const_cast<OrtApi::Base*>(base)); };
    ffi::Function::SetGlobal("collage.host_onnxruntime", ffi::Function::FromTyped(own), /*override=*/true);
    static const CustomOp op;
    static void* domain = nullptr;  // as long as the process: sessions point into it
    const OrtApi& ort = OrtApi::Instance();
    for (const auto* values : {&OwnArtifact().inputs, &OwnArtifact().outputs}) {
      for (const Value& value : *values) collage::OnnxType(value.dtype);
    }
    if (domain == nullptr) {
      ort.Call(collage::kCreateCustomOpDomain, static_cast<const char*>("collage"), &domain);
      ort.Call(collage::kCustomOpDomainAdd, domain, static_cast<const void*>(&op));
    }
    ort.Call(collage::kAddCustomOpDomain, options, domain);
  });
}
