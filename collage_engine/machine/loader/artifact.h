// An artifact for programs in C++: its files are checked, its modules are loaded and called.
//
// Needs TVM's runtime and tvm-ffi only. run_artifact.cc beside this file says how to link them. A program of its own
// does so:
//
//   collage::Artifact artifact(folder, collage::Opened(folder));  // throws where a file has changed
//   std::vector<ffi::Tensor> outputs = artifact.Run(inputs);      // in the manifest's order
//
// Of an artifact for several shapes each call picks by its inputs' shapes, as run_artifact.py does.

#pragma once

#include <array>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>

#ifndef COLLAGE_KIND
#define COLLAGE_KIND "collage_artifact"  // what the module's header calls a module that it reads
#endif
#include "collage_module.h"
#include "ort_api.h"

namespace collage {

namespace fs = std::filesystem;

using Extents = std::vector<int64_t>;

[[noreturn]] inline void Fail(const std::string& what) { throw std::runtime_error(what); }

// -- SHA-256 ----------------------------------------------------------------------------

// It is written out here (FIPS 180-4), since a loader that links TVM's runtime only would need a
// cryptographic library, of the right version, for these sixty lines.
using Sha256State = std::array<uint32_t, 8>;

inline uint32_t Turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

// Mixes a block of 64 bytes into the state.
inline void MixBlock(Sha256State& state, const char* content) {
  const auto* block = reinterpret_cast<const unsigned char*>(content);
  static constexpr uint32_t kRound[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 | static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = Turn(w[i - 15], 7) ^ Turn(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t b = Turn(w[i - 2], 17) ^ Turn(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  std::array<uint32_t, 8> s = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = Turn(s[4], 6) ^ Turn(s[4], 11) ^ Turn(s[4], 25);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t first = s[7] + e + choice + kRound[i] + w[i];
    const uint32_t a = Turn(s[0], 2) ^ Turn(s[0], 13) ^ Turn(s[0], 22);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {first + a + majority, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (size_t i = 0; i < 8; ++i) state[i] += s[i];
}

// The SHA-256 of a file as hexadecimal digits. Throws when it is missing or no regular file: opening a pipe could
// wait for ever.
inline std::string HashOf(const std::string& path) {
  if (!fs::is_regular_file(path)) Fail(path + " is missing or no regular file");
  std::ifstream file(path, std::ios::binary);
  Sha256State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  char block[64];
  uint64_t bytes = 0;
  for (; file.read(block, sizeof block); bytes += sizeof block) MixBlock(state, block);
  // The end: what is left, a bit, zeros, and the number of bits in the last eight bytes.
  std::string end(block, static_cast<size_t>(file.gcount()));
  bytes += end.size();
  end += '\x80';
  end.resize(end.size() <= 56 ? 64 : 128);
  for (size_t i = 0; i < 8; ++i) end[end.size() - 1 - i] = static_cast<char>(bytes * 8 >> 8 * i);
  for (size_t at = 0; at < end.size(); at += sizeof block) MixBlock(state, end.data() + at);
  if (file.bad()) Fail(path + " cannot be read");
  std::string text;
  char digits[9];
  for (const uint32_t word : state) {
    std::snprintf(digits, sizeof digits, "%08x", word);
    text += digits;
  }
  return text;
}

// -- the folder -------------------------------------------------------------------------

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path + " cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The objects of a list; none where there is no such list.
inline std::vector<json::Object> Objects(const json::Object& object, const char* key) {
  std::vector<json::Object> found;
  if (!Has(object, key)) return found;
  for (const ffi::Any& each : Get<json::Array>(object, key)) found.push_back(each.cast<json::Object>());
  return found;
}

// The manifest of a folder whose files are as they were when it was exported. Nothing of the folder is loaded before.
inline json::Object Opened(const std::string& folder) {
  constexpr int64_t kVersion = 6;
  const std::string path = folder + "/manifest.json";
  if (!fs::is_regular_file(path)) Fail(path + " is missing or no regular file");
  const json::Object manifest = ParseObject(ReadFile(path), "the manifest");
  if (!Has(manifest, "format") || GetString(manifest, "format") != "collage-artifact") Fail(folder + " is no artifact");
  if (Get<int64_t>(manifest, "format_version") != kVersion) {
    const std::string known = std::to_string(kVersion);
    Fail(folder + " is an artifact of another version; this loader takes version " + known + " only: export it again");
  }
  for (const json::Object& about : Objects(manifest, "requires")) {
    Fail(folder + " runs from Python only: " + GetString(about, "reason"));
  }
  for (const auto& [key, about] : Get<json::Object>(manifest, "files")) {
    const std::string name = key.cast<ffi::String>();
    if (HashOf(folder + "/" + name) != GetString(about.cast<json::Object>(), "sha256")) {
      Fail(name + " has changed since it was exported");
    }
  }
  return manifest;
}

// Sets thread counts and spinning, which are read when the libraries load: for all of them as the artifact
// was measured, whatever the shell says.
inline void SetEnvironment(const json::Object& manifest) {
  for (const auto& [key, value] : Get<json::Object>(manifest, "environment")) {
    setenv(key.cast<ffi::String>().c_str(), value.cast<ffi::String>().c_str(), /*overwrite=*/1);
  }
}

// -- values -----------------------------------------------------------------------------

// An input or output of the model.
struct Value {
  std::string name;
  std::string dtype;
  Extents shape;          // of outputs, -1 and no size at all depend on the data: each run has its own
  double tolerance = -1;  // an output's own; below 0: the artifact's
  size_t sample_begin, sample_bytes;  // where its values lie in the sample's file
  DLDataType type{};
};

// The inputs or outputs that a manifest lists.
inline std::vector<Value> ValuesOf(const json::Object& manifest, const char* key) {
  std::vector<Value> values;
  for (const json::Object& about : Objects(manifest, key)) {
    const auto sample = Get<json::Array>(about, "sample");
    Value value{GetString(about, "name"), GetString(about, "dtype"), {}, -1, sample[0].cast<size_t>(), sample[1].cast<size_t>()};
    if (Has(about, "tolerance")) value.tolerance = Get<double>(about, "tolerance");
    if (value.dtype == "string") Fail("'" + value.name + "' holds texts, which only the loader in Python takes");
    value.type = ffi::StringToDLDataType(ffi::String(value.dtype));
    if (Field(about, "shape") != nullptr) value.shape = GetInts(about, "shape");
    values.push_back(value);
  }
  return values;
}

// -- huge pages -------------------------------------------------------------------------

struct Region {
  uintptr_t begin, end;
  size_t used;
};

// The process's private memory that belongs to no file; none where the system or the user wants no huge pages.
inline std::vector<Region> PrivateRegions() {
  std::vector<Region> found;
  std::ifstream settings("/sys/kernel/mm/transparent_hugepage/enabled"), maps("/proc/self/smaps");
  const char* wanted = std::getenv("COLLAGE_HUGE_PAGES");
  std::string line;
  if (!std::getline(settings, line) || line.find("[never]") != std::string::npos) return found;
  if (wanted != nullptr && std::string(wanted) == "0") return found;
  bool ours = false;
  while (std::getline(maps, line)) {
    unsigned long begin, end, file, kilobytes;
    char rights[8], name[128] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %7s %*x %*s %lu %127s", &begin, &end, rights, &file, name) >= 4) {
      const std::string of = name;
      ours = std::string(rights) == "rw-p" && file == 0 && (of.empty() || of == "[heap]" || of.rfind("[anon:", 0) == 0);
      if (ours) found.push_back({begin, end, 0});
    } else if (ours && std::sscanf(line.c_str(), "Rss: %lu kB", &kilobytes) == 1) {
      found.back().used = kilobytes << 10;
    }
  }
  return found;
}

// Puts private memory that appeared since on huge pages, where at least half of a region is in use
// (use_huge_pages in run_artifact.py says why).
inline void UseHugePages(const std::vector<Region>& before) {
  constexpr int kHugePage = 14, kCollapse = 25;  // of madvise(2), the second from Linux 6.1 on
  uintptr_t size = 0;
  if (before.empty() || !(std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> size)) return;
  for (Region region : PrivateRegions()) {
    if (region.used < (region.end - region.begin) / 2) continue;
    for (const Region& old : before) {  // what was there grows at its end (the heap) or at its begin (mapped memory)
      if (old.begin == region.begin) region.begin = old.end;
      if (old.end == region.end) region.end = std::max(region.begin, old.begin);
    }
    const uintptr_t first = (region.begin + size - 1) / size * size, last = region.end / size * size;
    if (first >= last) continue;
    madvise(reinterpret_cast<void*>(first), last - first, kCollapse);
    madvise(reinterpret_cast<void*>(first), last - first, kHugePage);  // what is freed and taken again
  }
}

// -- the module -------------------------------------------------------------------------

inline ffi::Tensor NewTensor(const Extents& shape, DLDataType type) {
  return ffi::Tensor::FromNDAlloc(ReturnedMemory(), ffi::Shape(shape.begin(), shape.end()), type, DLDevice{kDLCPU, 0});
}

// The module for which another one stands that names files of weights. Its bytes are fields behind their lengths:
// the kind of the module; then its bytes, in which every second field is the name of a file, whose content belongs there.
inline ffi::Module WithWeights(const ffi::Bytes& data) {
  ByteReader reader(data.data(), data.size());
  const ffi::Function load = ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes." + reader.NextString());
  std::string whole;
  for (bool names_file = false; reader.left() != 0; names_file = !names_file) {
    const std::string field = reader.NextString();
    whole += names_file ? ReadFile(std::string(std::getenv("COLLAGE_WEIGHTS_FOLDER")) + "/weights/" + field) : field;
  }
  return load(ffi::Bytes(std::move(whole))).cast<ffi::Module>();
}

// Held while a module is loaded, which reads its weights in a folder that the process's environment names. It is one
// for all libraries of the process: each drop-in has this code.
inline std::mutex& Loading() {
  static std::mutex own;
  constexpr const char* kName = "collage.loading";
  if (!ffi::Function::GetGlobal(kName).has_value()) {
    try {
      ffi::Function::SetGlobal(kName, ffi::Function::FromTyped([] { return static_cast<void*>(&own); }));
    } catch (const ffi::Error&) {  // another thread was first
    }
  }
  return *static_cast<std::mutex*>(ffi::Function::GetGlobalRequired(kName)().cast<void*>());
}

// A loaded artifact for one shape. After its second run its memory is put on huge pages, unless COLLAGE_HUGE_PAGES=0: a program
// that calls once would pay for what others gain later.
class Model {
 public:
  Model(const std::string& folder, const json::Object& manifest)
      : cuda_(Has(manifest, "device") && GetString(manifest, "device") == "cuda"),
        before_(cuda_ ? std::vector<Region>() : PrivateRegions()),
        library_(Load(folder, manifest)),
        machine_(library_->GetFunction("vm_load_executable").value()().cast<ffi::Module>()) {
    constexpr int kPooled = 2;
    const ffi::Function start = machine_->GetFunction("vm_initialization").value();
    if (cuda_) {
      start(static_cast<int>(kDLCUDA), 0, kPooled, static_cast<int>(kDLCPU), 0, kPooled);
      wait_ = ffi::Function::GetGlobalRequired("runtime.Device_StreamSync");
    } else {
      start(static_cast<int>(kDLCPU), 0, kPooled);
    }
    model_ = machine_->GetFunction("main").value();
  }

  // Runs the model on aligned tensors of this machine's memory; returns its outputs there.
  std::vector<ffi::Tensor> Run(const std::vector<ffi::Tensor>& inputs) {
    std::vector<ffi::Tensor> there;
    for (const ffi::Tensor& input : inputs) there.push_back(CopyTo(input, kDLCUDA));
    const std::vector<ffi::AnyView> arguments(there.begin(), there.end());
    ffi::Any result;
    model_.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    if (cuda_) wait_(DLDevice{kDLCUDA, 0}, static_cast<int64_t>(0));
    if (++calls_ == 2) UseHugePages(before_);
    std::vector<ffi::Tensor> outputs;
    if (auto one = result.as<ffi::Tensor>()) {
      outputs.push_back(*one);
    } else {
      for (const ffi::Any& field : result.cast<ffi::Array<ffi::Any>>()) outputs.push_back(field.cast<ffi::Tensor>());
    }
    for (ffi::Tensor& output : outputs) output = CopyTo(output, kDLCPU);
    return outputs;
  }

 private:
  static ffi::Module Load(const std::string& folder, const json::Object& manifest) {
    std::lock_guard<std::mutex> lock(Loading());
    // The files of weights are those whose hashes were checked, whatever folder the shell names.
    setenv("COLLAGE_WEIGHTS_FOLDER", fs::absolute(folder).c_str(), /*overwrite=*/1);
    ffi::Function::SetGlobal("ffi.Module.load_from_bytes.collage.weights", ffi::Function::FromTyped(WithWeights),
                             /*override=*/true);
    // The libraries that it names stay until the process ends: what they registered with TVM's runtime, and threads,
    // would be left. Where the process has one from another artifact, that one stays: ours name their sources and
    // versions, so that it is the same code, and it cannot register itself twice.
    for (const json::Object& library : Objects(manifest, "libraries")) {
      if (!Get<bool>(library, "needed")) continue;
      const std::string name = GetString(library, "file");
      if (dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) != nullptr) continue;
      if (dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_NODELETE) == nullptr) Fail(dlerror());
    }
    return ffi::Module::LoadFromFile(ffi::String(folder + "/model.so"));
  }

  // A copy of a tensor on another device, which is there when this returns; on a processor the tensor itself.
  ffi::Tensor CopyTo(const ffi::Tensor& tensor, DLDeviceType device) const {
    if (!cuda_) return tensor;
    static const ffi::Function to_device = ffi::Function::GetGlobalRequired("vm.builtin.to_device");
    return to_device(tensor, static_cast<int>(device), 0, ffi::String("global")).cast<ffi::Tensor>();
  }

  bool cuda_;
  std::vector<Region> before_;  // what memory there was
  size_t calls_ = 0;
  ffi::Module library_;
  ffi::Module machine_;
  ffi::Function model_;
  ffi::Function wait_;  // calls return before the device is done
};

// -- any shape --------------------------------------------------------------------------

inline Extents ShapeOf(const ffi::Tensor& tensor) { return Extents(tensor.shape().begin(), tensor.shape().end()); }

inline const char* DataOf(const ffi::Tensor& tensor) {
  if (!tensor.IsContiguous()) Fail("a tensor is not contiguous");
  return static_cast<const char*>(tensor.data_ptr()) + tensor.byte_offset();
}

// The model's own file in a session of ONNX Runtime: the process's copy, else the one that the artifact carries.
class OwnFile {
 public:
  OwnFile(const std::string& folder, const json::Object& manifest, const std::vector<Value>& inputs,
          const std::vector<Value>& outputs)
      : inputs_(inputs), outputs_(outputs), session_(kReleaseSession), memory_(kReleaseMemoryInfo) {
    const auto about = Get<json::Object>(manifest, "others");
    if (Has(about, "library") && !ffi::Function::GetGlobal("collage.host_onnxruntime").has_value()) {
      dlopen((folder + "/" + GetString(about, "library")).c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    const OrtApi& api = OrtApi::Instance();
    static void* environment = nullptr;  // as long as the process: sessions point into it
    if (environment == nullptr) {
      api.Call(kCreateEnv, kOrtError, static_cast<const char*>("collage"), &environment);
    }
    OrtHandle options(kReleaseSessionOptions);
    api.Call(kCreateSessionOptions, options.out());
    api.Call(kSetIntraOpNumThreads, options.get(), Get<int>(manifest, "threads"));
    const std::string file = folder + "/" + GetString(about, "file");
    api.Call(kCreateSession, static_cast<const void*>(environment), file.c_str(),
             static_cast<const void*>(options.get()), session_.out());
    api.Call(kCreateCpuMemoryInfo, kOrtDeviceAllocator, kOrtMemTypeDefault, memory_.out());
  }

  std::vector<ffi::Tensor> Run(const std::vector<ffi::Tensor>& inputs) const {
    const OrtApi& api = OrtApi::Instance();
    std::deque<OrtHandle> held;
    std::vector<void*> values;
    std::vector<const char*> names;
    for (size_t i = 0; i < inputs.size(); ++i) {
      held.emplace_back(kReleaseValue);
      api.Call(kCreateTensorWithDataAsOrtValue, static_cast<const void*>(memory_.get()),
               const_cast<char*>(DataOf(inputs[i])), ffi::GetDataSize(inputs[i]), inputs[i].shape().data(),
               inputs[i].shape().size(), OnnxType(inputs_[i].dtype), held.back().out());
      values.push_back(held.back().get());
      names.push_back(inputs_[i].name.c_str());
    }
    for (const Value& output : outputs_) names.push_back(output.name.c_str());
    values.resize(names.size(), nullptr);
    api.Call(kRun, session_.get(), static_cast<const void*>(nullptr), static_cast<const char* const*>(names.data()),
             static_cast<void* const*>(values.data()), inputs.size(), names.data() + inputs.size(), outputs_.size(),
             values.data() + inputs.size());
    std::vector<ffi::Tensor> outputs;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      held.emplace_back(kReleaseValue);
      *held.back().out() = values[inputs.size() + i];
      void* data = nullptr;
      api.Call(kGetTensorMutableData, held.back().get(), &data);
      outputs.push_back(NewTensor(OrtShape(held.back().get()), outputs_[i].type));
      std::memcpy(outputs.back().data_ptr(), data, ffi::GetDataSize(outputs.back()));
    }
    return outputs;
  }

 private:
  const std::vector<Value>&inputs_, &outputs_;
  OrtHandle session_, memory_;
};

// An artifact: runs the entry for the inputs' shapes, loaded at its first call; for others the model's own file, where
// the artifact has it. Calls from several threads take turns.
class Artifact {
 public:
  Artifact(const std::string& folder, const json::Object& manifest) : folder_(folder), manifest_(manifest) {
    SetEnvironment(manifest_);
    std::vector<json::Object> entries = Objects(manifest_, "entries");
    if (entries.empty()) entries.push_back(manifest_);
    for (const json::Object& about : entries) {
      entries_.emplace_back();
      Entry& entry = entries_.back();
      if (Has(about, "folder")) entry.folder = "/" + GetString(about, "folder");
      entry.inputs = ValuesOf(about, "inputs");
      entry.outputs = ValuesOf(about, "outputs");
      for (const Value& input : entry.inputs) entry.tensors.push_back(NewTensor(input.shape, input.type));
    }
    if (entries_.size() == 1) Loaded(entries_.front());
  }

  struct Entry {
    std::string folder;  // below the artifact's; empty: the artifact is for one shape
    std::vector<Value> inputs, outputs;
    std::vector<ffi::Tensor> tensors;  // which a call fills
    std::unique_ptr<Model> model;
  };

  const json::Object& manifest() const { return manifest_; }
  const std::deque<Entry>& entries() const { return entries_; }

  // Runs inputs in the manifest's order, on this machine's memory; returns the outputs.
  std::vector<ffi::Tensor> Run(const std::vector<ffi::Tensor>& inputs) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::vector<Value>& wanted = entries_.front().inputs;
    if (inputs.size() != wanted.size()) Fail("the model has " + std::to_string(wanted.size()) + " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype() != wanted[i].type) Fail("the input '" + wanted[i].name + "' must be " + wanted[i].dtype);
    }
    const auto fits = [&](const Entry& entry) {
      return std::equal(inputs.begin(), inputs.end(), entry.inputs.begin(), [](const ffi::Tensor& tensor, const Value& about) {
        return ShapeOf(tensor) == about.shape;
      });
    };
    const auto entry = std::find_if(entries_.begin(), entries_.end(), fits);
    if (entry == entries_.end()) return RunOther(inputs);
    Model& model = Loaded(*entry);
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::memcpy(entry->tensors[i].data_ptr(), DataOf(inputs[i]), ffi::GetDataSize(inputs[i]));
    }
    std::vector<ffi::Tensor> outputs = model.Run(entry->tensors);
    if (outputs.size() != entry->outputs.size()) Fail("the model returned another number of outputs");
    return outputs;
  }

 private:
  Model& Loaded(Entry& entry) const {
    const std::string folder = folder_ + entry.folder;
    if (entry.model == nullptr) {
      entry.model = std::make_unique<Model>(folder, entry.folder.empty() ? manifest_ : Opened(folder));
    }
    return *entry.model;
  }

  // Runs inputs for which there is no entry; the first time says so.
  std::vector<ffi::Tensor> RunOther(const std::vector<ffi::Tensor>& inputs) {
    std::ostringstream shapes;
    for (size_t i = 0; i < inputs.size(); ++i) {
      shapes << (i == 0 ? "" : ", ") << entries_.front().inputs[i].name << " " << ffi::Shape(ShapeOf(inputs[i]));
    }
    const std::string text = shapes.str();
    if (!Has(manifest_, "others")) Fail(folder_ + " has no entry for " + text);
    if (other_ == nullptr) {
      other_ = std::make_unique<OwnFile>(folder_, manifest_, entries_.front().inputs, entries_.front().outputs);
      std::fprintf(stderr,
                   "%s has no entry for %s: such calls run the model's own file; to add one, place the model with "
                   "this shape, too\n",
                   folder_.c_str(), text.c_str());
    }
    return other_->Run(inputs);
  }

  std::string folder_;
  json::Object manifest_;
  std::deque<Entry> entries_;
  std::unique_ptr<OwnFile> other_;
  std::mutex mutex_;
};

}  // namespace collage
