// OpenVINO's C API with errors as exceptions and handles that free themselves.
#ifndef COLLAGE_OV_API_H_
#define COLLAGE_OV_API_H_

#include <openvino/c/openvino.h>

#include <string>
#include <vector>

#include "collage_module.h"

namespace collage {

inline void OvCheck(ov_status_e status, const char* what) {
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
inline ov_core_t* OvCore() {
  static ov_core_t* core = [] {
    ov_core_t* made = nullptr;
    OvCheck(ov_core_create(&made), "OpenVINO does not start");
    return made;
  }();
  return core;
}

inline std::string OvVersion() {
  ov_version_t version{};
  OvCheck(ov_get_openvino_version(&version), "OpenVINO has no version");
  std::string text = version.buildNumber;
  ov_version_free(&version);
  return text;
}

inline ov_element_type_e OvType(const std::string& name) {
  static const std::map<std::string, ov_element_type_e> known = {
      {"bool", BOOLEAN}, {"float32", F32}, {"float16", F16}, {"float64", F64}, {"bfloat16", BF16},
      {"int8", I8},      {"int16", I16},   {"int32", I32},   {"int64", I64},   {"uint8", U8},
      {"uint16", U16},   {"uint32", U32},  {"uint64", U64}};
  return Named(known, name, "OpenVINO takes no tensors of");
}

// A tensor over memory that is somebody else's. A shape is only read, so `spec` lends its own.
inline void OvTensorOver(const TensorSpec& spec, void* data, ov_tensor_t** out) {
  ov_shape_t shape{static_cast<int64_t>(spec.shape.size()),
                   const_cast<int64_t*>(spec.shape.data())};
  OvCheck(ov_tensor_create_from_host_ptr(OvType(spec.dtype_name), shape, data, out),
          "OpenVINO cannot use the tensor");
}

}  // namespace collage

#endif  // COLLAGE_OV_API_H_
