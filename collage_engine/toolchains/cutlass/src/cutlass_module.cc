// Convolutions on NVIDIA devices by CUTLASS's kernels.
//
// The plan is a list of steps over images, NHWC in between. Kernels come from libraries
// that lie beside this one, compiled per family; each of a step's family is timed, and the
// choice is serialised with the plan.
#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <map>

#include "collage_cuda.h"
#include "collage_cutlass_abi.h"

namespace collage {
namespace {

// A library by its file name: beside this one, or open in this process already.
const CollageLibrary& OpenLibrary(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, const CollageLibrary*> open;
  std::lock_guard<std::mutex> lock(mutex);
  auto known = open.find(name);
  if (known != open.end()) return *known->second;
  if (name.find('/') != std::string::npos) TVM_FFI_THROW(ValueError) << name << " is no file name";
  void* handle = dlopen((BesideThisLibrary() + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) TVM_FFI_THROW(RuntimeError) << "no kernels: " << dlerror();
  auto table = reinterpret_cast<const CollageLibrary* (*)()>(dlsym(handle, "collage_cutlass_library"));
  if (table == nullptr) TVM_FFI_THROW(RuntimeError) << name << " holds no kernels";
  return *(open[name] = table());
}

class Step {
 public:
  static constexpr const char* kChoice = "kernel";
  static std::unique_ptr<Step> Make(const json::Object& about);
  static std::string Library() { return "CUTLASS"; }

  explicit Step(const json::Object& about)
      : name_(GetString(about, "name")),
        library_(OpenLibrary(GetString(about, "library"))),
        a_(Get<json::Object>(about, "a")),
        d_(Get<json::Object>(about, "d")) {}
  virtual ~Step() = default;
  size_t MakeReady() { return 0; }
  // Chooses a kernel, where there is a choice; the operands hold what they will, or something like it.
  virtual void Choose(const Memory& memory, void* workspace, cudaStream_t stream) {
    Launch(memory, workspace, stream);  // the steps after it shall see real data
  }
  virtual void Launch(const Memory& memory, void* workspace, cudaStream_t stream) = 0;
  virtual std::optional<std::string> choice() const { return std::nullopt; }
  json::Object Describe() const {
    json::Object out;
    out.Set(ffi::String("name"), ffi::String(name_));
    out.Set(ffi::String("what"), ffi::String(what()));
    if (auto chosen = choice()) out.Set(ffi::String("algorithm"), ffi::String(*chosen));
    return out;
  }

 protected:
  virtual const char* what() const = 0;

  std::string name_;
  const CollageLibrary& library_;
  Operand a_, d_;
};

// The other order of the axes of images: [batch, rows, columns] → [batch, columns, rows].
class Transposition : public Step {
 public:
  explicit Transposition(const json::Object& about)
      : Step(about),
        batch_(static_cast<int32_t>(Get<int64_t>(about, "batch"))),
        rows_(static_cast<int32_t>(Get<int64_t>(about, "rows"))),
        columns_(static_cast<int32_t>(Get<int64_t>(about, "columns"))) {}

  void Launch(const Memory& m, void*, cudaStream_t stream) final {
    int32_t status = library_.transpose(m.At(a_), m.At(d_), batch_, rows_, columns_, stream);
    if (status != 0) TVM_FFI_THROW(RuntimeError) << name_ << ": " << library_.status(status);
  }

 private:
  const char* what() const final { return "transpose"; }

  int32_t batch_, rows_, columns_;
};

CollageProblem ReadProblem(const json::Object& about) {
  CollageProblem problem{};
  const std::vector<int64_t> given = GetInts(about, "sizes");
  const std::vector<int32_t> sizes(given.begin(), given.end());
  // Its first members, up to the operands.
  std::memcpy(&problem, sizes.data(), std::min(sizes.size() * sizeof(int32_t), offsetof(CollageProblem, a)));
  return problem;
}

// A convolution with what follows it.
class Convolution : public Step {
 public:
  explicit Convolution(const json::Object& about)
      : Step(about),
        problem_(ReadProblem(about)),
        b_(Get<json::Object>(about, "b")),
        c_(Operand::Of(about, "c")),
        bias_(Operand::Of(about, "bias")) {
    const std::string chosen = Has(about, "kernel") ? GetString(about, "kernel") : "";
    for (int32_t i = 0; i < library_.count; ++i) {
      if (chosen == library_.kernels[i].name) chosen_ = &library_.kernels[i];
    }
  }

  void Choose(const Memory& memory, void* workspace, cudaStream_t stream) final {
    if (chosen_ == nullptr) {
      int fastest = Fastest(stream, library_.count,
                            [&](int i) { Run(library_.kernels[i], memory, stream); });
      if (fastest < 0) TVM_FFI_THROW(RuntimeError) << name_ << ": no kernel runs on this device";
      chosen_ = &library_.kernels[fastest];
    }
    Step::Choose(memory, workspace, stream);
  }

  void Launch(const Memory& memory, void*, cudaStream_t stream) final { Run(*chosen_, memory, stream); }

  std::optional<std::string> choice() const final {
    if (chosen_ == nullptr) return std::nullopt;
    return std::string(chosen_->name);
  }

 private:
  const char* what() const final { return "convolution"; }

  void Run(const CollageKernel& kernel, const Memory& m, cudaStream_t stream) const {
    CollageProblem problem = problem_;
    problem.a = m.At(a_), problem.b = m.At(b_), problem.d = m.At(d_);
    if (c_) problem.c = m.At(*c_);
    if (bias_) problem.bias = m.At(*bias_);
    if (int32_t status = kernel.run(&problem, stream)) {
      TVM_FFI_THROW(RuntimeError) << name_ << ": " << kernel.name << ": " << library_.status(status);
    }
  }

  CollageProblem problem_;
  Operand b_;
  std::optional<Operand> c_, bias_;
  const CollageKernel* chosen_ = nullptr;
};

std::unique_ptr<Step> Step::Make(const json::Object& about) {
  if (GetString(about, "op") == "transpose") return std::make_unique<Transposition>(about);
  return std::make_unique<Convolution>(about);
}

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() { collage::RegisterModule<collage::StepsModule<collage::Step>>(); }
