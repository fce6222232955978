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
//   ./run_artifact DIR
//
// An artifact is code: run it only if you trust its author. Before anything is loaded the SHA-256 of
// its files is compared with the manifest's (artifact.h), as run_artifact.py does.
//
// An artifact for an NVIDIA device also needs -ltvm_runtime_cuda, and the CUDA runtime it names.
//
// (--no-as-needed: nothing here refers to libtvm_runtime by symbol, loading it registers the VM.)
// Exit status: 0 the outputs agree with the sample, 1 they do not or something failed, 2 usage.

#include "artifact.h"

#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

using namespace collage;

double HalfToDouble(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
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
  if (code != kDLInt && code != kDLUInt && code != kDLBool) Fail("element type not known to this loader");
  const int size = (bits + 7) / 8, rest = 64 - 8 * size;
  uint64_t whole = 0;
  std::memcpy(&whole, static_cast<const char*>(data) + i * size, size);
  if (code == kDLInt) return static_cast<double>(static_cast<int64_t>(whole << rest) >> rest);
  return static_cast<double>(whole);
}

// The bytes of a value in the file of a sample, which is an uncompressed .npz.
std::string SampleOf(const std::string& file, const Value& value) {
  return file.substr(std::min(value.sample_begin, file.size()), value.sample_bytes);
}

// An input of the sample as a tensor.
ffi::Tensor MakeInput(const Value& about, const std::string& file) {
  ffi::Tensor tensor = NewTensor(about.shape, about.type);
  const std::string bytes = SampleOf(file, about);
  if (ffi::GetDataSize(tensor) != bytes.size()) Fail("the sample of " + about.name + " has another size");
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// Largest |y-r| and largest |r| over one output; with `loses_nan` anything may stand where NaN is right.
void Compare(const std::string& name, const ffi::Tensor& got, const std::string& truth, bool loses_nan,
             double* error, double* scale) {
  const DLDataType type = got.dtype();
  const size_t count = static_cast<size_t>(got.numel());
  if (ffi::GetDataSize(got) != truth.size()) Fail(name + " has another size than the sample");
  const char* data = DataOf(got);
  const size_t size = ffi::GetDataSize(1, type);
  size_t differing = 0;
  for (size_t i = 0; i < count; ++i) {
    differing += std::memcmp(data + i * size, truth.data() + i * size, size) != 0;
    const double y = Element(data, i, type);
    const double r = Element(truth.data(), i, type);
    if (!std::isfinite(r)) {
      if (!(y == r || (std::isnan(r) && (loses_nan || std::isnan(y))))) *error = INFINITY;
      continue;
    }
    *error = std::isfinite(y) ? std::max(*error, std::fabs(y - r)) : INFINITY;
    *scale = std::max(*scale, std::fabs(r));
  }
  // Of whole numbers the share counts that differs; those of 64 bits may where doubles do not.
  const bool boolean = type.code == kDLBool || (type.code == kDLUInt && type.bits == 1);
  if (!boolean && ((type.code != kDLInt && type.code != kDLUInt) || type.bits <= 8)) return;
  if (differing == 0) return;
  *error = std::max(*error, 1.0);
  *scale = *error * static_cast<double>(count) / static_cast<double>(differing);
}

// Runs an artifact on the sample of an entry; whether it agrees with the truth.
bool Run(Artifact& artifact, const std::string& folder, const json::Object& manifest) {
  const std::string given = ReadFile(folder + "/sample_input.npz");
  const std::string truth = ReadFile(folder + "/sample_output.npz");
  std::vector<ffi::Tensor> inputs;
  for (const Value& value : ValuesOf(manifest, "inputs")) inputs.push_back(MakeInput(value, given));
  const std::vector<ffi::Tensor> outputs = artifact.Run(inputs);
  const std::vector<Value> expected = ValuesOf(manifest, "outputs");
  const double tolerance = Get<double>(manifest, "tolerance");
  const bool loses_nan = Has(manifest, "placement") &&
                         !Objects(Get<json::Object>(manifest, "placement"), "nan_losses").empty();
  double worst_absolute = 0, worst_relative = 0;
  bool agrees = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value& about = expected[i];
    double error = 0, scale = 0;
    Compare(about.name, outputs[i], SampleOf(truth, about), loses_nan, &error, &scale);
    worst_absolute = std::max(worst_absolute, error);
    const double relative = scale > 0 ? error / scale : error;
    worst_relative = std::max(worst_relative, relative);
    if (relative <= (about.tolerance < 0 ? tolerance : about.tolerance)) continue;
    agrees = false;
    std::printf("%s is off by %.3g\n", about.name.c_str(), error);
  }
  std::printf("max_abs_error %.3g  max_rel_error %.3g  (tolerance %.3g): %s\n", worst_absolute, worst_relative,
              tolerance, agrees ? "agrees with the sample" : "DIFFERS");
  return agrees;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: %s DIR\n", argv[0]);
    return 2;
  }
  try {
    const std::string folder = argv[1];
    Artifact artifact(folder, Opened(folder));
    bool agree = true;
    for (const Artifact::Entry& entry : artifact.entries()) {
      const json::Object manifest = entry.folder.empty() ? artifact.manifest() : Opened(folder + entry.folder);
      agree = Run(artifact, folder + entry.folder, manifest) && agree;
    }
    return agree ? 0 : 1;
  } catch (const std::exception& error) {  // of TVM's runtime only the first line, without the traceback below it
    const std::string text = error.what();
    std::fprintf(stderr, "%s\n", text.substr(0, text.find('\n')).c_str());
    return 1;
  }
}
