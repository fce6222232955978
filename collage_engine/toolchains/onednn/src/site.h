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

#endif  // COLLAGE_ONEDNN_SITE_H_
