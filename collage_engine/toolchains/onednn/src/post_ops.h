// Post-ops and the names that plans give to the library's functions.
#ifndef COLLAGE_ONEDNN_POST_OPS_H_
#define COLLAGE_ONEDNN_POST_OPS_H_

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "collage_module.h"

namespace collage {

using dnnl::algorithm;
using dnnl::primitive_attr;
using PrimitiveDesc = dnnl::primitive_desc;

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

}  // namespace collage

#endif  // COLLAGE_ONEDNN_POST_OPS_H_
