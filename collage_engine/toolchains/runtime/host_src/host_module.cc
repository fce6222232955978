// Partitions on the host within a placement on an NVIDIA device, and the copies around them.
//
// The module's imports are the partitions, each an executable of TVM's virtual machine whose
// function part<p> it is, p as in the plan's "parts". Values that cross between device and host lie here, by number, in
// pinned memory made when the module is; what the whole placement passes around in their stead is
// a byte on the device, so that its order is kept. <prefix> is the module's symbol:
//
//   <prefix>.take.<v>(tensor, byte)     device → host
//   <prefix>.run.<p>(bytes..., byte)    partition p on values of the host
//   <prefix>.give.<v>(byte, tensor)     host → device
//
// Everything is on the caller's stream. Copies are only enqueued; the one wait is in run, for the
// values that were taken since the last one: the host cannot compute on what is not there yet.
// The prefix begins with "vm.builtin", which keeps TVM from putting these calls into a CUDA graph:
// what lies before and behind them becomes a graph of its own.
#include <deque>

#include "collage_cuda.h"

namespace collage {
namespace {

struct Pinned {
  void AllocData(DLTensor* tensor) {
    void* data = nullptr;
    CheckCuda(cudaMallocHost(&data, std::max<size_t>(64, ffi::GetDataSize(*tensor))),
              "pinning memory");
    tensor->data = data;
  }
  void FreeData(DLTensor* tensor) { cudaFreeHost(tensor->data); }
};

// A value on the host.
struct Value {
  TensorSpec spec;
  std::optional<ffi::Tensor> pinned;   // where copies begin and end
  std::optional<ffi::Tensor> current;  // what partitions read: pinned, or another's result
  cudaEvent_t given = nullptr;         // the last copy to the device, from pinned
};

class HostModule : public ffi::ModuleObj {
 public:
  HostModule(const std::string& symbol, const std::string& plan_text, const GivenWeights&)
      : symbol_(symbol), plan_text_(plan_text) {
    json::Object plan = ParseObject(plan_text, "the plan");
    for (TensorSpec& spec : ParseTensorSpecs(plan, "values")) {
      values_.emplace_back();
      values_.back().spec = spec;
    }
    for (const ffi::Any& each : Get<json::Array>(plan, "parts")) {
      auto about = each.cast<json::Object>();
      parts_.push_back({GetInts(about, "inputs"), GetInts(about, "outputs"), std::nullopt});
    }
    if (HasDevice()) {
      for (Value& value : values_) Prepare(&value);
    }
  }
  ~HostModule() {
    for (Value& value : values_) {
      if (value.given != nullptr) cudaEventDestroy(value.given);
    }
  }

  const char* kind() const final { return COLLAGE_KIND; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const std::string full(name);
    if (full.compare(0, symbol_.size() + 1, symbol_ + ".") != 0) return std::nullopt;
    const size_t dot = full.rfind('.');
    const std::string verb = full.substr(symbol_.size() + 1, dot - symbol_.size() - 1);
    const size_t number = std::stoul(full.substr(dot + 1));
    ffi::ObjectPtr<ffi::Object> self = ffi::GetObjectPtr<ffi::Object>(this);
    if (verb == "take") {
      return ffi::Function::FromPacked([self, this, number](ffi::PackedArgs args, ffi::Any*) {
        Take(&values_.at(number), *args[0].cast<DLTensor*>());
      });
    }
    if (verb == "give") {
      return ffi::Function::FromPacked([self, this, number](ffi::PackedArgs args, ffi::Any*) {
        Give(&values_.at(number), *args[args.size() - 1].cast<DLTensor*>());
      });
    }
    if (verb == "run") {
      return ffi::Function::FromPacked(
          [self, this, number](ffi::PackedArgs, ffi::Any*) { Run(number); });
    }
    return std::nullopt;
  }

  ffi::Bytes SaveToBytes() const final {
    ByteWriter writer;
    writer.Put(std::string(kMagic));
    writer.Put(symbol_);
    writer.Put(plan_text_);
    writer.Put(nullptr, 0);
    return ffi::Bytes(writer.Take());
  }

 private:
  struct Part {
    std::vector<int64_t> inputs, outputs;
    std::optional<ffi::Function> main;
  };

  static void Prepare(Value* value) {
    if (value->pinned) return;
    const std::vector<int64_t>& shape = value->spec.shape;
    value->pinned = ffi::Tensor::FromNDAlloc(Pinned(), ffi::Shape(shape.begin(), shape.end()),
                                             value->spec.dtype, DLDevice{kDLCPU, 0});
    CheckCuda(cudaEventCreateWithFlags(&value->given, cudaEventDisableTiming), "creating an event");
  }

  static cudaStream_t Stream() {
    return static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, 0));
  }

  [[noreturn]] static void Mismatch(const Value& value) {
    TVM_FFI_THROW(TypeError) << "a copy between host and device met another tensor than "
                             << TypeName(value.spec.dtype, value.spec.shape.data(),
                                         static_cast<int>(value.spec.shape.size()));
    TVM_FFI_UNREACHABLE();
  }

  static void* OnDevice(const DLTensor& tensor, const Value& value) {
    if (tensor.device.device_type != kDLCUDA || ffi::GetDataSize(tensor) != value.spec.bytes) {
      Mismatch(value);
    }
    return static_cast<char*>(tensor.data) + tensor.byte_offset;
  }

  void Take(Value* value, const DLTensor& from) {
    std::lock_guard<std::mutex> lock(mutex_);
    Prepare(value);
    CheckCuda(cudaMemcpyAsync(value->pinned->data_ptr(), OnDevice(from, *value),
                              value->spec.bytes, cudaMemcpyDeviceToHost, Stream()),
              "copying to the host");
    value->current = value->pinned;
    waiting_ = true;
  }

  void Give(Value* value, const DLTensor& to) {
    std::lock_guard<std::mutex> lock(mutex_);
    Prepare(value);
    void* pinned = value->pinned->data_ptr();
    const ffi::Tensor& have = *value->current;
    const void* data = static_cast<const char*>(have.data_ptr()) + have.byte_offset();
    if (ffi::GetDataSize(have) != value->spec.bytes) Mismatch(*value);
    if (data != pinned) {
      // The copy of the call before may still read it; it has had a whole call's time.
      CheckCuda(cudaEventSynchronize(value->given), "waiting for a copy");
      std::memcpy(pinned, data, value->spec.bytes);
    }
    CheckCuda(cudaMemcpyAsync(OnDevice(to, *value), pinned, value->spec.bytes,
                              cudaMemcpyHostToDevice, Stream()),
              "copying to the device");
    CheckCuda(cudaEventRecord(value->given, Stream()), "recording an event");
  }

  void Run(size_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    Part& part = parts_.at(number);
    if (!part.main) part.main = Open(number);
    if (waiting_) CheckCuda(cudaStreamSynchronize(Stream()), "waiting for values on the host");
    waiting_ = false;
    std::vector<ffi::AnyView> arguments;
    for (int64_t v : part.inputs) arguments.push_back(*values_.at(v).current);
    ffi::Any result;
    part.main->CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    if (auto one = result.as<ffi::Tensor>()) {
      values_.at(part.outputs.at(0)).current = *one;
      return;
    }
    size_t place = 0;
    for (const ffi::Any& each : result.cast<ffi::Array<ffi::Any>>()) {
      values_.at(part.outputs.at(place++)).current = each.cast<ffi::Tensor>();
    }
  }

  // A partition's main, in a virtual machine on the host.
  ffi::Function Open(size_t number) {
    const std::string name = "part" + std::to_string(number);
    for (const ffi::Any& import : imports()) {  // loading does not keep their order
      auto load = import.cast<ffi::Module>()->GetFunction("vm_load_executable");
      if (!load.has_value()) continue;
      auto machine = load.value()().cast<ffi::Module>();
      ffi::Optional<ffi::Function> main = machine->GetFunction(name);
      if (!main.has_value()) continue;
      constexpr int kPooled = 2;
      machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooled);
      machines_.push_back(machine);
      return main.value();
    }
    TVM_FFI_THROW(RuntimeError) << "the placement lacks its " << name << " on the host";
    TVM_FFI_UNREACHABLE();
  }

  std::string symbol_, plan_text_;
  std::deque<Value> values_;
  std::vector<Part> parts_;
  std::vector<ffi::Module> machines_;
  std::mutex mutex_;
  bool waiting_ = false;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() { collage::RegisterModule<collage::HostModule>(); }
