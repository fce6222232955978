// A step of a plan as its operator reads it: post-ops, and the names that plans give to functions.
#ifndef COLLAGE_ONEDNN_PLAN_STEP_H_
#define COLLAGE_ONEDNN_PLAN_STEP_H_

#include "layout.h"

namespace collage {

using dnnl::algorithm;
using dnnl::primitive_attr;
using PrimitiveDesc = dnnl::primitive_desc;
inline constexpr auto kInference = dnnl::prop_kind::forward_inference;

// What is applied to an operator's result before it is stored.
struct PostOp {
  bool eltwise = true;
  algorithm alg = algorithm::undef;
  float alpha = 0, beta = 0;
  int64_t value = -1;  // the other operand of a binary one
  bool last = false;   // whether nobody reads that operand's memory afterwards
  std::string name;
};

inline algorithm EltwiseAlgorithm(const std::string& name) {
  static const std::map<std::string, algorithm> known = {
      {"relu", algorithm::eltwise_relu},         {"tanh", algorithm::eltwise_tanh},
      {"square", algorithm::eltwise_square},
      {"abs", algorithm::eltwise_abs},           {"sqrt", algorithm::eltwise_sqrt},
      {"swish", algorithm::eltwise_swish},       {"linear", algorithm::eltwise_linear},
      {"soft_relu", algorithm::eltwise_soft_relu},
      {"logistic", algorithm::eltwise_logistic}, {"exp", algorithm::eltwise_exp},
      {"gelu_tanh", algorithm::eltwise_gelu_tanh}, {"gelu_erf", algorithm::eltwise_gelu_erf},
      {"log", algorithm::eltwise_log},           {"clip", algorithm::eltwise_clip},
      {"pow", algorithm::eltwise_pow},           {"round", algorithm::eltwise_round},
      {"hardswish", algorithm::eltwise_hardswish},
      {"hardsigmoid", algorithm::eltwise_hardsigmoid}};
  return Named(known, name, "unknown elementwise function");
}

inline algorithm BinaryAlgorithm(const std::string& name) {
  static const std::map<std::string, algorithm> known = {
      {"add", algorithm::binary_add}, {"sub", algorithm::binary_sub},
      {"mul", algorithm::binary_mul}, {"div", algorithm::binary_div},
      {"max", algorithm::binary_max}, {"min", algorithm::binary_min}};
  return Named(known, name, "unknown binary function");
}

inline bool Commutes(algorithm alg) {
  return alg != algorithm::binary_sub && alg != algorithm::binary_div;
}

// The library's portable fallback, ten to a hundred times slower than its real kernels.
inline bool IsReference(const PrimitiveDesc& pd) {
  return std::string(pd.impl_info_str()).find("ref") != std::string::npos;
}

// A plan step and what it reads from the plan.
struct Site {
  const json::Object& step;
  int64_t out;
  std::vector<PostOp> posts;

  Dims dims() const { return GetInts(step, "dims"); }
  Dims ints(const char* key) const { return GetInts(step, key); }
  int64_t id(const char* key) const { return GetInt(step, key, -1); }
  float number(const char* key) const { return static_cast<float>(Get<double>(step, key)); }
  std::string text(const char* key) const { return GetString(step, key); }
  // The result's element type.
  Type type() const { return TypeOf(Has(step, "dtype") ? GetString(step, "dtype") : ""); }
  // Whether a product stays in float32 in a plan in bfloat16.
  bool full() const { return GetInt(step, "full", 0) != 0; }
};

inline PostOp ParsePostOp(const json::Object& object) {
  PostOp op;
  op.eltwise = GetString(object, "kind") == "eltwise";
  op.name = GetString(object, "alg");
  op.alg = op.eltwise ? EltwiseAlgorithm(op.name) : BinaryAlgorithm(op.name);
  op.alpha = static_cast<float>(Get<double>(object, "alpha"));
  op.beta = static_cast<float>(Get<double>(object, "beta"));
  op.value = Get<int64_t>(object, "value");
  op.last = Get<bool>(object, "last");
  return op;
}

}  // namespace collage

#endif  // COLLAGE_ONEDNN_PLAN_STEP_H_
