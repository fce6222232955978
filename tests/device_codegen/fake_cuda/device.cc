// An NVIDIA device that is not there: the driver's and the runtime's calls, answered on the CPU.
//
// Built once as libcuda.so.1 and libcudart.so.13. What it stands in for is behaviour, not speed:
// * Device memory lies at addresses that the CPU cannot read, so code that touches it from the host
//   ends with a fault, as it does on a device that is there.
// * Kernels are what `nvcc` beside this file makes of CUDA source: libraries for the CPU.
// * A stream that is being captured runs nothing; whatever allocates or waits meanwhile spoils the
//   capture (cudaErrorStreamCaptureInvalidated), as the CUDA programming guide says.
// * Work takes time on a clock of its own, by its size, whatever running it here takes; waiting
//   for the device waits for that clock. A graph that is replayed on the same data runs once more
//   at most and then only takes its time.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr uintptr_t kDevice = uintptr_t{1} << 47;  // no address of a program on the CPU has it
constexpr size_t kMemory = size_t{2} << 30;
constexpr int kMultiprocessors = 2;

std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;

void* ToDevice(void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) | kDevice); }
bool OnDevice(const void* p) { return reinterpret_cast<uintptr_t>(p) & kDevice; }
void* ToHost(const void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) & ~kDevice); }

// Microseconds: the wall's clock, less what was spent on computing here.
double emulated_us = 0, busy_until = 0;
double Wall() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}
double Now() { return Wall() - emulated_us; }
void Take(double us) { busy_until = std::max(busy_until, Now()) + us; }
void WaitForDevice() {
  while (Now() < busy_until) std::this_thread::sleep_for(std::chrono::microseconds(5));
}

struct Op {
  double us;
  std::function<void()> run;
};
struct Graph {
  std::vector<Op> ops;
  uint64_t seen = 0;  // data_version when it was run last
  int runs = 0;
};
struct Stream {
  bool capturing = false, spoilt = false;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::vector<Op> ops;
};
struct Event {
  double at = 0;
};
std::map<Stream*, bool> streams;
Stream default_stream;
uint64_t data_version = 1;
size_t used = 0;
std::map<void*, size_t> sizes;
cudaError_t last_error = cudaSuccess;
int captured_graphs = 0, allocations = 0;

cudaError_t Say(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}
Stream* Of(void* stream) {
  auto value = reinterpret_cast<uintptr_t>(stream);
  return value <= 2 ? &default_stream : static_cast<Stream*>(stream);
}
// Whether a call that is not allowed during a capture may be made; if not, the capture is spoilt.
bool Allowed() {
  bool allowed = true;
  for (auto& [stream, _] : streams) {
    if (!stream->capturing || stream->mode == cudaStreamCaptureModeRelaxed) continue;
    if (stream->mode == cudaStreamCaptureModeThreadLocal && stream->thread != std::this_thread::get_id()) continue;
    stream->spoilt = true;
    allowed = false;
  }
  return allowed;
}
void Run(const std::function<void()>& work) {
  double begin = Wall();
  work();
  emulated_us += Wall() - begin;
}
cudaError_t Enqueue(Stream* stream, Op op) {
  if (stream->capturing) {
    stream->ops.push_back(std::move(op));
    return cudaSuccess;
  }
  // The legacy stream waits for all others: not while one of them is captured.
  if (stream == &default_stream && !Allowed()) return Say(cudaErrorStreamCaptureImplicit);
  Run(op.run);
  Take(op.us);
  return cudaSuccess;
}

struct Function {
  void (*launch)(void**, const unsigned*, const unsigned*, bool);
  const unsigned char* sizes;
  std::string name;
};
struct Module {
  void* library;
  std::map<std::string, Function> functions;
};

size_t ImageBytes(const void* image) {
  auto* head = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return 0;
  return head->e_shoff + size_t{head->e_shnum} * head->e_shentsize;
}

CUresult Launch(Function* f, const unsigned* grid, const unsigned* block, void* stream, void** params) {
  Guard guard(lock);
  std::vector<std::vector<char>> values;
  for (int i = 0; f->sizes[i] != 0; ++i) {
    auto* from = static_cast<const char*>(params[i]);
    values.emplace_back(from, from + f->sizes[i]);
  }
  std::vector<unsigned> g(grid, grid + 3), b(block, block + 3);
  double threads = 1.0 * g[0] * g[1] * g[2] * b[0] * b[1] * b[2];
  if (1.0 * b[0] * b[1] * b[2] > 1024 || threads == 0) return CUDA_ERROR_INVALID_VALUE;
  auto run = [f, g, b, values]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    f->launch(pointers.data(), g.data(), b.data(), false);
  };
  return static_cast<CUresult>(Enqueue(Of(stream), {2.0 + threads * 4e-4, run}));
}

cudaError_t Copy(void* to, const void* from, size_t size, Stream* stream) {
  bool crosses = OnDevice(to) != OnDevice(from);
  if (crosses && OnDevice(to)) ++data_version;
  double us = crosses ? 5.0 + size / 25e3 : 2.0 + size / 1e6;
  return Enqueue(stream, {us, [=] { std::memmove(ToHost(to), ToHost(from), size); }});
}

}  // namespace

// ------------------------------------------------------------------ the driver

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice* device, int number) { return *device = number, CUDA_SUCCESS; }
API CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, size, "Pretended H200");
  return CUDA_SUCCESS;
}
#undef cuDeviceTotalMem
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = kMemory, CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return static_cast<CUresult>(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), 0));
}
API CUresult cuGetErrorName(CUresult status, const char** text) {
  return *text = cudaGetErrorName(static_cast<cudaError_t>(status)), CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult status, const char** text) {
  return *text = cudaGetErrorString(static_cast<cudaError_t>(status)), CUDA_SUCCESS;
}
API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  Guard guard(lock);
  size_t size = ImageBytes(image);
  if (size == 0) return CUDA_ERROR_INVALID_IMAGE;
  int file = memfd_create("kernels", 0);
  if (write(file, image, size) != static_cast<ssize_t>(size)) return CUDA_ERROR_INVALID_IMAGE;
  std::string path = "/proc/self/fd/" + std::to_string(file);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "pretended device: %s\n", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = reinterpret_cast<CUmodule>(new Module{library, {}});
  return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Guard guard(lock);
  auto* m = reinterpret_cast<Module*>(module);
  auto* launch = dlsym(m->library, (std::string("launch_") + name).c_str());
  auto* sizes = dlsym(m->library, (std::string("sizes_") + name).c_str());
  if (launch == nullptr || sizes == nullptr) return CUDA_ERROR_NOT_FOUND;
  Function& f = m->functions[name];
  f = {reinterpret_cast<decltype(f.launch)>(launch), static_cast<const unsigned char*>(sizes), name};
  *function = reinterpret_cast<CUfunction>(&f);
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int value) {
  return value > 227 * 1024 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned, CUstream stream, void** params,
                            void**) {
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return Launch(reinterpret_cast<Function*>(f), grid, block, stream, params);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void**) {
  unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ};
  unsigned block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  return Launch(reinterpret_cast<Function*>(f), grid, block, c->hStream, params);
}
API CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

// ------------------------------------------------------------------ the runtime

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  static const std::map<int, int> known = {
      {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxBlockDimX, 1024},
      {cudaDevAttrMaxBlockDimY, 1024}, {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10}, {cudaDevAttrWarpSize, 32},
      {cudaDevAttrClockRate, 1980000}, {cudaDevAttrMultiProcessorCount, kMultiprocessors},
      {cudaDevAttrMemoryClockRate, 3201000}, {cudaDevAttrGlobalMemoryBusWidth, 6144},
      {cudaDevAttrL2CacheSize, 60 << 20}, {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10}};
  auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "Pretended H200");
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->totalGlobalMem = kMemory;
  properties->l2CacheSize = 60 << 20;
  properties->warpSize = 32;
  return cudaSuccess;
}
API cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
API cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : Say(cudaErrorInvalidDevice); }
API cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
API const char* cudaGetErrorString(cudaError_t status) {
  if (status == cudaErrorStreamCaptureUnsupported) return "operation not permitted when stream is capturing";
  if (status == cudaErrorStreamCaptureInvalidated) return "operation failed due to a previous error during capture";
  return status == cudaSuccess ? "no error" : "an error of the pretended device";
}
API const char* cudaGetErrorName(cudaError_t status) { return cudaGetErrorString(status); }
API cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
API cudaError_t cudaPeekAtLastError() { return last_error; }

API cudaError_t cudaMalloc(void** out, size_t size) {
  Guard guard(lock);
  if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  if (used + size > kMemory) return Say(cudaErrorMemoryAllocation);
  ++allocations;
  void* p = std::aligned_alloc(256, (size + 511) / 256 * 256);
  std::memset(p, 0xff, size);  // not a number, in every float
  sizes[p] = size;
  used += size;
  *out = ToDevice(p);
  return cudaSuccess;
}
API cudaError_t cudaFree(void* p) {
  Guard guard(lock);
  if (p == nullptr) return cudaSuccess;
  if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  used -= sizes[ToHost(p)];
  sizes.erase(ToHost(p));
  std::free(ToHost(p));
  return cudaSuccess;
}
API cudaError_t cudaMallocHost(void** out, size_t size) {
  Guard guard(lock);
  if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  ++allocations;
  *out = std::aligned_alloc(256, (size + 511) / 256 * 256);
  return cudaSuccess;
}
API cudaError_t cudaFreeHost(void* p) { return std::free(p), cudaSuccess; }
API cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  return *total = kMemory, *left = kMemory - used, cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  Guard guard(lock);
  return Copy(to, from, size, Of(stream));
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  Guard guard(lock);
  return Copy(to, from, size, Of(stream));
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  Guard guard(lock);
  if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  Copy(to, from, size, &default_stream);
  WaitForDevice();
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  Guard guard(lock);
  return Enqueue(Of(stream), {2.0, [=] { std::memset(ToHost(to), value, size); }});
}
API cudaError_t cudaDeviceSynchronize() {
  Guard guard(lock);
  if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  WaitForDevice();
  return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  Guard guard(lock);
  auto* stream = new Stream;
  streams[stream] = true;
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Guard guard(lock);
  streams.erase(Of(stream));
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Guard guard(lock);
  if (Of(stream)->capturing || Of(stream) == &default_stream) {
    if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  }
  WaitForDevice();
  return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaStreamBeginCapture(cudaStream_t out, cudaStreamCaptureMode mode) {
  Guard guard(lock);
  Stream* stream = Of(out);
  if (stream == &default_stream || stream->capturing) return Say(cudaErrorStreamCaptureUnsupported);
  *stream = {true, false, mode, std::this_thread::get_id(), {}};
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t in, cudaGraph_t* out) {
  Guard guard(lock);
  Stream* stream = Of(in);
  stream->capturing = false;
  *out = nullptr;
  if (stream->spoilt) return Say(cudaErrorStreamCaptureInvalidated);
  *out = reinterpret_cast<cudaGraph_t>(new Graph{std::move(stream->ops), 0, 0});
  stream->ops.clear();
  ++captured_graphs;
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  Guard guard(lock);
  auto* made = new Graph(*reinterpret_cast<Graph*>(graph));
  // Work that was meant for the graph and went past it leaves nothing to replay.
  if (made->ops.empty()) return Say(cudaErrorInvalidValue);
  *out = reinterpret_cast<cudaGraphExec_t>(made);
  return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  Guard guard(lock);
  auto* graph = reinterpret_cast<Graph*>(exec);
  if (Of(stream)->capturing) {
    for (auto& op : graph->ops) Of(stream)->ops.push_back(op);
    return cudaSuccess;
  }
  if (graph->seen != data_version) graph->runs = 0;
  graph->seen = data_version;
  double us = 3.0;
  for (auto& op : graph->ops) {
    if (graph->runs < 2) Run(op.run);
    us += op.us - 1.0;
  }
  ++graph->runs;
  Take(us);
  return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete reinterpret_cast<Graph*>(graph), cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return delete reinterpret_cast<Graph*>(graph), cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  return *out = reinterpret_cast<cudaEvent_t>(new Event), cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete reinterpret_cast<Event*>(event), cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  Guard guard(lock);
  reinterpret_cast<Event*>(event)->at = std::max(busy_until, Now());
  return cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Guard guard(lock);
  if (!Allowed()) return Say(cudaErrorStreamCaptureUnsupported);
  while (Now() < reinterpret_cast<Event*>(event)->at) std::this_thread::sleep_for(std::chrono::microseconds(5));
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = (reinterpret_cast<Event*>(end)->at - reinterpret_cast<Event*>(begin)->at) / 1000;
  return cudaSuccess;
}

// For tests: graphs captured and pieces of memory allocated so far in this process.
API int pretended_graphs() { return captured_graphs; }
API int pretended_allocations() { return allocations; }
