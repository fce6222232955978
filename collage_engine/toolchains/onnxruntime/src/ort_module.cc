// ONNX Runtime as a runtime module: the weights are an ONNX model, the plan names its values and,
// for a large model, the files that hold the data of its tensors.
//
// One environment per process owns a thread pool. Its size and spinning are those of the first
// module; a module that wants others gets a pool of its own in its session.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <deque>

#include "collage_module.h"
#include "held_bytes.h"
#include "ort_api.h"

namespace collage {
namespace {

// The process's environment; lives as long as the process, sessions point into it.
class Environment {
 public:
  static Environment& Instance(int threads, bool spin) {
    static Environment* environment = new Environment(threads, spin);
    return *environment;
  }
  bool Fits(int threads, bool spin) const {
    // A pool of one thread is the caller itself: it has nobody who could spin.
    return !OrtApi::Instance().hosted() && threads == threads_ && (threads == 1 || spin == spin_);
  }
  void* env() const { return env_; }
  void* memory() const { return memory_; }

 private:
  Environment(int threads, bool spin) : threads_(threads), spin_(spin) {
    const OrtApi& api = OrtApi::Instance();
    OrtHandle options(kReleaseThreadingOptions);
    api.Call(kCreateThreadingOptions, options.out());
    api.Call(kSetGlobalIntraOpNumThreads, options.get(), threads);
    api.Call(kSetGlobalInterOpNumThreads, options.get(), 1);
    api.Call(kSetGlobalSpinControl, options.get(), spin ? 1 : 0);
    api.Call(kCreateEnvWithGlobalThreadPools, kOrtError, static_cast<const char*>("collage"),
             static_cast<const void*>(options.get()), &env_);
    // It would write the names of models and graphs to a queue in the user's cache.
    if (!api.hosted()) api.Call(kDisableTelemetryEvents, static_cast<const void*>(env_));
    api.Call(kCreateCpuMemoryInfo, kOrtDeviceAllocator, kOrtMemTypeDefault, &memory_);
  }
  int threads_;
  bool spin_;
  void* env_ = nullptr;
  void* memory_ = nullptr;
};

// Whether ONNX Runtime's kernels for this processor add products of uint8 and int8 in pairs of 16
// bits, which saturate. With VNNI they do not, and the exact ones take up to 1.2 times as long.
bool SumsSaturate() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  bool avx512_vnni = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 11)) != 0;
  bool avx_vnni = __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
  return !avx512_vnni && !avx_vnni;
#else
  return false;
#endif
}

constexpr int kOnnxString = 8;

// Texts of a tensor of bytes as one of ONNX Runtime's, which has its own memory.
void MakeTexts(const TensorSpec& spec, const char* data, OrtHandle* made) {
  const OrtApi& api = OrtApi::Instance();
  void* allocator = nullptr;
  api.Call(kGetAllocatorWithDefaultOptions, &allocator);
  api.Call(kCreateTensorAsOrtValue, allocator, static_cast<const int64_t*>(spec.shape.data()),
           spec.shape.size() - 1, static_cast<int>(kOnnxString), made->out());
  size_t count = spec.bytes / kTextBytes;
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) {
    const char* begin = data + i * kTextBytes;
    texts.emplace_back(begin, strnlen(begin, kTextBytes));
  }
  std::vector<const char*> chars;
  for (const std::string& text : texts) chars.push_back(text.c_str());
  api.Call(kFillStringTensor, made->get(), static_cast<const char* const*>(chars.data()), count);
}

// ONNX Runtime's texts as bytes, each filled up with zeros.
std::string ReadTexts(const void* value, size_t count) {
  const OrtApi& api = OrtApi::Instance();
  std::string out(count * kTextBytes, '\0');
  for (size_t i = 0; i < count; ++i) {
    size_t size = 0;
    api.Call(kGetStringTensorElementLength, value, i, &size);
    if (size > static_cast<size_t>(kTextBytes)) {
      TVM_FFI_THROW(ValueError) << "a text of " << size << " bytes was computed, and at most "
                                << kTextBytes << " are supported";
    }
    if (size != 0) {
      api.Call(kGetStringTensorElement, value, size, i,
               static_cast<void*>(out.data() + i * kTextBytes));
    }
  }
  return out;
}

// A tensor argument's OrtValue. It is bound to its address for good, so it is made anew where the
// address is another one than in the call before.
class Argument {
 public:
  Argument(const TensorSpec& spec, void* memory)
      : spec_(spec),
        type_(spec.text ? kOnnxString : OnnxType(spec.dtype_name)),
        memory_(memory) {
    make_ = OrtApi::Instance().Function<Make>(kCreateTensorWithDataAsOrtValue);
  }

  bool text() const { return spec_.text; }

  void* At(void* data) {
    if (spec_.text) {  // the texts that lie there now are copied for each call
      MakeTexts(spec_, static_cast<const char*>(data), &value_);
    } else if (value_.get() == nullptr || data != data_) {
      OrtApi::Instance().Check(make_(memory_, data, spec_.bytes, spec_.shape.data(),
                                     spec_.shape.size(), type_, value_.out()));
      data_ = data;
    }
    return value_.get();
  }

 private:
  using Make = void* (*)(void*, void*, size_t, const int64_t*, size_t, int, void**);
  TensorSpec spec_;
  int type_;
  void* memory_;
  Make make_;
  void* data_ = nullptr;
  OrtHandle value_{kReleaseValue};
};

std::vector<std::string> Names(const json::Object& plan, const char* key) {
  std::vector<std::string> out;
  for (const ffi::Any& v : Get<json::Array>(plan, key)) {
    out.push_back(std::string(v.cast<ffi::String>()));
  }
  return out;
}

class OrtModule : public PlanModule {
 public:
  OrtModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& model)
      : PlanModule(symbol, plan_text),
        session_(kReleaseSession),
        held_(model) {
    json::Object plan = ParseObject(plan_text, "the plan");
    input_names_ = Names(plan, "input_names");
    output_names_ = Names(plan, "output_names");
    if (input_names_.size() != inputs().size() || output_names_.size() != outputs().size()) {
      TVM_FFI_THROW(ValueError) << symbol << ": the plan's names do not match its tensors";
    }
    spin_ = Get<bool>(plan, "spin");
    files_.Open(plan);
    Open(plan, model);
    files_.Forget();
    size_t model_bytes = model.size;
    for (size_t i = 0; i < files_.count(); ++i) model_bytes += files_.sizes()[i];
    TrimHeap(model_bytes);
  }

 protected:
  void Execute() final {
    const std::vector<void*>& data = pointers();
    size_t n = input_names_.size();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      // The session makes texts itself, and what is returned: it knows only then how large they are.
      bool made_there = i >= data.size() || (i >= n && arguments_[i].text());
      values_[i] = made_there ? nullptr : arguments_[i].At(data[i]);
    }
    OrtApi::Instance().Check(run_(session_.get(), nullptr, input_chars_.data(),
                                  values_.data(), n, output_chars_.data(), output_names_.size(),
                                  values_.data() + n));
    for (size_t i = n; i < data.size(); ++i) {
      if (!arguments_[i].text()) continue;
      OrtHandle made(kReleaseValue);
      *made.out() = values_[i];
      std::string texts = ReadTexts(made.get(), outputs()[i - n].bytes / kTextBytes);
      std::memcpy(data[i], texts.data(), texts.size());
    }
  }

  ffi::Array<ffi::Any> ExecuteReturning() final {
    Execute();
    std::vector<OrtHandle> made;
    for (size_t i = input_names_.size(); i < values_.size(); ++i) {
      made.emplace_back(kReleaseValue);
      *made.back().out() = values_[i];
    }
    ffi::Array<ffi::Any> out;
    for (size_t i = 0; i < made.size(); ++i) out.push_back(Copy(made[i].get(), outputs()[i]));
    return out;
  }

  void Describe(json::Object* out) const final {
    out->Set(ffi::String("shared_pool"), shared_pool_);
  }

  bool Layers(json::Object* out) final {
    session_.Reset();  // writes its profile
    out->Set(ffi::String("files"), ffi::String(ProfileFiles()));
    return true;
  }

  ffi::Bytes Weights() const final { return held_.Get(); }

 private:
  void Open(const json::Object& plan, const GivenWeights& model) {
    const Environment& environment = Environment::Instance(threads(), spin_);
    shared_pool_ = environment.Fits(threads(), spin_);
    try {
      OpenSession(plan, model, environment);
    } catch (const ffi::Error&) {
      // A program that uses ONNX Runtime itself has made the process's environment, without a pool to share.
      if (!shared_pool_) throw;
      shared_pool_ = false;
      OpenSession(plan, model, environment);
    }
    for (const std::string& name : input_names_) input_chars_.push_back(name.c_str());
    for (const std::string& name : output_names_) output_chars_.push_back(name.c_str());
    for (const TensorSpec& s : inputs()) arguments_.emplace_back(s, environment.memory());
    for (const TensorSpec& s : outputs()) arguments_.emplace_back(s, environment.memory());
    values_.assign(arguments_.size(), nullptr);
    run_ = OrtApi::Instance().Function<RunFunction>(kRun);
  }

  void OpenSession(const json::Object& plan, const GivenWeights& model, const Environment& environment) {
    const OrtApi& api = OrtApi::Instance();
    OrtHandle options(kReleaseSessionOptions);
    api.Call(kCreateSessionOptions, options.out());
    api.Call(kSetInterOpNumThreads, options.get(), 1);
    if (shared_pool_) {
      api.Call(kDisablePerSessionThreads, options.get());
    } else {
      api.Call(kSetIntraOpNumThreads, options.get(), threads());
      api.Call(kAddSessionConfigEntry, options.get(),
               static_cast<const char*>("session.intra_op.allow_spinning"), spin_ ? "1" : "0");
    }
    if (LayersFolder() != nullptr) {
      api.Call(kEnableProfiling, options.get(), ProfileFiles().c_str());
    }
    if (Has(plan, "optimized_model")) {  // for looking at what the optimiser made of it
      std::string path = GetString(plan, "optimized_model");
      api.Call(kSetOptimizedModelFilePath, options.get(), path.c_str());
    }
    if (files_.count() != 0) {
      api.Call(kAddExternalInitializersFromFilesInMemory, options.get(), files_.names(),
               files_.buffers(), files_.sizes(), files_.count());
    }
    auto open = [&](const char* exact) {
      api.Call(kAddSessionConfigEntry, options.get(),
               static_cast<const char*>("session.x64quantprecision"), exact);
      api.Call(kCreateSessionFromArray, static_cast<const void*>(environment.env()),
               static_cast<const void*>(model.data), model.size,
               static_cast<const void*>(options.get()), session_.out());
    };
    // It refuses some products of int8 by int8, which are exact as they are.
    try {
      open(SumsSaturate() ? "1" : "0");
    } catch (const ffi::Error&) {
      open("0");
    }
  }

  // How the names of files begin that the session writes its profile to.
  std::string ProfileFiles() const { return std::string(LayersFolder()) + "/" + symbol(); }

  // A tensor of the session as one of TVM's.
  ffi::Tensor Copy(void* value, const TensorSpec& spec) {
    const OrtApi& api = OrtApi::Instance();
    std::vector<int64_t> shape = OrtShape(value);
    if (spec.text) {
      size_t count = 1;
      for (int64_t extent : shape) count *= static_cast<size_t>(extent);
      shape.push_back(kTextBytes);
      return NewTensor(ReadTexts(value, count).data(), shape, spec);
    }
    void* data = nullptr;
    api.Call(kGetTensorMutableData, value, &data);
    return NewTensor(data, shape, spec);
  }

  using RunFunction = void* (*)(void*, const void*, const char* const*, void* const*, size_t,
                                const char* const*, size_t, void**);
  std::vector<std::string> input_names_, output_names_;
  std::vector<const char*> input_chars_, output_chars_;
  std::vector<void*> values_;
  WeightFiles files_;  // outlives the session, whose tensors may point into it
  OrtHandle session_;
  std::deque<Argument> arguments_;
  RunFunction run_ = nullptr;
  HeldBytes held_;
  bool spin_ = false;
  bool shared_pool_ = true;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::OrtModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] { collage::OrtApi::Instance(); });
}
