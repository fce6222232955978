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
//   ./run_artifact DIR [--benchmark] [--inputs FILE.npz]
//
// An artifact for several shapes runs each on its sample; other inputs choose one by their shapes, which
// must be those of an entry: only run_artifact.py pads smaller inputs.
//
// An artifact is code: run it only if you trust whoever made it. Before anything is loaded the SHA-256 of
// its files is compared with the manifest's (artifact.h), as run_artifact.py does.
//
// After its first run the model's memory is put on huge pages, unless COLLAGE_HUGE_PAGES=0.
//
// An artifact for an NVIDIA device also needs -ltvm_runtime_cuda, and the CUDA runtime it names.
//
// (--no-as-needed: nothing here refers to libtvm_runtime by symbol, loading it registers the VM.)
// Exit status: 0 the outputs agree with the sample, 1 they do not or something failed, 2 usage.

#include "artifact.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

using namespace collage;

struct Array {
  std::string descr;  // numpy's: "<f4", "|b1", ...
  Extents shape;
  std::vector<char> data;
};

// What an error of TVM's runtime says, without the traceback below it.
std::string FirstLine(const ffi::Error& error) {
  const std::string message = error.message();
  return message.substr(0, message.find('\n'));
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

ffi::Tensor NewTensor(const Extents& shape, DLDataType type) {
  return ffi::Tensor::FromNDAlloc(CpuAllocator(), ffi::Shape(shape.begin(), shape.end()), type, DLDevice{kDLCPU, 0});
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

// An input as a tensor.
ffi::Tensor MakeInput(const Value& about, const Array& array) {
  const DLDataType type = ffi::StringToDLDataType(ffi::String(about.dtype));
  ffi::Tensor tensor = NewTensor(about.shape, type);
  CheckType(about.name, array, type);
  if (ffi::GetDataSize(tensor) != array.data.size()) Fail(about.name + ": wrong size");
  std::memcpy(tensor.data_ptr(), array.data.data(), array.data.size());
  return tensor;
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

struct Options {
  std::string folder;
  bool benchmark = false;
  std::string inputs;  // an .npz file; empty: the samples
};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Benchmark(const Model& model, const std::vector<ffi::Tensor>& inputs, double load_s, double first_result_s) {
  constexpr size_t kLeastCalls = 10, kMostCalls = 10000;  // as latencies in run_artifact.py
  std::vector<double> seconds;
  const auto begin = Clock::now();
  while (seconds.size() < kLeastCalls || (SecondsSince(begin) < 2 && seconds.size() < kMostCalls)) {
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

// Runs inputs on the entry that their shapes choose; whether they agree with the truth.
bool RunOn(const Options& options, const json::Object& top, const std::vector<Entry>& entries,
           const std::map<std::string, Array>& given, const std::map<std::string, Array>* truth) {
  Shapes shapes;
  for (const auto& [name, array] : given) shapes[name] = array.shape;
  for (const Value& value : entries[0].inputs) {
    if (shapes.count(value.name) == 0) Fail("the inputs have no " + value.name);
  }
  const Entry& entry = entries[Pick(entries, shapes)];
  for (const auto& [dim, size] : entry.dims) {
    std::printf("%s=%lld ", Printable(dim).c_str(), static_cast<long long>(size));
  }
  if (!entry.dims.empty()) std::printf("\n");
  const json::Object manifest = Has(top, "entries") ? Opened(entry.folder) : top;
  std::vector<ffi::Tensor> inputs;
  for (const Value& value : entry.inputs) inputs.push_back(MakeInput(value, given.at(value.name)));
  const std::vector<Region> before = PrivateRegions();
  const auto load_begin = Clock::now();
  const Model model(entry.folder, manifest);
  inputs = model.Place(inputs);
  const double load_s = SecondsSince(load_begin);
  const ffi::Any result = model.Call(inputs);
  const double first_result_s = SecondsSince(load_begin);
  UseHugePages(before);
  const std::vector<ffi::Tensor> outputs = model.Outputs(result);
  if (entry.outputs.size() != outputs.size()) Fail("the model returned another number of outputs");
  const double tolerance = Field(manifest, "tolerance").cast<double>();
  double worst_absolute = 0, worst_relative = 0;
  bool agrees = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = entry.outputs[i].name;
    const ffi::Tensor& output = outputs[i];
    if (truth == nullptr) {
      const Extents shape(output.shape().begin(), output.shape().end());
      std::printf("%s\n", Printable(ShapeText({{name, shape}})).c_str());
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
    if (relative <= (own < 0 ? tolerance : own)) continue;
    agrees = false;
    std::printf("%s is off by %.3g\n", Printable(name).c_str(), error);
  }
  if (truth != nullptr) {
    std::printf("max_abs_error %.3g  max_rel_error %.3g  (tolerance %.3g): %s\n", worst_absolute, worst_relative,
                tolerance, agrees ? "agrees with the sample" : "DIFFERS");
  }
  if (options.benchmark) Benchmark(model, inputs, load_s, first_result_s);
  return agrees;
}

int Run(const Options& options) {
  json::Object top;
  std::vector<Entry> entries;
  try {
    top = Opened(options.folder);
    SetEnvironment(top);
    entries = EntriesOf(options.folder, top);
  } catch (const ffi::Error& error) {
    Fail("the manifest says something else than manifests do: " + FirstLine(error));
  }
  if (!options.inputs.empty()) return RunOn(options, top, entries, ReadNpz(options.inputs), nullptr) ? 0 : 1;
  bool agree = true;
  for (const Entry& entry : entries) {
    const auto truth = ReadNpz(entry.folder + "/sample_output.npz");
    agree = RunOn(options, top, entries, ReadNpz(entry.folder + "/sample_input.npz"), &truth) && agree;
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
    } else if (argument == "--inputs" && i + 1 < argc) {
      options.inputs = argv[++i];
    } else if (options.folder.empty() && argument[0] != '-') {
      options.folder = argument;
    } else {
      options.folder.clear();
      break;
    }
  }
  if (options.folder.empty()) {
    std::fprintf(stderr, "usage: %s DIR [--benchmark] [--inputs FILE.npz]\n", argv[0]);
    return 2;
  }
  try {
    return Run(options);
  } catch (const ffi::Error& error) {
    std::fprintf(stderr, "%s\n", Printable(FirstLine(error)).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", Printable(error.what()).c_str());
  }
  return 1;
}
