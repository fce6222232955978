// Tango's runtime: one function after the other on every element.
#include <cmath>

#include "collage_module.h"

namespace collage {
namespace {

struct Step {
  std::string what;
  int64_t count;
  bool reads_argument, writes_argument;
  size_t reads, writes;  // number of the argument, or offset in bytes
};

class TangoModule : public PlanModule {
 public:
  TangoModule(const std::string& symbol, const std::string& plan_text, const GivenWeights&)
      : PlanModule(symbol, plan_text) {
    json::Object plan = ParseObject(plan_text, "the plan");
    scratch_.resize(static_cast<size_t>(Get<int64_t>(plan, "scratch")) / 4);
    for (const ffi::Any& any : Get<json::Array>(plan, "steps")) {
      json::Object step = any.cast<json::Object>();
      json::Object reads = Get<json::Object>(step, "reads");
      json::Object writes = Get<json::Object>(step, "writes");
      steps_.push_back({GetString(step, "what"), Get<int64_t>(step, "count"),
                        GetString(reads, "where") == "argument",
                        GetString(writes, "where") == "argument",
                        static_cast<size_t>(Get<int64_t>(reads, "at")),
                        static_cast<size_t>(Get<int64_t>(writes, "at"))});
    }
  }

 protected:
  void Execute() final {
    for (const Step& step : steps_) {
      const float* in = At(step.reads_argument, step.reads);
      float* out = At(step.writes_argument, step.writes);
      for (int64_t i = 0; i < step.count; ++i) {
        float x = in[i];
        out[i] = step.what == "tanh" ? std::tanh(x) : step.what == "abs" ? std::fabs(x)
                                                                           : x < 0.0f ? 0.0f : x;  // NaN stays
      }
    }
  }
  std::string Describe() const final { return "{\"dances\":" + std::to_string(steps_.size()) + "}"; }
  ffi::Bytes Weights() const final { return ffi::Bytes("", 0); }

 private:
  float* At(bool argument, size_t at) {
    return argument ? static_cast<float*>(pointers()[at]) : scratch_.data() + at / 4;
  }
  std::vector<float> scratch_;
  std::vector<Step> steps_;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::TangoModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check",
                                        [] { return tvm::ffi::String("tango"); });
}
