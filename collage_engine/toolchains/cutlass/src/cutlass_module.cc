// Convolutions on NVIDIA devices by CUTLASS's kernels.
//
// The plan is a list of steps over images, NHWC in between. Kernels come from libraries
// that lie beside this one, compiled per family; of those that can take a step's sizes
// each is timed, and the choice is serialised with the plan. A kernel is made ready for given
// addresses once and launched again and again.
#include <dlfcn.h>

#include <array>
#include <limits>
#include <map>

#include "collage_cuda.h"
#include "collage_cutlass_abi.h"

namespace collage {
namespace {

std::string OwnFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// A library by its file name: beside this one, or open in this process already.
const CollageLibrary& OpenLibrary(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, const CollageLibrary*> open;
  std::lock_guard<std::mutex> lock(mutex);
  auto known = open.find(name);
  if (known != open.end()) return *known->second;
  if (name.find('/') != std::string::npos) TVM_FFI_THROW(ValueError) << name << " is no file name";
  void* handle = dlopen((OwnFolder() + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) TVM_FFI_THROW(RuntimeError) << "no kernels: " << dlerror();
  auto table = reinterpret_cast<const CollageLibrary* (*)()>(dlsym(handle, "collage_cutlass_library"));
  if (table == nullptr || table()->abi != COLLAGE_CUTLASS_ABI) {
    TVM_FFI_THROW(RuntimeError) << name << " holds no kernels that this runtime knows";
  }
  return *(open[name] = table());
}

struct Choice {
  const CollageLibrary* library;
  const CollageKernel* kernel;
};

// A kernel made ready for a problem.
class Ready {
 public:
  explicit Ready(const Choice& choice) : choice_(choice), state_(choice.kernel->create()) {}
  Ready(const Ready&) = delete;
  Ready& operator=(const Ready&) = delete;
  ~Ready() { choice_.kernel->destroy(state_); }

  void Prepare(const CollageProblem& problem, void* workspace, cudaStream_t stream) {
    Check(choice_.kernel->prepare(state_, &problem, workspace, stream));
  }
  void Run(cudaStream_t stream) { Check(choice_.kernel->run(state_, stream)); }

 private:
  void Check(int32_t status) const {
    if (status != 0) {
      TVM_FFI_THROW(RuntimeError) << choice_.kernel->name << ": " << choice_.library->status(status);
    }
  }
  Choice choice_;
  void* state_;
};

int SharedBytesOfDevice() {
  int device = 0, bytes = 0;
  CheckCuda(cudaGetDevice(&device), "finding the device");
  CheckCuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            "asking for shared memory");
  return bytes;
}

class Step {
 public:
  virtual ~Step() = default;
  // Bytes of workspace that the kernels which may be chosen want.
  virtual size_t MakeReady() { return 0; }
  // Chooses a kernel; the operands hold what they will, or something like it.
  virtual void Choose(const Memory&, void*, cudaStream_t) {}
  virtual void Launch(const Memory& memory, void* workspace, cudaStream_t stream) = 0;
  virtual json::Object Describe() const = 0;
  virtual std::optional<std::string> choice() const { return std::nullopt; }
};

// The other order of the axes of images: [batch, rows, columns] → [batch, columns, rows].
class Transposition : public Step {
 public:
  Transposition(const json::Object& about, const CollageLibrary& library)
      : library_(library),
        a_(Field(about, "a").cast<json::Object>()),
        d_(Field(about, "d").cast<json::Object>()),
        name_(GetString(about, "name")),
        batch_(static_cast<int32_t>(Get<int64_t>(about, "batch"))),
        rows_(static_cast<int32_t>(Get<int64_t>(about, "rows"))),
        columns_(static_cast<int32_t>(Get<int64_t>(about, "columns"))),
        bytes_(static_cast<int32_t>(ElementBytes(GetString(about, "dtype")))) {}

  // For the choices after it, which shall see real data.
  void Choose(const Memory& memory, void* workspace, cudaStream_t stream) final {
    Launch(memory, workspace, stream);
  }
  void Launch(const Memory& m, void*, cudaStream_t stream) final {
    int32_t status =
        library_.transpose(m.At(a_), m.At(d_), batch_, rows_, columns_, bytes_, stream);
    if (status != 0) TVM_FFI_THROW(RuntimeError) << name_ << ": " << library_.status(status);
  }
  json::Object Describe() const final {
    json::Object out;
    out.Set(ffi::String("what"), ffi::String("transpose"));
    out.Set(ffi::String("name"), ffi::String(name_));
    return out;
  }

 private:
  const CollageLibrary& library_;
  Operand a_, d_;
  std::string name_;
  int32_t batch_, rows_, columns_, bytes_;
};

// What a kernel was made ready for, beside sizes, which never change.
using Addresses = std::array<const void*, 5>;

CollageProblem ReadProblem(const json::Object& about) {
  CollageProblem problem{};
  using Problem = CollageProblem;
  static const std::pair<const char*, int32_t Problem::*> sizes[] = {
      {"images", &Problem::images}, {"height", &Problem::height}, {"width", &Problem::width},
      {"channels", &Problem::channels}, {"filters", &Problem::filters},
      {"kernel_h", &Problem::kernel_h}, {"kernel_w", &Problem::kernel_w},
      {"out_h", &Problem::out_h}, {"out_w", &Problem::out_w}, {"pad_h", &Problem::pad_h},
      {"pad_w", &Problem::pad_w}, {"stride_h", &Problem::stride_h},
      {"stride_w", &Problem::stride_w}, {"dilation_h", &Problem::dilation_h},
      {"dilation_w", &Problem::dilation_w},
  };
  for (const auto& [key, field] : sizes) problem.*field = static_cast<int32_t>(Get<int64_t>(about, key));
  return problem;
}

// A convolution with what follows it.
class Convolution : public Step {
 public:
  explicit Convolution(const json::Object& about)
      : name_(GetString(about, "name")),
        family_(GetString(about, "family")),
        problem_(ReadProblem(about)),
        a_(Field(about, "a").cast<json::Object>()),
        b_(Field(about, "b").cast<json::Object>()),
        d_(Field(about, "d").cast<json::Object>()) {
    if (Has(about, "c")) c_.emplace(Field(about, "c").cast<json::Object>());
    if (Has(about, "bias")) bias_.emplace(Field(about, "bias").cast<json::Object>());
    const CollageLibrary& library = OpenLibrary(GetString(about, "library"));
    std::string chosen = Has(about, "kernel") ? GetString(about, "kernel") : "";
    Find(library, chosen);
    if (choices_.empty() && !chosen.empty()) Find(library, "");
    if (choices_.empty()) TVM_FFI_THROW(ValueError) << name_ << ": no kernel takes its sizes";
    if (!chosen.empty() && choices_.size() == 1) chosen_ = choices_.front();
  }

  const CollageLibrary& library() const { return *choices_.front().library; }

  size_t MakeReady() final {
    int64_t most = 0;
    for (const Choice& c : choices_) most = std::max(most, c.kernel->workspace(&problem_));
    return static_cast<size_t>(most);
  }

  void Choose(const Memory& memory, void* workspace, cudaStream_t stream) final {
    const CollageProblem problem = Bind(memory);
    if (!chosen_) {
      const int shared = SharedBytesOfDevice();
      float best = std::numeric_limits<float>::infinity();
      Stopwatch watch(stream);
      for (const Choice& choice : choices_) {
        if (choice.kernel->shared_bytes > shared) continue;
        float ms;
        try {
          Ready ready(choice);
          ready.Prepare(problem, workspace, stream);
          ms = watch.Time([&] { ready.Run(stream); });
        } catch (const ffi::Error&) {
          continue;  // refused when it came to it
        }
        ++tried_;
        if (ms < best) {
          best = ms;
          chosen_ = choice;
        }
      }
      if (!chosen_) TVM_FFI_THROW(RuntimeError) << name_ << ": no kernel runs on this device";
    }
    Launch(memory, workspace, stream);  // the steps after it shall see real data
  }

  void Launch(const Memory& memory, void* workspace, cudaStream_t stream) final {
    const CollageProblem problem = Bind(memory);
    const Addresses now{problem.a, problem.b, problem.c, problem.bias, problem.d};
    if (!ready_ || now != bound_) {
      if (!ready_) ready_ = std::make_unique<Ready>(*chosen_);
      bound_ = Addresses{};  // should Prepare throw, nothing counts as made ready
      ready_->Prepare(problem, workspace, stream);
      bound_ = now;
    }
    ready_->Run(stream);
  }

  json::Object Describe() const final {
    json::Object out;
    out.Set(ffi::String("what"), ffi::String("convolution"));
    out.Set(ffi::String("name"), ffi::String(name_));
    out.Set(ffi::String("family"), ffi::String(family_));
    out.Set(ffi::String("kernels"), static_cast<int64_t>(choices_.size()));
    out.Set(ffi::String("kernels_tried"), static_cast<int64_t>(tried_));
    if (chosen_) out.Set(ffi::String("algorithm"), ffi::String(chosen_->kernel->name));
    return out;
  }
  std::optional<std::string> choice() const final {
    if (!chosen_) return std::nullopt;
    return std::string(chosen_->kernel->name);
  }

 private:
  // Kernels of the step's library that can take its sizes; of one name only, if it is given.
  void Find(const CollageLibrary& library, const std::string& only) {
    CollageProblem problem = problem_;
    // Addresses that are aligned as all of ours are, so that only sizes decide.
    static char somewhere[256] __attribute__((aligned(256)));
    problem.a = problem.b = problem.d = somewhere;
    if (c_) problem.c = somewhere;
    if (bias_) problem.bias = somewhere;
    for (int32_t i = 0; i < library.count; ++i) {
      const CollageKernel& kernel = library.kernels[i];
      if (!only.empty() && only != kernel.name) continue;
      if (kernel.can_implement(&problem) == 0) choices_.push_back({&library, &kernel});
    }
  }

  CollageProblem Bind(const Memory& m) const {
    CollageProblem problem = problem_;
    problem.a = m.At(a_), problem.b = m.At(b_), problem.d = m.At(d_);
    if (c_) problem.c = m.At(*c_);
    if (bias_) problem.bias = m.At(*bias_);
    return problem;
  }

  std::string name_, family_;
  CollageProblem problem_;
  Addresses bound_{};
  Operand a_, b_, d_;
  std::optional<Operand> c_, bias_;
  std::vector<Choice> choices_;
  std::optional<Choice> chosen_;
  std::unique_ptr<Ready> ready_;
  int tried_ = 0;
};

class CutlassModule : public StepsModule<Step> {
 public:
  CutlassModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : StepsModule(symbol, plan_text, weights, "kernel") {
    const auto given = Get<json::Array>(plan(), "steps");
    steps().resize(given.size());
    const CollageLibrary* any = nullptr;
    for (size_t i = 0; i < given.size(); ++i) {
      const auto about = given[static_cast<int64_t>(i)].cast<json::Object>();
      if (GetString(about, "op") == "transpose") continue;
      auto convolution = std::make_unique<Convolution>(about);
      any = &convolution->library();
      steps()[i] = std::move(convolution);
    }
    for (size_t i = 0; i < given.size(); ++i) {
      if (steps()[i]) continue;
      if (any == nullptr) TVM_FFI_THROW(ValueError) << "a plan of transpositions only";
      const auto about = given[static_cast<int64_t>(i)].cast<json::Object>();
      steps()[i] = std::make_unique<Transposition>(about, *any);
    }
    PrepareIfPossible();
  }

 protected:
  std::string Describe() const final {
    return DescribeSteps("CUTLASS " + GetString(plan(), "version"), steps());
  }
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() { collage::RegisterModule<collage::CutlassModule>(); }
