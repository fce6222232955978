// The entries of an artifact for several shapes: which one runs some inputs, and its module's file.
//
// An entry has what the manifest of an artifact for one shape has. Its module stands in pieces, each a
// file that is named by its SHA-256; entries.py does the same for Python. A program of its own uses
// it so:
//
//   std::vector<collage::Entry> entries = collage::EntriesOf(manifest);   // after its files are checked
//   std::map<std::string, int64_t> padded;
//   size_t number = collage::Pick(entries, {{"input", {3, 3, 224, 224}}}, 
//       collage::PaddingOf(manifest), &padded);
//   collage::ModuleFile file(folder, entries[number]);                    // load file.path() while it lives

#pragma once

#include <dlfcn.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check_files.h"

namespace collage {

using Extents = std::vector<int64_t>;
using Shapes = std::map<std::string, Extents>;

struct Value {
  std::string name;
  std::string dtype;
  Extents shape;
  double tolerance = -1;  // an output's own; below 0: the entry's
};

struct Entry {
  std::map<std::string, int64_t> dims;
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  std::map<std::string, std::string> environment;
  double tolerance = 0;
  std::string sample_inputs = "sample_input.npz";
  std::string sample_outputs = "sample_output.npz";
  std::string sha256;               // of the module; empty: it is model.so
  std::vector<std::string> pieces;  // its files, in order
  std::vector<std::string> libraries;
};

// For each dimension along which inputs may be padded: the axes of inputs and of outputs.
struct Axes {
  std::vector<std::pair<std::string, int64_t>> inputs;
  std::vector<std::pair<std::string, int64_t>> outputs;
};
using Padding = std::map<std::string, Axes>;

namespace internal {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

inline ffi::Any Field(const json::Object& object, const char* key) {
  const ffi::String name(key);
  if (object.count(name) == 0) throw std::runtime_error(std::string("the manifest has no ") + key);
  return object[name];
}

inline bool Has(const json::Object& object, const char* key) {
  return object.count(ffi::String(key)) != 0;
}

inline std::string TextOf(const json::Object& object, const char* key) {
  return std::string(Field(object, key).cast<ffi::String>());
}

inline std::vector<Value> Values(const json::Object& object, const char* key) {
  std::vector<Value> values;
  for (const ffi::Any& each : Field(object, key).cast<json::Array>()) {
    const auto about = each.cast<json::Object>();
    Value value{TextOf(about, "name"), TextOf(about, "dtype"), {}, -1};
    if (Has(about, "tolerance")) value.tolerance = Field(about, "tolerance").cast<double>();
    if (value.dtype == "string") {
      throw std::runtime_error("'" + value.name + "' holds texts, which only the loader in Python takes");
    }
    // An output's size of -1, or a shape of null, depends on the data: each run has its own.
    const bool output = std::string(key) == "outputs";
    const ffi::Any shape = Field(about, "shape");
    if (shape == nullptr && output) {
      values.push_back(value);
      continue;
    }
    for (const ffi::Any& extent : shape.cast<json::Array>()) value.shape.push_back(extent.cast<int64_t>());
    values.push_back(value);
  }
  return values;
}

inline Entry EntryOf(const json::Object& object) {
  Entry entry;
  entry.inputs = Values(object, "inputs");
  entry.outputs = Values(object, "outputs");
  entry.tolerance = Field(object, "tolerance").cast<double>();
  for (const auto& [key, value] : Field(object, "environment").cast<json::Object>()) {
    entry.environment[key.cast<ffi::String>()] = std::string(value.cast<ffi::String>());
  }
  return entry;
}

}  // namespace internal

// The artifact's entries; one for a manifest that has none.
inline std::vector<Entry> EntriesOf(const tvm::ffi::json::Object& manifest) {
  using namespace internal;
  std::vector<std::string> libraries;
  if (Has(manifest, "libraries")) {
    for (const ffi::Any& each : Field(manifest, "libraries").cast<json::Array>()) {
      const auto about = each.cast<json::Object>();
      if (Has(about, "needed") && Field(about, "needed").cast<bool>()) {
        libraries.push_back(TextOf(about, "file"));
      }
    }
  }
  std::vector<Entry> entries;
  if (!Has(manifest, "entries")) {
    entries.push_back(EntryOf(manifest));
    entries.back().pieces = {"model.so"};
  } else {
    for (const ffi::Any& each : Field(manifest, "entries").cast<json::Array>()) {
      const auto about = each.cast<json::Object>();
      entries.push_back(EntryOf(about));
      Entry& entry = entries.back();
      for (const auto& [key, value] : Field(about, "dims").cast<json::Object>()) {
        entry.dims[key.cast<ffi::String>()] = value.cast<int64_t>();
      }
      const auto sample = Field(about, "sample").cast<json::Object>();
      entry.sample_inputs = TextOf(sample, "inputs");
      entry.sample_outputs = TextOf(sample, "outputs");
      const auto module = Field(about, "module").cast<json::Object>();
      entry.sha256 = TextOf(module, "sha256");
      for (const ffi::Any& piece : Field(module, "pieces").cast<json::Array>()) {
        entry.pieces.push_back(std::string(piece.cast<ffi::String>()));
      }
    }
  }
  if (entries.empty()) throw std::runtime_error("the manifest has no entries");
  if (entries.empty()) throw std::runtime_error("the manifest has no entries");
  for (Entry& entry : entries) entry.libraries = libraries;
  return entries;
}

// Along what inputs may be padded, as the manifest says.
inline Padding PaddingOf(const tvm::ffi::json::Object& manifest) {
  using namespace internal;
  Padding padding;
  if (!Has(manifest, "padding")) return padding;
  for (const auto& [key, value] : Field(manifest, "padding").cast<json::Object>()) {
    const auto about = value.cast<json::Object>();
    Axes& axes = padding[std::string(key.cast<ffi::String>())];
    for (auto [name, list] : {std::make_pair("inputs", &axes.inputs), std::make_pair("outputs", &axes.outputs)}) {
      for (const ffi::Any& each : Field(about, name).cast<json::Array>()) {
        const auto pair = each.cast<json::Array>();
        list->emplace_back(std::string(pair[0].cast<ffi::String>()), pair[1].cast<int64_t>());
      }
    }
  }
  return padding;
}

inline std::string ShapeText(const Shapes& shapes) {
  std::string text;
  for (const auto& [name, extents] : shapes) {
    text += (text.empty() ? "" : ", ") + name + " [";
    for (size_t i = 0; i < extents.size(); ++i) text += (i ? ", " : "") + std::to_string(extents[i]);
    text += "]";
  }
  return text;
}

// The number of the entry that runs inputs of some shapes. `padded` gets the sizes of the dimensions
// along which they have to be padded; none where the entry has the very shapes. Throws where there is
// no such entry.
inline size_t Pick(const std::vector<Entry>& entries, const Shapes& shapes, const Padding& padding,
                   std::map<std::string, int64_t>* padded) {
  padded->clear();
  std::string has;
  for (size_t number = 0; number < entries.size(); ++number) {
    bool same = true;
    Shapes wanted;
    for (const Value& value : entries[number].inputs) {
      const auto given = shapes.find(value.name);
      same = same && given != shapes.end() && given->second == value.shape;
      wanted[value.name] = value.shape;
    }
    if (same) return number;
    has += (has.empty() ? "" : "; ") + ShapeText(wanted);
  }
  std::map<std::pair<std::string, int64_t>, std::string> along;
  for (const auto& [dim, axes] : padding) {
    for (const auto& axis : axes.inputs) along[axis] = dim;
  }
  double fewest = 0;
  size_t best = entries.size();
  for (size_t number = 0; number < entries.size(); ++number) {
    std::map<std::string, int64_t> sizes;
    bool fits = true;
    double elements = 0;
    for (const Value& value : entries[number].inputs) {
      const auto given = shapes.find(value.name);
      fits = fits && given != shapes.end() && given->second.size() == value.shape.size();
      double product = 1;
      for (size_t axis = 0; fits && axis < value.shape.size(); ++axis) {
        const int64_t have = given->second[axis], need = value.shape[axis];
        product *= static_cast<double>(need);
        const auto dim = along.find({value.name, static_cast<int64_t>(axis)});
        if (dim == along.end()) {
          fits = have == need;
        } else {
          fits = have > 0 && have <= need && sizes.emplace(dim->second, have).first->second == have;
        }
      }
      elements += product;
    }
    if (!fits || (best != entries.size() && elements >= fewest)) continue;
    best = number;
    fewest = elements;
    padded->clear();
    for (const auto& [dim, size] : sizes) {
      const auto full = entries[number].dims.find(dim);
      if (full != entries[number].dims.end() && size < full->second) (*padded)[dim] = size;
    }
  }
  if (best != entries.size()) return best;
  std::string more;
  for (const auto& [dim, axes] : padding) more += (more.empty() ? "; inputs may be smaller along " : ", ") + dim;
  throw std::runtime_error("the artifact has no entry for " + ShapeText(shapes) + "; it has " + has + more);
}

// Copies the common part of two dense arrays of one rank, from the begin of each axis.
inline void CopyCommon(const char* from, const Extents& from_shape, char* to, const Extents& to_shape,
                       size_t item, size_t axis = 0) {
  if (axis == from_shape.size()) {
    std::memcpy(to, from, item);
    return;
  }
  size_t from_step = item, to_step = item;
  for (size_t i = axis + 1; i < from_shape.size(); ++i) {
    from_step *= static_cast<size_t>(from_shape[i]);
    to_step *= static_cast<size_t>(to_shape[i]);
  }
  const size_t common = static_cast<size_t>(std::min(from_shape[axis], to_shape[axis]));
  if (from_step == to_step && std::equal(from_shape.begin() + axis + 1, from_shape.end(), to_shape.begin() + axis + 1)) {
    std::memcpy(to, from, common * from_step);
    return;
  }
  for (size_t i = 0; i < common; ++i) {
    CopyCommon(from + i * from_step, from_shape, to + i * to_step, to_shape, item, axis + 1);
  }
}

// The file of an entry's module, for as long as this object lives.
class ModuleFile {
 public:
  // With `own_copy`, it is not one that this process may have loaded before: that would have one state.
  ModuleFile(const std::string& folder, const Entry& entry, bool own_copy = false) {
    if (entry.sha256.empty() && !own_copy) {
      path_ = folder + "/model.so";
      return;
    }
    Preload(folder, entry.libraries);
    std::string pattern = (std::filesystem::temp_directory_path() / "collage-module-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("there is no temporary folder");
    place_ = pattern;
    path_ = place_ + "/model.so";
    std::ofstream module(path_, std::ios::binary);
    Sha256 hash;
    std::vector<char> buffer(1 << 20);
    for (const std::string& name : entry.pieces) {
      std::ifstream piece(folder + "/" + name, std::ios::binary);
      while (piece.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || piece.gcount() > 0) {
        hash.Add(reinterpret_cast<const unsigned char*>(buffer.data()), static_cast<size_t>(piece.gcount()));
        module.write(buffer.data(), piece.gcount());
      }
    }
    module.close();
    if (!module || (!entry.sha256.empty() && hash.Digest() != entry.sha256)) {
      Remove();
      throw std::runtime_error("the pieces of a module are not those that the manifest describes");
    }
  }
  ~ModuleFile() { Remove(); }
  ModuleFile(const ModuleFile&) = delete;
  ModuleFile& operator=(const ModuleFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  // Loads what the module would look for beside itself; what needs others comes after them.
  static void Preload(const std::string& folder, std::vector<std::string> waiting) {
    while (!waiting.empty()) {
      std::vector<std::string> left;
      std::string why;
      for (const std::string& name : waiting) {
        if (dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
          left.push_back(name);
          why = dlerror();
        }
      }
      if (left.size() == waiting.size()) throw std::runtime_error(left[0] + " cannot be loaded: " + why);
      waiting = left;
    }
  }

  void Remove() {
    std::error_code ignored;
    if (!place_.empty()) std::filesystem::remove_all(place_, ignored);
  }

  std::string place_;
  std::string path_;
};

}  // namespace collage
