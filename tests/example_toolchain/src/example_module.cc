// The example's runtime: a plan's steps in plain loops, one thread.
//
// collage_module.h checks the arguments of a call, serialises the module and registers it; what is
// left for a runtime is to read the plan once (the constructor), to run it (Execute), to say what
// is inside (Describe) and to give its weights back when it is saved (Weights).
#include <cmath>

#include "collage_module.h"

namespace collage {
namespace {

// A value: an argument of the call, a weight, or scratch memory.
struct Place {
  enum Where { kArgument, kWeight, kScratch } where;
  size_t at;  // number of the argument, or offset in bytes
};

Place ParsePlace(const json::Object& object) {
  std::string where = GetString(object, "where");
  auto kind = where == "argument" ? Place::kArgument
              : where == "weight" ? Place::kWeight
                                  : Place::kScratch;
  return {kind, static_cast<size_t>(Get<int64_t>(object, "at"))};
}

struct Step {
  std::string what;
  std::vector<Place> reads;
  Place writes;
  int64_t rows = 0, depth = 0, columns = 0;   // of a product
  std::vector<int64_t> shape;                 // of an element-wise result
  std::vector<std::vector<int64_t>> strides;  // of each operand, in elements
};

using Unary = float (*)(float);
using Binary = float (*)(float, float);

Unary UnaryNamed(const std::string& name) {
  if (name == "nn.relu") return [](float x) { return x > 0.0f ? x : (std::isnan(x) ? x : 0.0f); };
  if (name == "abs") return [](float x) { return std::fabs(x); };
  if (name == "negative") return [](float x) { return -x; };
  if (name == "exp") return [](float x) { return std::exp(x); };
  if (name == "tanh") return [](float x) { return std::tanh(x); };
  if (name == "sigmoid") return [](float x) { return 1.0f / (1.0f + std::exp(-x)); };
  if (name == "sqrt") return [](float x) { return std::sqrt(x); };
  return nullptr;
}

Binary BinaryNamed(const std::string& name) {
  if (name == "add") return [](float a, float b) { return a + b; };
  if (name == "subtract") return [](float a, float b) { return a - b; };
  if (name == "multiply") return [](float a, float b) { return a * b; };
  if (name == "divide") return [](float a, float b) { return a / b; };
  if (name == "maximum") return [](float a, float b) { return a > b || std::isnan(a) ? a : b; };
  if (name == "minimum") return [](float a, float b) { return a < b || std::isnan(a) ? a : b; };
  return nullptr;
}

class ExampleModule : public PlanModule {
 public:
  ExampleModule(const std::string& symbol, const std::string& plan_text,
                const GivenWeights& weights)
      : PlanModule(symbol, plan_text), weights_((weights.size + 3) / 4) {
    weights_bytes_ = weights.size;
    std::memcpy(weights_.data(), weights.data, weights.size);
    json::Object plan = ParseObject(plan_text, "the plan");
    scratch_.resize(static_cast<size_t>(Get<int64_t>(plan, "scratch")) / 4);
    for (const ffi::Any& any : Get<json::Array>(plan, "steps")) {
      json::Object object = any.cast<json::Object>();
      Step step;
      step.what = GetString(object, "what");
      for (const ffi::Any& read : Get<json::Array>(object, "reads")) {
        step.reads.push_back(ParsePlace(read.cast<json::Object>()));
      }
      step.writes = ParsePlace(Get<json::Object>(object, "writes"));
      if (step.what == "matmul") {
        step.rows = Get<int64_t>(object, "rows");
        step.depth = Get<int64_t>(object, "depth");
        step.columns = Get<int64_t>(object, "columns");
      } else if (UnaryNamed(step.what) || BinaryNamed(step.what)) {
        step.shape = GetInts(object, "shape");
        for (const ffi::Any& each : Get<json::Array>(object, "strides")) {
          std::vector<int64_t> strides;
          for (const ffi::Any& v : each.cast<json::Array>()) strides.push_back(v.cast<int64_t>());
          step.strides.push_back(strides);
        }
      } else {
        TVM_FFI_THROW(ValueError) << "the example's runtime computes no " << step.what;
      }
      steps_.push_back(step);
    }
  }

 protected:
  void Execute() final {
    for (const Step& step : steps_) {
      if (step.what == "matmul") {
        Multiply(step);
      } else {
        Elementwise(step);
      }
    }
  }

  void Describe(json::Object* out) const final {
    json::Array steps;
    for (const Step& step : steps_) {
      json::Object object;
      object.Set(ffi::String("what"), ffi::String(step.what));
      steps.push_back(object);
    }
    out->Set(ffi::String("threads"), static_cast<int64_t>(1));
    out->Set(ffi::String("steps"), steps);
  }

  ffi::Bytes Weights() const final {
    return ffi::Bytes(reinterpret_cast<const char*>(weights_.data()), weights_bytes_);
  }

 private:
  float* At(const Place& place) {
    if (place.where == Place::kArgument) return static_cast<float*>(pointers()[place.at]);
    return (place.where == Place::kWeight ? weights_ : scratch_).data() + place.at / 4;
  }

  void Multiply(const Step& step) {
    const float *left = At(step.reads[0]), *right = At(step.reads[1]);
    float* out = At(step.writes);
    for (int64_t row = 0; row < step.rows; ++row, left += step.depth, out += step.columns) {
      std::fill(out, out + step.columns, 0.0f);
      for (int64_t k = 0; k < step.depth; ++k) {
        for (int64_t c = 0; c < step.columns; ++c) out[c] += left[k] * right[k * step.columns + c];
      }
    }
  }

  // Counts through the result's places; every operand moves by its own strides.
  void Elementwise(const Step& step) {
    Unary unary = UnaryNamed(step.what);
    Binary binary = BinaryNamed(step.what);
    const float* first = At(step.reads[0]);
    const float* second = unary ? first : At(step.reads[1]);
    float* out = At(step.writes);
    size_t rank = step.shape.size();
    std::vector<int64_t> place(rank, 0);
    int64_t count = 1, a = 0, b = 0;
    for (int64_t extent : step.shape) count *= extent;
    for (int64_t n = 0; n < count; ++n) {
      out[n] = unary ? unary(first[a]) : binary(first[a], second[b]);
      for (size_t axis = rank; axis-- > 0;) {
        a += step.strides[0][axis];
        if (!unary) b += step.strides[1][axis];
        if (++place[axis] < step.shape[axis]) break;
        place[axis] = 0;
        a -= step.strides[0][axis] * step.shape[axis];
        if (!unary) b -= step.strides[1][axis] * step.shape[axis];
      }
    }
  }

  size_t weights_bytes_;
  std::vector<float> weights_, scratch_;
  std::vector<Step> steps_;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::ExampleModule>();
  // Asked when the toolchain is probed; a runtime that calls a library tries it here.
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check",
                                        [] { return tvm::ffi::String("1.0"); });
}
