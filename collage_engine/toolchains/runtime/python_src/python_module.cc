// A runtime module whose partitions are run by a Python function over arrays.
//
// A program that loads such a module runs runtime/python_host.py first, which registers the function that
// opens a partition from its plan and data. It returns a function of the addresses of the inputs
// and outputs; on a CUDA device ("on_device" of the plan), of the caller's stream and them.
#include <tvm/ffi/extra/c_env_api.h>

#include "collage_module.h"

namespace collage {
namespace {

class PythonModule final : public PlanModule {
 public:
  PythonModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& given)
      : PlanModule(symbol, plan_text),
        data_(given.owner ? *given.owner : ffi::Bytes(given.data, given.size)) {
    json::Object plan = ParseObject(plan_text, "the plan");
    on_device_ = Has(plan, "on_device");
    auto open = ffi::Function::GetGlobal(GetString(plan, "opener"));
    if (!open.has_value()) {
      TVM_FFI_THROW(RuntimeError) << symbol << " runs through "
                                  << GetString(plan, "library") << "'s Python interface: load it from Python, and run the "
                                  << "Python files that the manifest requires first";
    }
    run_ = (*open)(ffi::String(plan_text), data_).cast<ffi::Function>();
  }

 protected:
  void Execute() final {
    std::vector<ffi::AnyView> arguments;
    arguments.reserve(pointers().size() + 1);
    if (on_device_) arguments.emplace_back(TVMFFIEnvGetStream(kDLCUDA, 0));
    for (void* pointer : pointers()) arguments.emplace_back(pointer);
    ffi::Any result;
    run_.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  }

  DLDeviceType device_type() const final { return on_device_ ? kDLCUDA : kDLCPU; }

  ffi::Bytes Weights() const final { return data_; }

 private:
  ffi::Bytes data_;
  ffi::Function run_;
  bool on_device_ = false;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() { collage::RegisterModule<collage::PythonModule>(); }
