// oneDNN as a runtime module: the plan is a list of operators over values, the weights their
// constants.
#include <dlfcn.h>

#include "held_bytes.h"
#include "operators.h"

namespace collage {
namespace {

// omp_set_num_threads of the libgomp that oneDNN itself has loaded.
SetThreadsFunction FindSetThreads() {
  void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) TVM_FFI_THROW(RuntimeError) << "oneDNN has loaded no libgomp.so.1";
  auto function = reinterpret_cast<SetThreadsFunction>(dlsym(library, "omp_set_num_threads"));
  if (function == nullptr) TVM_FFI_THROW(RuntimeError) << "libgomp lacks omp_set_num_threads";
  return function;
}

class DnnlModule : public PlanModule {
 public:
  DnnlModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : PlanModule(symbol, plan_text), held_(weights) {
    json::Object plan = ParseObject(plan_text, "the plan");
    static const SetThreadsFunction set_threads = FindSetThreads();
    set_threads_ = set_threads;
    try {
      Build(plan, weights);
    } catch (const dnnl::error& e) {
      TVM_FFI_THROW(RuntimeError) << "oneDNN: " << e.message << " (" << dnnl_status2str(e.status)
                                  << ")" << (at_.empty() ? "" : " at " + at_);
    }
  }

 protected:
  void Execute() final {
    program_.Run(compiler_->stream(), pointers());
  }

  void Describe(json::Object* out) const final {
    json::Array steps;
    for (const Step& step : program_.steps()) {
      json::Object o = About(step);
      o.Set(ffi::String("takes"), ffi::String(step.takes));
      o.Set(ffi::String("gives"), ffi::String(step.gives));
      o.Set(ffi::String("fused"), ffi::String(step.fused));
      o.Set(ffi::String("threads"), static_cast<int64_t>(step.threads));
      steps.push_back(o);
    }
    out->Set(ffi::String("steps"), steps);
  }

  bool Layers(json::Object* out) final {
    json::Array steps;
    for (const Step& step : program_.steps()) {
      json::Array us;
      for (double each : step.us) us.push_back(each);
      json::Object o = About(step);
      o.Set(ffi::String("source"), static_cast<int64_t>(step.source));
      o.Set(ffi::String("us"), us);
      steps.push_back(o);
    }
    out->Set(ffi::String("plan"), ffi::String(plan_text()));
    out->Set(ffi::String("steps"), steps);
    return true;
  }

  ffi::Bytes Weights() const final { return held_.Get(); }

 private:
  static json::Object About(const Step& step) {
    json::Object o;
    o.Set(ffi::String("what"), ffi::String(step.what));
    o.Set(ffi::String("implementation"), ffi::String(step.implementation));
    return o;
  }

  void Build(const json::Object& plan, const GivenWeights& weights) {
    compiler_ = std::make_unique<Compiler>(program_, weights.data,
                                           GetInt(plan, "bfloat16", 0) != 0);
    Compiler& c = *compiler_;
    std::vector<int64_t> input_ids = GetInts(plan, "input_ids");
    std::vector<int64_t> output_ids = GetInts(plan, "output_ids");
    auto dims_of = [](const TensorSpec& s) { return s.shape.empty() ? Dims{1} : Dims(s.shape); };
    for (size_t i = 0; i < input_ids.size(); ++i) {
      c.DefineInput(input_ids[i], dims_of(inputs()[i]), TypeOf(inputs()[i].dtype_name),
                    static_cast<int>(i));
    }
    for (const ffi::Any& any : Get<json::Array>(plan, "constants")) {
      auto constant = any.cast<json::Object>();
      Dims dims = GetInts(constant, "dims");
      int64_t offset = Get<int64_t>(constant, "offset");
      c.DefineConstant(Get<int64_t>(constant, "id"), dims, static_cast<size_t>(offset));
    }
    json::Array steps = Get<json::Array>(plan, "steps");
    c.SetAlone(Get<int64_t>(plan, "alone") != 0);
    int index = 0;
    for (const ffi::Any& any : steps) {
      auto step = any.cast<json::Object>();
      std::string op = GetString(step, "op");
      at_ = op + " " + (Has(step, "name") ? GetString(step, "name") : std::to_string(index));
      Site site{step, Get<int64_t>(step, "out"), {}};
      if (Has(step, "post")) {
        for (const ffi::Any& p : Get<json::Array>(step, "post")) {
          site.posts.push_back(ParsePostOp(p.cast<json::Object>()));
        }
      }
      program_.SetSource(index++);
      Share(Get<int64_t>(step, "shared") != 0);
      c.Define(site.out, Lower(c, op, site));
    }
    at_.clear();
    program_.SetSource(-1);
    BindOutputs(output_ids);
    c.constants().Keep();
    program_.Finish();
  }

  // Elements from which a copy is shared among the threads, as steps are (WORTH_SHARING_US of steps.py):
  // 20 µs at 0.15 ns each.
  static constexpr int64_t kManyElements = 133000;

  // Let a result be computed where the caller wants it, or copy it there.
  void BindOutputs(const std::vector<int64_t>& ids) {
    Compiler& c = *compiler_;
    for (size_t i = 0; i < ids.size(); ++i) {
      int argument = static_cast<int>(inputs().size() + i);
      const View view = c.Value(ids[i]);
      // The caller's type: a result may be held in bfloat16 here, for those that read it next.
      Desc plain = PlainDesc(view.dims, TypeOf(outputs()[i].dtype_name));
      Buffer& buffer = program_.buffer(view.buffer);
      if (buffer.kind == Buffer::kArena && view.offset == 0 && SameLayout(view.desc, plain) &&
          buffer.bytes == plain.get_size()) {
        buffer.kind = Buffer::kArgument;
        buffer.argument = argument;
      } else {
        View to{view.dims, plain, program_.NewArgument(argument, plain.get_size()), 0};
        Share(Elements(view.dims) >= kManyElements);
        c.ReorderTo(view, to);
      }
    }
  }

  // Give what follows all threads, or only the caller's.
  void Share(bool worthwhile) { program_.SetThreads(set_threads_, worthwhile ? threads() : 1); }

  Program program_;
  std::unique_ptr<Compiler> compiler_;
  std::string at_;
  HeldBytes held_;
  SetThreadsFunction set_threads_ = nullptr;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::DnnlModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    try {
      dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    } catch (const dnnl::error& e) {
      TVM_FFI_THROW(RuntimeError) << "oneDNN has no CPU engine: " << e.message;
    }
  });
}
