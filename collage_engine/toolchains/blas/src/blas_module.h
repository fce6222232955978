// A BLAS as a runtime module: the plan is a list of steps over places in memory, the weights are
// used where they lie.
#ifndef COLLAGE_BLAS_MODULE_H_
#define COLLAGE_BLAS_MODULE_H_

#include "steps.h"

namespace collage {

struct AlignedFree {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Aligned = std::unique_ptr<float[], AlignedFree>;

inline Aligned NewAligned(size_t bytes) {
  size_t elements = std::max<size_t>(16, (bytes + 3) / 4);
  return Aligned(static_cast<float*>(::operator new[](elements * 4, std::align_val_t(64))));
}

// Called once, when the first module is made: one thread of the library's own.
void StartLibrary();

class BlasModule : public PlanModule {
 public:
  BlasModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : PlanModule(symbol, plan_text), weights_bytes_(weights.size) {
    json::Object plan = ParseObject(plan_text, "the plan");
    for (const auto* specs : {&inputs(), &outputs()}) {
      for (const TensorSpec& spec : *specs) {
        if (spec.dtype.code != kDLFloat || spec.dtype.bits != 32) {
          TVM_FFI_THROW(TypeError) << "the BLAS runtime takes float32 tensors only";
        }
      }
    }
    threads_ = static_cast<int>(Get<int64_t>(plan, "threads"));
    static const bool started = (StartLibrary(), true);
    (void)started;
    Pool::Get().Grow(threads_, Get<bool>(plan, "spin"));
    weights_ = NewAligned(weights.size);
    std::memcpy(weights_.get(), weights.data, weights.size);
    arena_bytes_ = static_cast<size_t>(Get<int64_t>(plan, "arena_bytes"));
    arena_ = NewAligned(arena_bytes_);
    for (const ffi::Any& any : Get<json::Array>(plan, "steps")) {
      steps_.push_back(MakeStep(any.cast<json::Object>(), threads_));
    }
  }

 protected:
  void Execute() final {
    Bases bases{&pointers(), inputs().size(), weights_.get(), arena_.get()};
    for (const auto& step : steps_) step->Run(bases);
  }

  std::string Describe() const final {
    json::Array steps;
    for (const auto& step : steps_) {
      json::Object o;
      Put(&o, "name", step->name);
      step->Describe(&o);
      Put(&o, "threads", static_cast<int64_t>(step->threads));
      steps.push_back(o);
    }
    json::Object out;
    Put(&out, "library", LibraryName());
    Put(&out, "threads", static_cast<int64_t>(threads_));
    Put(&out, "arena_bytes", static_cast<int64_t>(arena_bytes_));
    Put(&out, "weights_bytes", static_cast<int64_t>(weights_bytes_));
    out.Set(ffi::String("steps"), steps);
    return std::string(json::Stringify(out));
  }

  ffi::Bytes Weights() const final {
    return ffi::Bytes(reinterpret_cast<const char*>(weights_.get()), weights_bytes_);
  }

 private:
  size_t weights_bytes_, arena_bytes_ = 0;
  int threads_ = 1;
  Aligned weights_, arena_;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::BlasModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    collage::StartLibrary();
    float a = 2.0f, b = 3.0f, c = 0.0f;
    collage::Multiply(false, false, 1, 1, 1, &a, 1, &b, 1, 0.0f, &c, 1);
    if (c != 6.0f) TVM_FFI_THROW(RuntimeError) << "the BLAS multiplies wrongly";
    return tvm::ffi::String(collage::LibraryName());
  });
}

#endif  // COLLAGE_BLAS_MODULE_H_
