// A plan step as its operator reads it.
#ifndef COLLAGE_ONEDNN_SITE_H_
#define COLLAGE_ONEDNN_SITE_H_

#include "compiler.h"

namespace collage {

inline constexpr auto kInference = dnnl::prop_kind::forward_inference;

// A plan step and what it reads from the plan.
struct Site {
  const json::Object& step;
  int64_t out;
  std::vector<PostOp> posts;

  Dims dims() const { return GetInts(step, "dims"); }
  Dims ints(const char* key) const { return GetInts(step, key); }
  int64_t id(const char* key) const { return GetInt(step, key, -1); }
  float number(const char* key, double otherwise) const {
    return static_cast<float>(Has(step, key) ? Get<double>(step, key) : otherwise);
  }
  std::string text(const char* key) const { return GetString(step, key); }
  // The result's element type.
  Type type() const { return TypeOf(Has(step, "dtype") ? GetString(step, "dtype") : ""); }
  // Whether a product stays in float32 in a plan in bfloat16.
  bool full() const { return GetInt(step, "full", 0) != 0; }
  Scaling scaling() const {
    static const std::map<std::string, int> known = {{"src", DNNL_ARG_SRC},
                                                     {"other", DNNL_ARG_SRC_1},
                                                     {"weights", DNNL_ARG_WEIGHTS},
                                                     {"dst", DNNL_ARG_DST}};
    Scaling found;
    if (!Has(step, "scaling")) return found;
    for (const ffi::Any& any : Get<json::Array>(step, "scaling")) {
      auto o = any.cast<json::Object>();
      auto it = known.find(GetString(o, "of"));
      if (it == known.end()) TVM_FFI_THROW(ValueError) << "a scale of " << GetString(o, "of");
      found.entries.push_back({it->second, GetInt(o, "scale", -1), GetInt(o, "zero", -1),
                               static_cast<int>(GetInt(o, "mask", 0))});
    }
    return found;
  }
};

inline PostOp ParsePostOp(const json::Object& object) {
  PostOp op;
  op.eltwise = GetString(object, "kind") == "eltwise";
  op.name = GetString(object, "alg");
  op.alg = op.eltwise ? EltwiseAlgorithm(op.name) : BinaryAlgorithm(op.name);
  if (op.eltwise) {
    op.alpha = static_cast<float>(Get<double>(object, "alpha"));
    op.beta = static_cast<float>(Get<double>(object, "beta"));
  } else {
    op.value = Get<int64_t>(object, "value");
    op.scaled = Has(object, "scale");
    if (op.scaled) {
      op.scale = static_cast<float>(Get<double>(object, "scale"));
      op.zero = static_cast<int32_t>(GetInt(object, "zero", 0));
    }
  }
  return op;
}

}  // namespace collage

#endif  // COLLAGE_ONEDNN_SITE_H_
