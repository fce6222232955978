// OpenVINO as a runtime module: the weights are a model in OpenVINO's IR (constants, then XML). The
// constants of a large model are a file of their own, which the plan names.
//
// A model in IR needs no frontend but the small one of IR itself. Inputs and outputs go by their
// place in the model, which IR keeps.
#include <algorithm>
#include <deque>
#include <memory>

#include <openvino/c/openvino.h>

#include "held_bytes.h"

namespace collage {
namespace {

// OpenVINO's C API with errors as exceptions and handles that free themselves.

void OvCheck(ov_status_e status, const char* what) {
  if (status == OK) return;
  // Where nothing was thrown inside the library, the last message is an older call's, or none.
  const char* message = status == INVALID_C_PARAM ? nullptr : ov_get_last_err_msg();
  std::string said = message != nullptr ? message : "";
  // "Exception from src/inference/src/cpp/core.cpp:109:\n" and its like come before the reason.
  std::string reason;
  size_t begin = 0;
  while (begin < said.size()) {
    size_t end = said.find('\n', begin);
    if (end == std::string::npos) end = said.size();
    std::string line = said.substr(begin, end - begin);
    bool place = line.rfind("Exception from ", 0) == 0 || line.rfind("Check '", 0) == 0;
    if (!line.empty() && !place) reason += (reason.empty() ? "" : " ") + line;
    begin = end + 1;
  }
  if (reason.empty()) reason = ov_get_error_info(status);
  TVM_FFI_THROW(RuntimeError) << what << ": " << reason;
}

// A pointer that the C API gave, freed by the function that belongs to its type.
template <typename T, void (*Free)(T*)>
class OvHandle {
 public:
  OvHandle() = default;
  OvHandle(const OvHandle&) = delete;
  OvHandle& operator=(const OvHandle&) = delete;
  OvHandle(OvHandle&& other) noexcept : value_(other.value_) { other.value_ = nullptr; }
  ~OvHandle() { Reset(); }
  T* get() const { return value_; }
  T** out() {
    Reset();
    return &value_;
  }
  void Reset() {
    if (value_ != nullptr) Free(value_);
    value_ = nullptr;
  }

 private:
  T* value_ = nullptr;
};

using OvModel = OvHandle<ov_model_t, ov_model_free>;
using OvCompiledModel = OvHandle<ov_compiled_model_t, ov_compiled_model_free>;
using OvRequest = OvHandle<ov_infer_request_t, ov_infer_request_free>;
using OvTensor = OvHandle<ov_tensor_t, ov_tensor_free>;

// The process's core: plugins are loaded once. It lives as long as the process, since compiled
// models need its plugin until the last of them is gone.
ov_core_t* OvCore() {
  static ov_core_t* core = [] {
    ov_core_t* made = nullptr;
    OvCheck(ov_core_create(&made), "OpenVINO does not start");
    return made;
  }();
  return core;
}

ov_element_type_e OvType(const std::string& name) {
  static const std::map<std::string, ov_element_type_e> known = {
      {"bool", BOOLEAN}, {"float32", F32}, {"float16", F16}, {"float64", F64}, {"bfloat16", BF16},
      {"int8", I8},      {"int16", I16},   {"int32", I32},   {"int64", I64},   {"uint8", U8},
      {"uint16", U16},   {"uint32", U32},  {"uint64", U64}};
  return Named(known, name, "OpenVINO takes no tensors of");
}

// A tensor over memory that is somebody else's. A shape is only read, so `spec` lends its own.
void OvTensorOver(const TensorSpec& spec, void* data, ov_tensor_t** out) {
  ov_shape_t shape{static_cast<int64_t>(spec.shape.size()),
                   const_cast<int64_t*>(spec.shape.data())};
  OvCheck(ov_tensor_create_from_host_ptr(OvType(spec.dtype_name), shape, data, out),
          "OpenVINO cannot use the tensor");
}

// A tensor argument. A tensor is bound to its address for good: where the address is another one than
// in the call before, it is made anew and the request is told.
class Argument {
 public:
  using Set = ov_status_e (*)(ov_infer_request_t*, size_t, const ov_tensor_t*);

  Argument(const TensorSpec& spec, size_t place, Set set) : spec_(spec), place_(place), set_(set) {}

  void Bind(ov_infer_request_t* request, void* data) {
    // A tensor without elements may come without an address, which OpenVINO does not take.
    if (data == nullptr && spec_.bytes == 0) data = &nothing_;
    if (data == data_) return;
    data_ = nullptr;
    OvTensorOver(spec_, data, tensor_.out());
    OvCheck(set_(request, place_, tensor_.get()), "OpenVINO refuses a tensor");
    data_ = data;
  }

 private:
  TensorSpec spec_;
  size_t place_;
  Set set_;
  void* data_ = nullptr;
  OvTensor tensor_;
  alignas(64) char nothing_ = 0;
};

class OvModule : public PlanModule {
 public:
  OvModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& model)
      : PlanModule(symbol, plan_text), held_(model) {
    plan_ = ParseObject(plan_text, "the plan");
    spin_ = Get<bool>(plan_, "spin");
    precision_ = GetString(plan_, "precision");
    largest_ = GetInts(plan_, "largest");
    files_.Open(plan_);
    // What is only built to be saved is compiled by the process that loads it.
    if (!model.owner || !Has(plan_, "only_saved")) Open();
  }

 protected:
  void Execute() final {
    if (request_.get() == nullptr) Open();
    const std::vector<void*>& data = pointers();
    for (size_t i = 0; i < largest_.size(); ++i) {
      if (largest_[i] == 0) continue;
      bool wide = inputs()[i].dtype.bits == 64;
      size_t count = inputs()[i].bytes / (wide ? 8 : 4);
      wide ? CheckSizes(i, static_cast<const int64_t*>(data[i]), count)
           : CheckSizes(i, static_cast<const int32_t*>(data[i]), count);
    }
    for (size_t i = 0; i < arguments_.size(); ++i) arguments_[i].Bind(request_.get(), data[i]);
    OvCheck(ov_infer_request_infer(request_.get()), "OpenVINO fails");
  }

  bool Layers(json::Object* out) final {
    ov_profiling_info_list_t list{};
    OvCheck(ov_infer_request_get_profiling_info(request_.get(), &list), "OpenVINO has no counters");
    json::Array rows;
    for (size_t i = 0; i < list.size; ++i) {
      const ov_profiling_info_t& each = list.profiling_infos[i];
      json::Array row;
      row.push_back(ffi::String(each.node_name));
      row.push_back(ffi::String(each.status == ov_profiling_info_t::EXECUTED ? "EXECUTED" : "NOT_RUN"));
      row.push_back(ffi::String(each.node_type));
      row.push_back(ffi::String(each.exec_type));
      row.push_back(each.real_time / 1e3);  // milliseconds, the mean over all calls
      rows.push_back(row);
    }
    ov_profiling_info_list_free(&list);
    out->Set(ffi::String("rows"), rows);
    return true;
  }

  ffi::Bytes Weights() const final { return held_.Get(); }

 private:
  // OpenVINO computes whole numbers of 64 bits in 32, and most operators on them in float32.
  template <typename T>
  void CheckSizes(size_t input, const T* values, size_t count) const {
    T low = 0, high = 0;
    for (size_t k = 0; k < count; ++k) {
      low = std::min(low, values[k]);
      high = std::max(high, values[k]);
    }
    if (high <= largest_[input] && low >= -largest_[input]) return;
    TVM_FFI_THROW(ValueError) << symbol() << ": input " << input << " holds "
                              << (high > largest_[input] ? high : low)
                              << ", and OpenVINO computes this exactly up to " << largest_[input]
                              << " only (place the model with --inputs that hold such numbers)";
  }

  void Open() {
    size_t xml_bytes = static_cast<size_t>(Get<int64_t>(plan_, "xml_bytes"));
    if (xml_bytes > held_.size()) TVM_FFI_THROW(ValueError) << symbol() << ": the model is cut off";
    const char* xml = held_.data() + (held_.size() - xml_bytes);
    bool in_file = files_.count() != 0;
    char* data = in_file ? files_.buffers()[0] : const_cast<char*>(held_.data());
    size_t constants = in_file ? files_.sizes()[0] : held_.size() - xml_bytes;
    OvTensor weights;
    if (constants != 0) {
      TensorSpec spec{DLDataType{kDLUInt, 8, 1}, "uint8", {static_cast<int64_t>(constants)},
                      constants};
      OvTensorOver(spec, data, weights.out());
    }
    OvModel model;
    OvCheck(ov_core_read_model_from_memory_buffer(OvCore(), xml, xml_bytes,
                                                  weights.get(), model.out()),
            "OpenVINO cannot read the model");
    Compile(model.get());
    OvCheck(ov_compiled_model_create_infer_request(compiled_.get(), request_.out()),
            "OpenVINO makes no request");
    for (size_t i = 0; i < inputs().size(); ++i) {
      arguments_.emplace_back(inputs()[i], i, ov_infer_request_set_input_tensor_by_index);
    }
    for (size_t i = 0; i < outputs().size(); ++i) {
      arguments_.emplace_back(outputs()[i], i, ov_infer_request_set_output_tensor_by_index);
    }
    held_.Forget();
    files_.Forget();
    TrimHeap(held_.size() + (files_.count() != 0 ? files_.sizes()[0] : 0));
  }

  void Compile(const ov_model_t* model) {
    const std::string thread_count = std::to_string(threads());
    // A pool that is alone in its process may bind its threads to cores, as OpenVINO does by
    // itself; beside other pools it would sit on cores that they want.
    OvCheck(ov_core_compile_model(
                OvCore(), model, "CPU", 12, compiled_.out(),
                ov_property_key_hint_performance_mode, "LATENCY",
                ov_property_key_inference_num_threads, thread_count.c_str(),
                ov_property_key_num_streams, "1",
                ov_property_key_enable_profiling, LayersFolder() != nullptr ? "YES" : "NO",
                ov_property_key_hint_inference_precision, precision_.c_str(),
                ov_property_key_hint_enable_cpu_pinning, spin_ ? "YES" : "NO"),
            "OpenVINO cannot compile the model");
  }

  WeightFiles files_;
  HeldBytes held_;  // like the files it outlives the compiled model, whose constants point into it
  OvCompiledModel compiled_;
  OvRequest request_;
  json::Object plan_;
  std::deque<Argument> arguments_;
  bool spin_ = false;
  std::string precision_;
  std::vector<int64_t> largest_;  // magnitude that each input may hold; 0: all of its type
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::OvModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    char* devices = nullptr;
    // Asks the CPU plugin, so it is known to load.
    collage::OvCheck(
        ov_core_get_property(collage::OvCore(), "CPU", "FULL_DEVICE_NAME", &devices),
        "OpenVINO's CPU plugin does not load");
    ov_free(devices);
  });
}
