// What every external toolchain's runtime module shares.
//
// A module is a symbol, a plan (JSON) and weights (bytes). It is callable as
// module[symbol](inputs..., outputs...) with row-major tensors of its device whose types the plan
// states, serialises itself, and allocates nothing per call. Where the size of an output depends on
// the data it is callable as module[symbol](inputs...) and returns its outputs, one alone or an
// array of several, as tensors that it allocates. Its kind, COLLAGE_KIND, carries a hash of
// these sources, so that runtimes of two versions live in one process.
#ifndef COLLAGE_MODULE_H_
#define COLLAGE_MODULE_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#ifndef COLLAGE_KIND
#error "COLLAGE_KIND must be given by the builder"
#endif

namespace collage {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

// ---- reading a plan -------------------------------------------------------------------------

inline json::Object ParseObject(const std::string& text, const char* what) {
  ffi::String error;
  ffi::Any value = json::Parse(ffi::String(text), &error);
  if (!error.empty()) TVM_FFI_THROW(ValueError) << what << " is no JSON: " << std::string(error);
  if (auto object = value.as<json::Object>()) return *object;
  TVM_FFI_THROW(ValueError) << what << " is no JSON object";
  TVM_FFI_UNREACHABLE();
}

inline bool Has(const json::Object& object, const char* key) {
  return object.find(ffi::String(key)) != object.end();
}

inline ffi::Any Field(const json::Object& object, const char* key) {
  auto it = object.find(ffi::String(key));
  if (it == object.end()) TVM_FFI_THROW(ValueError) << "plan lacks \"" << key << "\"";
  return (*it).second;
}

template <typename T>
T Get(const json::Object& object, const char* key) {
  return Field(object, key).cast<T>();
}

inline std::string GetString(const json::Object& object, const char* key) {
  return std::string(Field(object, key).cast<ffi::String>());
}

inline int64_t GetInt(const json::Object& object, const char* key, int64_t otherwise) {
  return Has(object, key) ? Get<int64_t>(object, key) : otherwise;
}

inline std::vector<int64_t> GetInts(const json::Object& object, const char* key) {
  std::vector<int64_t> out;
  for (const ffi::Any& v : Get<json::Array>(object, key)) out.push_back(v.cast<int64_t>());
  return out;
}

// What a table has under a name; ``what`` begins the sentence that is said where it has nothing.
template <typename T>
const T& Named(const std::map<std::string, T>& known, const std::string& name, const char* what) {
  auto it = known.find(name);
  if (it == known.end()) TVM_FFI_THROW(ValueError) << what << " " << name;
  return it->second;
}

// ---- argument types -------------------------------------------------------------------------

struct TensorSpec {
  DLDataType dtype;
  std::string dtype_name;
  std::vector<int64_t> shape;
  size_t bytes;
  // A size, or the number of dimensions, depends on the data.
  bool open = false;
  // Texts: UTF-8 filled up with zeros, the last dimension of a tensor of bytes.
  bool text = false;
};

// Bytes of a text, as collage_engine/records/graph.py has them.
inline constexpr int64_t kTextBytes = 256;

inline TensorSpec ParseTensorSpec(const json::Object& object) {
  TensorSpec spec;
  spec.shape = GetInts(object, "shape");
  spec.dtype_name = GetString(object, "dtype");
  spec.text = spec.dtype_name == "string";
  if (spec.text) {
    spec.dtype_name = "uint8";
    spec.shape.push_back(kTextBytes);
  }
  spec.dtype = ffi::StringToDLDataType(ffi::String(spec.dtype_name));
  size_t elements = 1;
  spec.open = Has(object, "any_rank") && Get<bool>(object, "any_rank");
  for (int64_t extent : spec.shape) {
    spec.open |= extent < 0;
    elements *= extent < 0 ? 0 : static_cast<size_t>(extent);
  }
  spec.bytes = elements * ((spec.dtype.bits + 7) / 8);
  return spec;
}

inline std::vector<TensorSpec> ParseTensorSpecs(const json::Object& plan, const char* key) {
  std::vector<TensorSpec> out;
  for (const ffi::Any& v : Get<json::Array>(plan, key)) {
    out.push_back(ParseTensorSpec(v.cast<json::Object>()));
  }
  return out;
}

struct Free {
  void operator()(void* data) const { std::free(data); }
};
using Storage = std::unique_ptr<char, Free>;

inline constexpr size_t kAlignment = 64;

// Memory that is aligned as TVM aligns its own.
inline Storage Allocate(size_t bytes) {
  size_t size = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) TVM_FFI_THROW(RuntimeError) << "no memory for " << size << " bytes";
  return Storage(static_cast<char*>(data));
}

// Memory of tensors that a module returns.
struct ReturnedMemory {
  void AllocData(DLTensor* tensor) { tensor->data = Allocate(ffi::GetDataSize(*tensor)).release(); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

// A tensor of its own with a copy of `data`.
inline ffi::Tensor NewTensor(const void* data, const std::vector<int64_t>& shape,
                             const TensorSpec& spec) {
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(
      ReturnedMemory(), ffi::ShapeView(shape.data(), shape.size()), spec.dtype,
      DLDevice{kDLCPU, 0});
  size_t bytes = (spec.dtype.bits + 7) / 8;
  for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  if (bytes != 0) std::memcpy(tensor.data_ptr(), data, bytes);
  return tensor;
}

inline std::string TypeName(DLDataType dtype, const int64_t* shape, int ndim) {
  std::string text = std::string(ffi::DLDataTypeToString(dtype)) + "[";
  for (int d = 0; d < ndim; ++d) text += (d ? "," : "") + std::to_string(shape[d]);
  return text + "]";
}

// NumPy's bool arrives as kDLBool or, from older producers, as a one-bit unsigned integer.
inline bool SameType(DLDataType a, DLDataType b) {
  auto boolean = [](DLDataType t) { return t.code == kDLBool || (t.code == kDLUInt && t.bits == 1); };
  if (boolean(a) || boolean(b)) return boolean(a) && boolean(b);
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

// ---- serialised form ------------------------------------------------------------------------

class ByteWriter {
 public:
  void Put(const void* data, size_t size) {
    uint64_t length = size;
    bytes_.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes_.append(static_cast<const char*>(data), size);
  }
  void Put(const std::string& text) { Put(text.data(), text.size()); }
  void Reserve(size_t size) { bytes_.reserve(size); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  ByteReader(const char* data, size_t size) : data_(data), left_(size) {}
  // A view of the next field; the bytes stay the caller's.
  std::pair<const char*, size_t> Next() {
    uint64_t length = 0;
    if (left_ < sizeof length) Truncated();
    std::memcpy(&length, data_, sizeof length);
    data_ += sizeof length;
    left_ -= sizeof length;
    if (length > left_) Truncated();
    const char* field = data_;
    data_ += length;
    left_ -= length;
    return {field, static_cast<size_t>(length)};
  }
  std::string NextString() {
    auto [data, size] = Next();
    return std::string(data, size);
  }
  size_t left() const { return left_; }

 private:
  [[noreturn]] static void Truncated() {
    TVM_FFI_THROW(ValueError) << COLLAGE_KIND << ": the serialised module is truncated";
    TVM_FFI_UNREACHABLE();
  }
  const char* data_;
  size_t left_;
};

// Where modules of this process may write while they note the times of what is inside of them, which
// slows them down; null: they do not.
inline const char* LayersFolder() { return std::getenv("COLLAGE_LAYERS"); }

inline constexpr const char* kMagic = "collage-module-1";

// ---- the module -----------------------------------------------------------------------------

class PlanModule : public ffi::ModuleObj {
 public:
  PlanModule(std::string symbol, std::string plan_text)
      : symbol_(std::move(symbol)), plan_text_(std::move(plan_text)) {
    json::Object plan = ParseObject(plan_text_, "the plan");
    inputs_ = ParseTensorSpecs(plan, "inputs");
    outputs_ = ParseTensorSpecs(plan, "outputs");
    threads_ = static_cast<int>(Get<int64_t>(plan, "threads"));
    for (const TensorSpec& output : outputs_) returns_ |= output.open;
    pointers_.assign(inputs_.size() + (returns_ ? 0 : outputs_.size()), nullptr);
  }

  const char* kind() const final { return COLLAGE_KIND; }

  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    // The function keeps the module alive.
    ffi::ObjectPtr<ffi::Object> self = ffi::GetObjectPtr<ffi::Object>(this);
    if (std::string_view(name.data(), name.size()) == symbol_) {
      return ffi::Function::FromPacked(
          [self, this](ffi::PackedArgs args, ffi::Any* result) { this->Call(args, result); });
    }
    auto giving = [&](auto make) {
      return ffi::Function::FromPacked(
          [self, make](ffi::PackedArgs, ffi::Any* result) { *result = make(); });
    };
    if (name == "collage.inside") return giving([this] { return Inside(); });
    if (name == "collage.layers") return giving([this] { return TimedLayers(); });
    if (name == "collage.plan") return giving([this] { return ffi::String(plan_text_); });
    if (name == "collage.save") return giving([this] { return SaveToBytes(); });
    return std::nullopt;
  }

  ffi::Bytes SaveToBytes() const final {
    ByteWriter writer;
    ffi::Bytes weights = Weights();
    writer.Reserve(weights.size() + plan_text_.size() + symbol_.size() + 64);
    writer.Put(std::string(kMagic));
    writer.Put(symbol_);
    writer.Put(plan_text_);
    writer.Put(weights.data(), weights.size());
    return ffi::Bytes(writer.Take());
  }

 protected:
  // Run once; pointers() holds the checked arguments' data, inputs then outputs.
  virtual void Execute() = 0;
  // Run once and return the outputs, where the size of one depends on the data.
  virtual ffi::Array<ffi::Any> ExecuteReturning() {
    TVM_FFI_THROW(TypeError) << symbol_ << " cannot make a value whose size depends on the data";
    TVM_FFI_UNREACHABLE();
  }
  // What is inside, for the faces, besides the plan's threads.
  virtual void Describe(json::Object*) const {}
  // The times of what is inside in the calls so far, for the toolchain's Python side; false where
  // nothing inside can be timed. Asked where LayersFolder() is; no call may follow.
  virtual bool Layers(json::Object*) { return false; }
  // The weights as they were given.
  virtual ffi::Bytes Weights() const = 0;
  // Where its arguments lie.
  virtual DLDeviceType device_type() const { return kDLCPU; }

  const std::vector<TensorSpec>& inputs() const { return inputs_; }
  const std::vector<TensorSpec>& outputs() const { return outputs_; }
  const std::vector<void*>& pointers() const { return pointers_; }
  const std::string& symbol() const { return symbol_; }
  const std::string& plan_text() const { return plan_text_; }
  // How many threads the run gives it.
  int threads() const { return threads_; }
  // What is serialised from now on: the plan with choices made by measuring.
  void set_plan_text(std::string text) { plan_text_ = std::move(text); }

 private:
  ffi::String Inside() const {
    json::Object out;
    out.Set(ffi::String("threads"), static_cast<int64_t>(threads_));
    Describe(&out);
    return json::Stringify(out);
  }

  ffi::String TimedLayers() {
    json::Object out;
    out.Set(ffi::String("symbol"), ffi::String(symbol_));
    return LayersFolder() != nullptr && Layers(&out) ? json::Stringify(out) : ffi::String("");
  }

  void Call(const ffi::PackedArgs& args, ffi::Any* result) {
    // Arena, cached tensors and argument pointers belong to one call at a time.
    std::lock_guard<std::mutex> lock(mutex_);
    size_t expected = pointers_.size();
    if (static_cast<size_t>(args.size()) != expected) {
      TVM_FFI_THROW(TypeError) << symbol_ << " takes " << inputs_.size() << " inputs and "
                               << expected - inputs_.size() << " outputs, got " << args.size()
                               << " arguments";
    }
    for (size_t i = 0; i < expected; ++i) {
      bool input = i < inputs_.size();
      const TensorSpec& spec = input ? inputs_[i] : outputs_[i - inputs_.size()];
      auto given = args[static_cast<int>(i)].try_cast<DLTensor*>();
      if (!given.has_value() || *given == nullptr) {
        TVM_FFI_THROW(TypeError) << Name(i) << " is no tensor";
      }
      const DLTensor* tensor = *given;
      bool matches = SameType(tensor->dtype, spec.dtype) &&
                     tensor->ndim == static_cast<int>(spec.shape.size()) &&
                     std::equal(spec.shape.begin(), spec.shape.end(), tensor->shape);
      if (!matches) {
        TVM_FFI_THROW(TypeError) << Name(i) << " must be "
                                 << TypeName(spec.dtype, spec.shape.data(),
                                             static_cast<int>(spec.shape.size()))
                                 << ", got "
                                 << TypeName(tensor->dtype, tensor->shape, tensor->ndim);
      }
      if (tensor->device.device_type != device_type()) {
        TVM_FFI_THROW(TypeError) << Name(i) << " is not on the "
                                 << (device_type() == kDLCPU ? "CPU" : "CUDA device");
      }
      if (!ffi::IsContiguous(*tensor)) {
        TVM_FFI_THROW(TypeError) << Name(i) << " is not row-major and contiguous";
      }
      pointers_[i] = static_cast<char*>(tensor->data) + tensor->byte_offset;
    }
    if (!returns_) {
      Execute();
      return;
    }
    ffi::Array<ffi::Any> made = ExecuteReturning();
    if (made.size() == 1) {
      *result = made[0];
    } else {
      *result = made;
    }
  }

  std::string Name(size_t argument) const {
    bool input = argument < inputs_.size();
    return symbol_ + (input ? " input " : " output ") +
           std::to_string(input ? argument : argument - inputs_.size());
  }

  std::string symbol_;
  std::string plan_text_;
  std::vector<TensorSpec> inputs_;
  std::vector<TensorSpec> outputs_;
  std::vector<void*> pointers_;
  int threads_ = 1;
  bool returns_ = false;
  std::mutex mutex_;
};

// The folder that this library lies in; empty where nobody knows.
inline std::string BesideThisLibrary() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&BesideThisLibrary), &self) == 0) return "";
  std::string path = self.dli_fname != nullptr ? self.dli_fname : "";
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Weights as a module is given them: freshly compiled ones with an owner that may be kept, an
// artifact's only for as long as the constructor runs.
struct GivenWeights {
  const char* data;
  size_t size;
  std::optional<ffi::Bytes> owner;
};

// Files of weights that a module reads where they lie, since they are larger than what it should
// hold. The plan names them ("weight_files"). They are in the folder that the environment variable
// COLLAGE_WEIGHTS_FOLDER names, or beside this library, as in an artifact; they stay mapped.
class WeightFiles {
 public:
  WeightFiles() = default;
  WeightFiles(const WeightFiles&) = delete;
  WeightFiles& operator=(const WeightFiles&) = delete;
  ~WeightFiles() {
    for (size_t i = 0; i < buffers_.size(); ++i) munmap(buffers_[i], sizes_[i]);
  }

  void Open(const json::Object& plan) {
    if (!Has(plan, "weight_files")) return;
    for (const ffi::Any& each : Get<json::Array>(plan, "weight_files")) {
      std::string name(each.cast<ffi::String>());
      if (name.empty() || name.find('/') != std::string::npos) {
        TVM_FFI_THROW(ValueError) << "'" << name << "' is no name of a file of weights";
      }
      names_.push_back(name);
    }
    for (const std::string& name : names_) Map(name);
    for (const std::string& name : names_) chars_.push_back(name.c_str());
  }

  size_t count() const { return names_.size(); }
  const char* const* names() const { return chars_.data(); }
  char* const* buffers() const { return buffers_.data(); }
  const size_t* sizes() const { return sizes_.data(); }
  // What was read while it was packed need not stay: pages in use come back by themselves.
  void Forget() const {
    for (size_t i = 0; i < buffers_.size(); ++i) madvise(buffers_[i], sizes_[i], MADV_DONTNEED);
  }

 private:
  void Map(const std::string& name) {
    int file = -1;
    for (const std::string& folder : {FromEnvironment(), BesideThisLibrary()}) {
      if (file < 0 && !folder.empty()) file = open((folder + "/" + name).c_str(), O_RDONLY);
    }
    struct stat about;
    if (file < 0 || fstat(file, &about) != 0) {
      if (file >= 0) close(file);
      TVM_FFI_THROW(RuntimeError) << "the file of weights " << name << " is missing";
    }
    size_t size = static_cast<size_t>(about.st_size);
    void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);  // the mapping keeps it
    if (at == MAP_FAILED) TVM_FFI_THROW(RuntimeError) << "cannot map the file of weights " << name;
    buffers_.push_back(static_cast<char*>(at));
    sizes_.push_back(size);
  }

  static std::string FromEnvironment() {
    const char* found = std::getenv("COLLAGE_WEIGHTS_FOLDER");
    return found != nullptr ? found : "";
  }

  std::vector<std::string> names_;
  std::vector<const char*> chars_;
  std::vector<char*> buffers_;
  std::vector<size_t> sizes_;
};

// M is constructed from (symbol, plan, GivenWeights).
template <typename M>
ffi::Module LoadFromBytes(const ffi::Bytes& bytes) {
  ByteReader reader(bytes.data(), bytes.size());
  if (reader.NextString() != kMagic) {
    TVM_FFI_THROW(ValueError) << COLLAGE_KIND << ": these bytes are no module of this kind";
  }
  std::string symbol = reader.NextString();
  std::string plan = reader.NextString();
  auto [weights, size] = reader.Next();
  if (reader.left() != 0) {
    TVM_FFI_THROW(ValueError) << COLLAGE_KIND << ": bytes follow the serialised module";
  }
  return ffi::Module(
      ffi::make_object<M>(symbol, plan, GivenWeights{weights, size, std::nullopt}));
}

template <typename M>
void RegisterModule() {
  ffi::reflection::GlobalDef()
      .def("ffi.Module.load_from_bytes." COLLAGE_KIND, LoadFromBytes<M>)
      .def(COLLAGE_KIND ".create", [](ffi::String symbol, ffi::String plan, ffi::Bytes weights) {
        return ffi::Module(
            ffi::make_object<M>(std::string(symbol), std::string(plan),
                                GivenWeights{weights.data(), weights.size(), weights}));
      });
}

}  // namespace collage

#endif  // COLLAGE_MODULE_H_
