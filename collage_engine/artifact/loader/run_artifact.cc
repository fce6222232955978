// Runs a Collage Explorer artifact from C++ and checks it against its sample.
//
// Links TVM's runtime and tvm-ffi only. With the Python packages apache-tvm and apache-tvm-ffi
// installed, build it so (PYTHON is the interpreter that has them):
//
//   TVM=$(PYTHON -c 'import importlib.util as u; print(u.find_spec("tvm").submodule_search_locations[0])')/lib
//   FFI=$(tvm-ffi-config --libdir)
//   g++ -std=c++17 -O2 $(tvm-ffi-config --cxxflags) run_artifact.cc -o run_artifact -Wl,--no-as-needed
//     -L$TVM -ltvm_runtime -L$FFI -ltvm_ffi -Wl,-rpath,$TVM -Wl,-rpath,$FFI      (one command line)
//
//   ./run_artifact DIR [--benchmark] [--calls N] [--streams N] [--no-huge-pages]
//                  [--inputs FILE.npz [--truth FILE.npz]]
//
// An artifact for several shapes runs each entry on its sample; other inputs choose the entry by their
// shapes (entries.h, which a program of your own can use in the same way).
//
// An artifact is code: run it only if you trust whoever made it. Before anything is loaded the SHA-256 of
// its files is compared with the manifest's (check_files.h), as run_artifact.py does.
//
// After its first run the model's memory is put on huge pages where the system has them
// (huge_pages.h beside this file, which a program of your own can use in the same way).
//
// An artifact for an NVIDIA device also needs -ltvm_runtime_cuda, and the CUDA runtime it names.
//
// (--no-as-needed: nothing here refers to libtvm_runtime by symbol, loading it registers the VM.)
// Exit status: 0 the outputs agree with the sample, 1 they do not or something failed, 2 usage.

#include <sched.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check_files.h"
#include "entries.h"
#include "huge_pages.h"

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

struct Array {
  std::string descr;  // numpy's: "<f4", "|b1", ...
  std::vector<int64_t> shape;
  std::vector<char> data;
};

[[noreturn]] void Fail(const std::string& what) { throw std::runtime_error(what); }

// What an error of TVM's runtime says, without the traceback below it.
std::string FirstLine(const ffi::Error& error) {
  const std::string message = error.message();
  return message.substr(0, message.find('\n'));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path + " cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Little-endian unsigned integer of n bytes.
uint64_t Number(const std::string& bytes, size_t at, size_t n) {
  if (at + n > bytes.size()) Fail("truncated .npz file");
  uint64_t value = 0;
  for (size_t i = n; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// One .npy file held in memory, C order (NEP 1).
Array ParseNpy(const std::string& bytes, size_t at, size_t size) {
  if (size < 10 || bytes.compare(at, 6, "\x93NUMPY") != 0) Fail("not a .npy array");
  const bool first = bytes[at + 6] == 1;
  const size_t header_size = Number(bytes, at + 8, first ? 2 : 4);
  const size_t start = at + (first ? 10 : 12);
  const std::string header = bytes.substr(start, header_size);
  Array array;
  size_t p = header.find("'descr'");
  p = header.find('\'', header.find(':', p));
  array.descr = header.substr(p + 1, header.find('\'', p + 1) - p - 1);
  if (header.find("'fortran_order': False") == std::string::npos) Fail("array not in C order");
  p = header.find('(', header.find("'shape'")) + 1;
  const std::string dims = header.substr(p, header.find(')', p) - p);
  for (size_t i = 0; i < dims.size();) {
    if (dims[i] >= '0' && dims[i] <= '9') {
      const size_t digits = std::min(dims.find_first_not_of("0123456789", i), dims.size()) - i;
      if (digits > 18) Fail("an array of the .npz file has a size that no machine holds");
      array.shape.push_back(std::stoll(dims.substr(i, digits)));
      i += digits;
    } else {
      ++i;
    }
  }
  const size_t data = start + header_size;
  if (data > at + size) Fail("truncated .npy array");
  array.data.assign(bytes.begin() + data, bytes.begin() + at + size);
  return array;
}

// An uncompressed .npz: a ZIP archive of stored .npy files, read by its central directory.
std::map<std::string, Array> ReadNpz(const std::string& path) {
  const std::string bytes = ReadFile(path);
  if (bytes.size() < 22) Fail(path + " is no .npz file");
  size_t end = bytes.size() - 22;
  while (Number(bytes, end, 4) != 0x06054b50) {
    if (end == 0) Fail(path + " is no .npz file");
    --end;
  }
  const size_t entries = Number(bytes, end + 10, 2);
  size_t at = Number(bytes, end + 16, 4);
  std::map<std::string, Array> arrays;
  for (size_t i = 0; i < entries; ++i) {
    if (Number(bytes, at, 4) != 0x02014b50) Fail(path + ": broken directory");
    if (Number(bytes, at + 10, 2) != 0) Fail(path + " is compressed");
    const size_t size = Number(bytes, at + 24, 4);
    const size_t name_size = Number(bytes, at + 28, 2);
    const size_t extra_size = Number(bytes, at + 30, 2);
    const size_t comment_size = Number(bytes, at + 32, 2);
    const size_t local = Number(bytes, at + 42, 4);
    if (size == 0xffffffff || local == 0xffffffff) Fail(path + " is larger than 4 GiB");
    std::string name = bytes.substr(at + 46, name_size);
    if (name.size() > 4 && name.compare(name.size() - 4, 4, ".npy") == 0) name.resize(name.size() - 4);
    const size_t data = local + 30 + Number(bytes, local + 26, 2) + Number(bytes, local + 28, 2);
    if (data + size > bytes.size()) Fail(path + " is truncated");
    arrays.emplace(name, ParseNpy(bytes, data, size));
    at += 46 + name_size + extra_size + comment_size;
  }
  return arrays;
}

double HalfToDouble(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  double value;
  if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else if (exponent == 31) {
    value = mantissa ? std::nan("") : INFINITY;
  } else {
    value = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return h & 0x8000 ? -value : value;
}

template <typename T>
T At(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

double Element(const void* data, size_t i, DLDataType type) {
  const int code = type.code;
  const int bits = type.bits;
  if (code == kDLFloat && bits == 32) return At<float>(data, i);
  if (code == kDLFloat && bits == 64) return At<double>(data, i);
  if (code == kDLFloat && bits == 16) return HalfToDouble(At<uint16_t>(data, i));
  if (code == kDLBfloat) {
    const uint32_t wide = static_cast<uint32_t>(At<uint16_t>(data, i)) << 16;
    return At<float>(&wide, 0);
  }
  if (code == kDLInt && bits == 8) return At<int8_t>(data, i);
  if (code == kDLInt && bits == 16) return At<int16_t>(data, i);
  if (code == kDLInt && bits == 32) return At<int32_t>(data, i);
  if (code == kDLInt && bits == 64) return static_cast<double>(At<int64_t>(data, i));
  if ((code == kDLUInt || code == kDLBool) && bits <= 8) return At<uint8_t>(data, i);
  if (code == kDLUInt && bits == 16) return At<uint16_t>(data, i);
  if (code == kDLUInt && bits == 32) return At<uint32_t>(data, i);
  if (code == kDLUInt && bits == 64) return static_cast<double>(At<uint64_t>(data, i));
  Fail("element type not known to this loader");
}

struct CpuAllocator {
  void AllocData(DLTensor* tensor) {
    const size_t size = ffi::GetDataSize(*tensor);
    tensor->data = std::aligned_alloc(64, std::max<size_t>(64, (size + 63) / 64 * 64));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

std::string Text(const json::Object& object, const char* key) {
  return collage::internal::TextOf(object, key);
}

// Throws unless an array of an .npz file has elements of a type, in this machine's order. What numpy
// has no type for, such as bfloat16, is stored as bytes of that size ("V2").
void CheckType(const std::string& name, const Array& array, DLDataType type) {
  const std::string& descr = array.descr;
  const bool boolean = type.code == kDLBool || (type.code == kDLUInt && type.bits == 1);
  const char kind = boolean                 ? 'b'
                    : type.code == kDLFloat ? 'f'
                    : type.code == kDLInt   ? 'i'
                    : type.code == kDLUInt  ? 'u'
                                            : 'V';
  const std::string size = std::to_string(ffi::GetDataSize(1, type));
  const bool known = descr.size() > 2 && (descr[1] == kind || descr[1] == 'V') && descr.substr(2) == size;
  if (!known || (descr[0] == '>' && size != "1" && descr[1] != 'V')) {
    Fail(name + " must be " + std::string(ffi::DLDataTypeToString(type)) + ", not numpy's " + descr.substr(0, 20));
  }
}

// A tensor as large as an entry takes the input, with zeros behind the values where those are fewer.
ffi::Tensor MakeInput(const collage::Value& about, const Array& array) {
  const DLDataType type = ffi::StringToDLDataType(ffi::String(about.dtype));
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(
      CpuAllocator(), ffi::Shape(about.shape.begin(), about.shape.end()), type, DLDevice{kDLCPU, 0});
  CheckType(about.name, array, type);
  size_t count = 1;
  for (const int64_t extent : array.shape) count *= static_cast<size_t>(extent);
  if (ffi::GetDataSize(count, type) != array.data.size()) Fail(about.name + ": wrong size");
  char* data = static_cast<char*>(tensor.data_ptr());
  std::memset(data, 0, ffi::GetDataSize(tensor));
  collage::CopyCommon(array.data.data(), array.shape, data, about.shape, ffi::GetDataSize(1, type));
  return tensor;
}

// A copy of a tensor on another device; it is there when this returns.
ffi::Tensor CopyTo(const ffi::Tensor& tensor, DLDeviceType device) {
  static const ffi::Function to_device = ffi::Function::GetGlobalRequired("vm.builtin.to_device");
  return to_device(tensor, static_cast<int>(device), 0, ffi::String("global")).cast<ffi::Tensor>();
}

// Largest |y-r| and largest |r| over one output.
void Compare(const std::string& name, const ffi::Tensor& got, const Array& truth, double* error,
             double* scale) {
  const DLDataType type = got.dtype();
  if (std::vector<int64_t>(got.shape().begin(), got.shape().end()) != truth.shape) {
    Fail(name + " has another shape than the sample");
  }
  CheckType(name, truth, type);
  const size_t count = static_cast<size_t>(got.numel());
  if (ffi::GetDataSize(got) != truth.data.size()) Fail(name + ": wrong type");
  if (!got.IsContiguous()) Fail(name + " is not contiguous");
  const char* data = static_cast<const char*>(got.data_ptr()) + got.byte_offset();
  for (size_t i = 0; i < count; ++i) {
    const double y = Element(data, i, type);
    const double r = Element(truth.data.data(), i, type);
    if (!std::isfinite(r)) {
      if (!(y == r || (std::isnan(y) && std::isnan(r)))) *error = INFINITY;
      continue;
    }
    *error = std::isfinite(y) ? std::max(*error, std::fabs(y - r)) : INFINITY;
    *scale = std::max(*scale, std::fabs(r));
  }
  // Of whole numbers the share counts that differs; those of 64 bits may where doubles do not.
  const bool boolean = type.code == kDLBool || (type.code == kDLUInt && type.bits == 1);
  if (!boolean && ((type.code != kDLInt && type.code != kDLUInt) || type.bits <= 8)) return;
  const size_t size = ffi::GetDataSize(1, type);
  size_t differing = 0;
  for (size_t i = 0; i < count; ++i) {
    differing += std::memcmp(data + i * size, truth.data.data() + i * size, size) != 0;
  }
  if (differing == 0) return;
  *error = std::max(*error, 1.0);
  *scale = *error * static_cast<double>(count) / static_cast<double>(differing);
}

// Checks that every file is as it was, before anything is loaded; returns the entries.
std::vector<collage::Entry> Verify(const std::string& folder, const json::Object& manifest) {
  using collage::internal::Field;
  constexpr int64_t kVersion = 2;
  if (Text(manifest, "format") != "collage-artifact") Fail(folder + " is no artifact");
  if (Field(manifest, "format_version").cast<int64_t>() != kVersion) {
    Fail(folder + " is an artifact of another version; this loader takes version 2 only: export it again");
  }
  const std::vector<collage::Entry> entries = collage::EntriesOf(manifest);
  std::vector<std::string> needed;
  for (const collage::Entry& entry : entries) {
    needed.insert(needed.end(), entry.pieces.begin(), entry.pieces.end());
    needed.insert(needed.end(), entry.libraries.begin(), entry.libraries.end());
    needed.push_back(entry.sample_inputs);
    needed.push_back(entry.sample_outputs);
  }
  const auto files = Field(manifest, "files").cast<json::Object>();
  for (const std::string& name : needed) {
    if (files.count(ffi::String(name)) == 0) Fail("the manifest has no hash of '" + name + "', which would be loaded");
  }
  for (const auto& [key, about] : files) {
    const std::string name = key.cast<ffi::String>();
    if (collage::HashOf(folder + "/" + name) != Text(about.cast<json::Object>(), "sha256")) {
      Fail(name + " has changed since it was exported");
    }
  }
  return entries;
}

struct Options {
  std::string folder;
  bool benchmark = false;
  bool huge_pages = true;
  int calls = 10;
  std::string inputs;  // .npz files; empty: the samples
  std::string truth;
  int streams = 0;  // instances at once; 0: as the manifest says, single calls where it says nothing
  int threads = 1;  // of each, as the manifest says
};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// An entry whose module is loaded.
class Loaded {
 public:
  Loaded(const std::string& folder, const collage::Entry& entry, bool cuda, bool own_copy = false)
      : cuda_(cuda),
        library_(Load(folder, entry, own_copy)),
        machine_(library_->GetFunction("vm_load_executable").value()().cast<ffi::Module>()) {
    constexpr int kPooled = 2;
    const ffi::Function start = machine_->GetFunction("vm_initialization").value();
    if (cuda) {
      start(static_cast<int>(kDLCUDA), 0, kPooled, static_cast<int>(kDLCPU), 0, kPooled);
      wait_ = ffi::Function::GetGlobalRequired("runtime.Device_StreamSync");
    } else {
      start(static_cast<int>(kDLCPU), 0, kPooled);
    }
    model_ = machine_->GetFunction("main").value();
  }

  // Copies of the inputs where the model runs.
  std::vector<ffi::Tensor> Place(std::vector<ffi::Tensor> inputs) const {
    if (cuda_) {
      for (ffi::Tensor& input : inputs) input = CopyTo(input, kDLCUDA);
    }
    return inputs;
  }

  // Runs the model and waits until the device is done.
  ffi::Any Call(const std::vector<ffi::Tensor>& inputs) const {
    const std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    ffi::Any result;
    model_.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    if (cuda_) wait_(DLDevice{kDLCUDA, 0}, static_cast<int64_t>(0));
    return result;
  }

  // The outputs of a result in this machine's memory.
  std::vector<ffi::Tensor> Outputs(const ffi::Any& result) const {
    std::vector<ffi::Tensor> outputs;
    if (auto one = result.as<ffi::Tensor>()) {
      outputs.push_back(*one);
    } else {
      for (const ffi::Any& field : result.cast<ffi::Array<ffi::Any>>()) {
        outputs.push_back(field.cast<ffi::Tensor>());
      }
    }
    if (cuda_) {
      for (ffi::Tensor& output : outputs) output = CopyTo(output, kDLCPU);
    }
    return outputs;
  }

 private:
  static ffi::Module Load(const std::string& folder, const collage::Entry& entry, bool own_copy) {
    const collage::ModuleFile file(folder, entry, own_copy);
    return ffi::Module::LoadFromFile(ffi::String(file.path()));
  }

  bool cuda_;
  ffi::Module library_;
  ffi::Module machine_;
  ffi::Function model_;
  ffi::Function wait_;  // calls return before the device is done
};

void PrintPages(const collage::Moved& moved) {
  if (moved.bytes != 0) {
    std::printf("%.1f MB on huge pages, moved in %.0f ms\n", moved.bytes / 1e6,
                moved.seconds * 1e3);
  } else {
    std::printf("nothing on huge pages: %s\n", moved.reason.c_str());
  }
}

void Benchmark(const Loaded& model, const std::vector<ffi::Tensor>& inputs, int calls, double load_s,
               double first_result_s) {
  std::vector<double> seconds;
  const auto begin = Clock::now();
  while (static_cast<int>(seconds.size()) < calls || (SecondsSince(begin) < 2 && seconds.size() < 10000)) {
    const auto start = Clock::now();
    model.Call(inputs);
    seconds.push_back(SecondsSince(start));
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("loaded in %.0f ms, first result after %.0f ms\n", load_s * 1e3, first_result_s * 1e3);
  std::printf("median %.1f us  p90 %.1f us  p99 %.1f us  (%zu calls)\n",
              seconds[seconds.size() / 2] * 1e6, seconds[seconds.size() * 9 / 10] * 1e6,
              seconds[seconds.size() * 99 / 100] * 1e6, seconds.size());
}

// Runs per second of several instances at once, each in a thread that has processors of its own, for
// two seconds. They are loaded one after the other.
double RunsPerSecond(const Options& options, const collage::Entry& entry, const std::vector<ffi::Tensor>& inputs,
                     int streams, int threads) {
  cpu_set_t allowed;
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed)) processors.push_back(i);
    }
  }
  const bool enough = static_cast<int>(processors.size()) >= streams * threads;
  std::mutex loading;
  std::atomic<int> ready{0};
  std::atomic<bool> failed{false};
  std::vector<double> rates(static_cast<size_t>(streams), 0.0);
  std::string why;
  const auto work = [&](int number) {
    try {
      if (enough) {
        cpu_set_t mine;
        CPU_ZERO(&mine);
        for (int i = number * threads; i < (number + 1) * threads; ++i) CPU_SET(processors[static_cast<size_t>(i)], &mine);
        sched_setaffinity(0, sizeof mine, &mine);  // of this thread, and of those that it starts
      }
      std::unique_lock<std::mutex> one_by_one(loading);
      const Loaded model(options.folder, entry, /*cuda=*/false, /*own_copy=*/number > 0);
      model.Call(inputs);
      one_by_one.unlock();
      ++ready;
      while (ready < streams && !failed) std::this_thread::yield();
      const auto begin = Clock::now();
      int count = 0;
      while (count == 0 || SecondsSince(begin) < 2) {
        model.Call(inputs);
        ++count;
      }
      rates[static_cast<size_t>(number)] = count / SecondsSince(begin);
    } catch (const std::exception& error) {
      if (!failed.exchange(true)) why = error.what();
    }
  };
  std::vector<std::thread> workers;
  for (int number = 0; number < streams; ++number) workers.emplace_back(work, number);
  for (std::thread& worker : workers) worker.join();
  if (failed) Fail(why);
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

// An output without what belongs to padding.
ffi::Tensor Cut(const ffi::Tensor& output, const std::string& name, const collage::Padding& padding,
                const std::map<std::string, int64_t>& padded) {
  collage::Extents shape(output.shape().begin(), output.shape().end());
  const collage::Extents whole = shape;
  for (const auto& [dim, size] : padded) {
    for (const auto& [value, axis] : padding.at(dim).outputs) {
      if (value != name) continue;
      int64_t& extent = shape.at(static_cast<size_t>(axis));
      if (size > extent) Fail("the manifest pads " + name + " along another axis than it has");
      extent = size;
    }
  }
  if (shape == whole) return output;
  ffi::Tensor kept = ffi::Tensor::FromNDAlloc(CpuAllocator(), ffi::Shape(shape.begin(), shape.end()),
                                              output.dtype(), DLDevice{kDLCPU, 0});
  const char* data = static_cast<const char*>(output.data_ptr()) + output.byte_offset();
  collage::CopyCommon(data, whole, static_cast<char*>(kept.data_ptr()), shape, ffi::GetDataSize(1, output.dtype()));
  return kept;
}

// Runs inputs on the entry that their shapes choose; whether they agree with the truth.
bool RunOn(const Options& options, const std::vector<collage::Entry>& entries, const collage::Padding& padding,
           bool cuda, const std::map<std::string, Array>& given, const std::map<std::string, Array>* truth) {
  collage::Shapes shapes;
  for (const auto& [name, array] : given) shapes[name] = array.shape;
  for (const collage::Value& value : entries[0].inputs) {
    if (shapes.count(value.name) == 0) Fail("the inputs have no " + value.name);
  }
  std::map<std::string, int64_t> padded;
  const size_t number = collage::Pick(entries, shapes, padding, &padded);
  const collage::Entry& entry = entries[number];
  if (entries.size() > 1) {
    for (const auto& [dim, size] : entry.dims) {
      std::printf("%s=%lld ", collage::Printable(dim).c_str(), static_cast<long long>(size));
    }
    std::printf(padded.empty() ? "\n" : "with padding\n");
  }
  std::vector<ffi::Tensor> inputs;
  for (const collage::Value& value : entry.inputs) inputs.push_back(MakeInput(value, given.at(value.name)));
  collage::HugePages pages(cuda ? "it runs on a device" : options.huge_pages ? "" : "not wanted");
  const auto load_begin = Clock::now();
  const Loaded model(options.folder, entry, cuda);
  inputs = model.Place(inputs);
  const double load_s = SecondsSince(load_begin);
  const ffi::Any result = model.Call(inputs);
  const double first_result_s = SecondsSince(load_begin);
  const collage::Moved moved = pages.Collapse();
  const std::vector<ffi::Tensor> outputs = model.Outputs(result);
  if (entry.outputs.size() != outputs.size()) Fail("the model returned another number of outputs");
  double worst_absolute = 0, worst_relative = 0;
  bool agrees = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = entry.outputs[i].name;
    const ffi::Tensor output = Cut(outputs[i], name, padding, padded);
    if (truth == nullptr) {
      const collage::Extents shape(output.shape().begin(), output.shape().end());
      std::printf("%s\n", collage::Printable(collage::ShapeText({{name, shape}})).c_str());
      continue;
    }
    const auto found = truth->find(name);
    if (found == truth->end()) Fail("the true outputs have no " + name);
    double error = 0, scale = 0;
    Compare(name, output, found->second, &error, &scale);
    worst_absolute = std::max(worst_absolute, error);
    const double relative = scale > 0 ? error / scale : error;
    worst_relative = std::max(worst_relative, relative);
    const double own = entry.outputs[i].tolerance;
    if (relative <= (own < 0 ? entry.tolerance : own)) continue;
    agrees = false;
    std::printf("%s is off by %.3g\n", collage::Printable(name).c_str(), error);
  }
  if (truth != nullptr) {
    std::printf("max_abs_error %.3g  max_rel_error %.3g  (tolerance %.3g): %s\n", worst_absolute,
                worst_relative, entry.tolerance, agrees ? "agrees with the sample" : "DIFFERS");
  }
  PrintPages(moved);
  if (options.benchmark && options.streams > 0 && !cuda) {
    std::printf("%.1f runs per second by %d instances\n",
                RunsPerSecond(options, entry, inputs, options.streams, options.threads), options.streams);
  } else if (options.benchmark) {
    Benchmark(model, inputs, options.calls, load_s, first_result_s);
  }
  return agrees;
}

int Run(Options options) {
  const std::string& folder = options.folder;
  const std::string path = folder + "/manifest.json";
  if (!std::filesystem::is_regular_file(path)) Fail(path + " is missing or no regular file");
  const std::string text = ReadFile(path);
  json::Object manifest;
  std::vector<collage::Entry> entries;
  collage::Padding padding;
  try {
    manifest = json::Parse(ffi::String(text)).cast<json::Object>();
    entries = Verify(folder, manifest);
    padding = collage::PaddingOf(manifest);
  } catch (const ffi::Error& error) {
    Fail("the manifest says something else than manifests do: " + FirstLine(error));
  }
  if (manifest.count(ffi::String("requires")) != 0) {
    for (const ffi::Any& about : manifest[ffi::String("requires")].cast<json::Array>()) {
      Fail(folder + " runs from Python only: " + Text(about.cast<json::Object>(), "reason"));
    }
  }
  // Thread counts and spinning are read when the libraries load: set them before a module does,
  // for all runtimes as the artifact was measured, whatever the shell says.
  const auto environment = manifest[ffi::String("environment")].cast<json::Object>();
  for (const auto& [key, value] : environment) {
    setenv(key.cast<ffi::String>().c_str(), value.cast<ffi::String>().c_str(), /*overwrite=*/1);
  }
  // The files of weights are those whose hashes were checked, whatever folder the shell names.
  setenv("COLLAGE_WEIGHTS_FOLDER", std::filesystem::absolute(folder).c_str(), /*overwrite=*/1);
  const bool cuda = manifest.count(ffi::String("device")) != 0 && Text(manifest, "device") == "cuda";
  const auto number = [&](const char* key, int otherwise) {
    const ffi::String name(key);
    if (manifest.count(name) == 0) return otherwise;
    return static_cast<int>(manifest[name].cast<int64_t>());
  };
  options.threads = number("threads", 1);
  const int streams = number("streams", 0);
  if (options.streams == 0) options.streams = streams;
  if (!options.inputs.empty()) {
    const auto given = ReadNpz(options.inputs);
    if (options.truth.empty()) return RunOn(options, entries, padding, cuda, given, nullptr) ? 0 : 1;
    const auto truth = ReadNpz(options.truth);
    return RunOn(options, entries, padding, cuda, given, &truth) ? 0 : 1;
  }
  bool agree = true;
  for (const collage::Entry& entry : entries) {
    const auto truth = ReadNpz(folder + "/" + entry.sample_outputs);
    const auto given = ReadNpz(folder + "/" + entry.sample_inputs);
    agree = RunOn(options, entries, padding, cuda, given, &truth) && agree;
  }
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--benchmark") {
      options.benchmark = true;
    } else if (argument == "--no-huge-pages") {
      options.huge_pages = false;
    } else if (argument == "--calls" && i + 1 < argc) {
      options.calls = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--streams" && i + 1 < argc) {
      options.streams = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--inputs" && i + 1 < argc) {
      options.inputs = argv[++i];
    } else if (argument == "--truth" && i + 1 < argc) {
      options.truth = argv[++i];
    } else if (options.folder.empty() && argument[0] != '-') {
      options.folder = argument;
    } else {
      options.folder.clear();
      break;
    }
  }
  if (options.folder.empty() || (!options.truth.empty() && options.inputs.empty())) {
    std::fprintf(stderr, "usage: %s DIR [--benchmark] [--calls N] [--streams N] [--no-huge-pages] [--inputs FILE.npz [--truth FILE.npz]]\n",
                 argv[0]);
    return 2;
  }
  try {
    return Run(options);
  } catch (const ffi::Error& error) {
    std::fprintf(stderr, "%s\n", collage::Printable(FirstLine(error)).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", collage::Printable(error.what()).c_str());
  }
  return 1;
}
