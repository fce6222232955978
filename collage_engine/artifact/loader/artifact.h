// An artifact for programs in C++: its files are checked, its module is loaded and called.
//
// Needs TVM's runtime and tvm-ffi only. run_artifact.cc beside this file says how to link them, and
// uses all of it. A program of its own does so:
//
//   const json::Object manifest = collage::Opened(folder);        // throws where a file has changed
//   collage::SetEnvironment(manifest);                            // before anything is loaded
//   collage::Model model(folder, manifest);
//   ffi::Any result = model.Call(model.Place(inputs));            // tensors in the manifest's order
//
// An artifact for several shapes is a folder with an artifact for each of them, which are loaded so.

#pragma once

#include <sys/mman.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check_files.h"

namespace collage {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;
namespace json = tvm::ffi::json;

using Extents = std::vector<int64_t>;

[[noreturn]] inline void Fail(const std::string& what) { throw std::runtime_error(what); }

// -- the folder -------------------------------------------------------------------------

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path + " cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline bool Has(const json::Object& object, const char* key) { return object.count(ffi::String(key)) != 0; }

inline ffi::Any Field(const json::Object& object, const char* key) {
  if (!Has(object, key)) Fail(std::string("the manifest has no ") + key);
  return object[ffi::String(key)];
}

inline std::string Text(const json::Object& object, const char* key) {
  return std::string(Field(object, key).cast<ffi::String>());
}

// The objects of a list; none where there is no such list.
inline std::vector<json::Object> Objects(const json::Object& object, const char* key) {
  std::vector<json::Object> found;
  if (!Has(object, key)) return found;
  for (const ffi::Any& each : Field(object, key).cast<json::Array>()) found.push_back(each.cast<json::Object>());
  return found;
}

// The manifest of a folder whose files are as they were when it was exported. Nothing of the folder is loaded before.
inline json::Object Opened(const std::string& folder) {
  constexpr int64_t kVersion = 5;
  const std::string path = folder + "/manifest.json";
  if (!fs::is_regular_file(path)) Fail(path + " is missing or no regular file");
  const auto manifest = json::Parse(ffi::String(ReadFile(path))).cast<json::Object>();
  if (Text(manifest, "format") != "collage-artifact") Fail(folder + " is no artifact");
  if (Field(manifest, "format_version").cast<int64_t>() != kVersion) {
    const std::string known = std::to_string(kVersion);
    Fail(folder + " is an artifact of another version; this loader takes version " + known + " only: export it again");
  }
  for (const json::Object& entry : Objects(manifest, "entries")) {
    Fail(folder + " is for several shapes: name the folder of one of them, such as " + Text(entry, "folder"));
  }
  for (const json::Object& about : Objects(manifest, "requires")) {
    Fail(folder + " runs from Python only: " + Text(about, "reason"));
  }
  for (const auto& [key, about] : Field(manifest, "files").cast<json::Object>()) {
    const std::string name = key.cast<ffi::String>();
    if (HashOf(folder + "/" + name) != Text(about.cast<json::Object>(), "sha256")) {
      Fail(name + " has changed since it was exported");
    }
  }
  return manifest;
}

// Sets thread counts and spinning, which are read when the libraries load: for all of them as the artifact
// was measured, whatever the shell says.
inline void SetEnvironment(const json::Object& manifest) {
  for (const auto& [key, value] : Field(manifest, "environment").cast<json::Object>()) {
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
};

// The inputs or outputs that a manifest lists.
inline std::vector<Value> ValuesOf(const json::Object& manifest, const char* key) {
  std::vector<Value> values;
  for (const json::Object& about : Objects(manifest, key)) {
    const auto sample = Field(about, "sample").cast<json::Array>();
    Value value{Text(about, "name"), Text(about, "dtype"), {}, -1, sample[0].cast<size_t>(), sample[1].cast<size_t>()};
    if (Has(about, "tolerance")) value.tolerance = Field(about, "tolerance").cast<double>();
    if (value.dtype == "string") Fail("'" + value.name + "' holds texts, which only the loader in Python takes");
    const ffi::Any shape = Field(about, "shape");
    if (shape != nullptr) {
      for (const ffi::Any& extent : shape.cast<json::Array>()) value.shape.push_back(extent.cast<int64_t>());
    }
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

// Memory for tensors, aligned as TVM wants it.
struct Aligned {
  void AllocData(DLTensor* tensor) const {
    const size_t size = std::max<size_t>(ffi::GetDataSize(*tensor), 1);
    tensor->data = std::aligned_alloc(64, (size + 63) / 64 * 64);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) const { std::free(tensor->data); }
};

inline ffi::Tensor NewTensor(const Extents& shape, DLDataType type) {
  return ffi::Tensor::FromNDAlloc(Aligned(), ffi::Shape(shape.begin(), shape.end()), type, DLDevice{kDLCPU, 0});
}

// The module for which another one stands that names files of weights. Its bytes are fields behind their lengths:
// the kind of the module; then its bytes, in which every second field is the name of a file, whose content belongs there.
inline ffi::Module WithWeights(const ffi::Bytes& data) {
  std::vector<std::string> fields;
  for (size_t begin = 0; begin + 8 <= data.size();) {
    uint64_t size = 0;
    std::memcpy(&size, data.data() + begin, 8);
    fields.emplace_back(data.data() + begin + 8, size);
    begin += 8 + size;
  }
  std::string whole;
  for (size_t i = 1; i < fields.size(); ++i) {
    whole += i % 2 != 0 ? fields[i] : ReadFile(std::string(std::getenv("COLLAGE_WEIGHTS_FOLDER")) + "/weights/" + fields[i]);
  }
  const ffi::Function load = ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes." + fields[0]);
  return load(ffi::Bytes(std::move(whole))).cast<ffi::Module>();
}

// A loaded artifact. After its second run its memory is put on huge pages, unless COLLAGE_HUGE_PAGES=0: a program
// that calls once would pay for what others gain later.
class Model {
 public:
  Model(const std::string& folder, const json::Object& manifest)
      : cuda_(Has(manifest, "device") && Text(manifest, "device") == "cuda"),
        before_(cuda_ ? std::vector<Region>() : PrivateRegions()),
        library_(Load(folder)),
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

  // Copies of the inputs where the model runs.
  std::vector<ffi::Tensor> Place(std::vector<ffi::Tensor> inputs) const {
    for (ffi::Tensor& input : inputs) input = CopyTo(input, kDLCUDA);
    return inputs;
  }

  // Runs the model and waits until the device is done.
  ffi::Any Call(const std::vector<ffi::Tensor>& inputs) {
    const std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    ffi::Any result;
    model_.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    if (cuda_) wait_(DLDevice{kDLCUDA, 0}, static_cast<int64_t>(0));
    if (++calls_ == 2) UseHugePages(before_);
    return result;
  }

  // The outputs of a result in this machine's memory.
  std::vector<ffi::Tensor> Outputs(const ffi::Any& result) const {
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
  static ffi::Module Load(const std::string& folder) {
    // The files of weights are those whose hashes were checked, whatever folder the shell names.
    setenv("COLLAGE_WEIGHTS_FOLDER", fs::absolute(folder).c_str(), /*overwrite=*/1);
    ffi::Function::SetGlobal("ffi.Module.load_from_bytes.collage.weights", ffi::Function::FromTyped(WithWeights),
                             /*override=*/true);
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

}  // namespace collage
