// Matrix products on NVIDIA devices by cuBLASLt, with what follows them as epilogues.
//
// The plan is a list of products over row-major operands. cuBLAS counts columns first, so
// D[m,n] = A[m,k] B[k,n] is computed as its transpose: B and A change places, and a bias along n
// is a bias along cuBLAS's rows. Descriptors are made once; of the algorithms that the library
// proposes several are timed, and the choice is serialised with the plan.
#include <cublasLt.h>

#include <array>
#include <sstream>

#include "collage_cuda.h"

namespace collage {
namespace {

constexpr size_t kWorkspace = 32u << 20;
constexpr int kProposals = 16;

void CheckLt(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    TVM_FFI_THROW(RuntimeError) << what << ": " << cublasLtGetStatusString(status);
  }
}

cudaDataType_t DataType(const std::string& dtype) {
  static const std::map<std::string, cudaDataType_t> known = {
      {"float32", CUDA_R_32F}, {"float16", CUDA_R_16F}, {"bfloat16", CUDA_R_16BF}};
  return Named(known, dtype, "cuBLASLt takes no");
}

cublasComputeType_t ComputeType(const std::string& name) {
  static const std::map<std::string, cublasComputeType_t> known = {
      {"float32", CUBLAS_COMPUTE_32F},
      {"tf32", CUBLAS_COMPUTE_32F_FAST_TF32},
      {"fast float16", CUBLAS_COMPUTE_32F_FAST_16F},
      {"fast bfloat16", CUBLAS_COMPUTE_32F_FAST_16BF}};
  return Named(known, name, "no compute type");
}

// The process's handle; it lives as long as the process.
cublasLtHandle_t Handle() {
  static cublasLtHandle_t handle = [] {
    cublasLtHandle_t made = nullptr;
    CheckLt(cublasLtCreate(&made), "starting cuBLASLt");
    return made;
  }();
  return handle;
}

std::string ToText(const cublasLtMatmulAlgo_t& algorithm) {
  std::ostringstream text;
  for (uint64_t word : algorithm.data) text << word << ' ';
  return text.str();
}

std::optional<cublasLtMatmulAlgo_t> FromText(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  std::istringstream words(text);
  for (uint64_t& word : algorithm.data) words >> word;
  return words ? std::make_optional(algorithm) : std::nullopt;
}

// One product; all descriptors are made in the constructor, which needs no device.
class Product {
 public:
  static constexpr const char* kChoice = "algorithm";
  static std::unique_ptr<Product> Make(const json::Object& about) {
    return std::make_unique<Product>(about);
  }
  static std::string Library() { return "cublasLt " + std::to_string(cublasLtGetVersion()); }

  explicit Product(const json::Object& about)
      : a_(Get<json::Object>(about, "a")),
        b_(Get<json::Object>(about, "b")),
        d_(Get<json::Object>(about, "d")),
        c_(Operand::Of(about, "c")),
        bias_(Operand::Of(about, "bias")) {
    name_ = GetString(about, "name");
    int64_t m = Get<int64_t>(about, "m"), n = Get<int64_t>(about, "n"), k = Get<int64_t>(about, "k");
    batch_ = static_cast<int32_t>(Get<int64_t>(about, "batch"));
    bool transpose_a = Get<bool>(about, "transpose_a"), transpose_b = Get<bool>(about, "transpose_b");
    cudaDataType_t kind = DataType(GetString(about, "dtype"));

    CheckLt(cublasLtMatmulDescCreate(&operation_, ComputeType(GetString(about, "compute")), CUDA_R_32F),
            "describing a product");
    // First for cuBLAS is B, read as columns; a row-major [k,n] is a column-major [n,k].
    Set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    first_ = Layout(kind, transpose_b ? k : n, transpose_b ? n : k, about, "stride_b");
    second_ = Layout(kind, transpose_a ? m : k, transpose_a ? k : m, about, "stride_a");
    result_ = Layout(kind, n, m, about, "stride_d");
    if (c_) added_ = Layout(kind, n, m, about, "stride_c");
    const std::string function = GetString(about, "epilogue");
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (function == "relu") {
      epilogue = bias_ ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    } else if (function == "gelu") {
      epilogue = bias_ ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    } else if (bias_) {
      epilogue = CUBLASLT_EPILOGUE_BIAS;
    }
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias_) Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind);
    if (Has(about, "algorithm")) algorithm_ = FromText(GetString(about, "algorithm"));
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (cublasLtMatrixLayout_t layout : {first_, second_, result_, added_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }

  struct Pointers {
    void *a, *b, *c, *d, *bias;
  };

  size_t MakeReady() const { return kWorkspace; }

  void Launch(const Memory& memory, void* workspace, cudaStream_t stream) {
    Enqueue(Resolve(memory), *algorithm_, workspace, stream);
  }

  // Times what the library proposes, unless the choice came with the plan.
  void Choose(const Memory& memory, void* workspace, cudaStream_t stream) {
    Decide(Resolve(memory), workspace, stream);
    Launch(memory, workspace, stream);  // the steps after it shall see real data
  }

  json::Object Describe() const {
    json::Object out;
    out.Set(ffi::String("what"), ffi::String("matmul"));
    out.Set(ffi::String("name"), ffi::String(name_));
    if (algorithm_) {
      int32_t id = 0;
      size_t written = 0;
      cublasLtMatmulAlgoConfigGetAttribute(&*algorithm_, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id,
                                           &written);
      out.Set(ffi::String("algorithm"), static_cast<int64_t>(id));
    }
    return out;
  }
  std::optional<std::string> choice() const {
    if (!algorithm_) return std::nullopt;
    return ToText(*algorithm_);
  }

 private:
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    CheckLt(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value),
            "describing a product");
  }

  // A column-major matrix whose columns touch; a stride of 0 repeats it for the whole batch.
  cublasLtMatrixLayout_t Layout(cudaDataType_t type, int64_t rows, int64_t columns,
                                const json::Object& about, const char* stride_key) {
    cublasLtMatrixLayout_t layout = nullptr;
    CheckLt(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(columns), rows),
            "describing a matrix");
    if (batch_ > 1) {
      int64_t stride = Get<int64_t>(about, stride_key);
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch_,
                                       sizeof batch_);
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                       sizeof stride);
    }
    return layout;
  }

  Pointers Resolve(const Memory& memory) const {
    void* d = memory.At(d_);
    return {memory.At(a_), memory.At(b_), c_ ? memory.At(*c_) : d, d,
            bias_ ? memory.At(*bias_) : nullptr};
  }

  void Decide(const Pointers& p, void* workspace, cudaStream_t stream) {
    BindBias(p);
    if (algorithm_) {
      cublasLtMatmulHeuristicResult_t checked{};
      if (cublasLtMatmulAlgoCheck(Handle(), operation_, first_, second_, c_ ? added_ : result_,
                                  result_, &*algorithm_, &checked) == CUBLAS_STATUS_SUCCESS &&
          checked.workspaceSize <= kWorkspace) {
        return;  // chosen on such a device, by this library
      }
      algorithm_.reset();
    }
    cublasLtMatmulPreference_t preference = nullptr;
    CheckLt(cublasLtMatmulPreferenceCreate(&preference), "asking for algorithms");
    size_t most = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                         sizeof most);
    std::array<cublasLtMatmulHeuristicResult_t, kProposals> found{};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        Handle(), operation_, first_, second_, c_ ? added_ : result_, result_, preference, kProposals,
        found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    CheckLt(status, "asking for algorithms");
    auto usable = std::remove_if(found.begin(), found.begin() + count, [](const auto& each) {
      return each.state != CUBLAS_STATUS_SUCCESS || each.workspaceSize > kWorkspace;
    });
    int fastest = Fastest(stream, static_cast<int>(usable - found.begin()),
                          [&](int i) { Enqueue(p, found[i].algo, workspace, stream); });
    if (fastest < 0) TVM_FFI_THROW(RuntimeError) << name_ << ": cuBLASLt has no algorithm for it";
    algorithm_ = found[fastest].algo;
  }

  void BindBias(const Pointers& p) {
    if (bias_ && p.bias != bound_bias_) {
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
      bound_bias_ = p.bias;
    }
  }

  void Enqueue(const Pointers& p, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
               cudaStream_t stream) {
    BindBias(p);
    const float one = 1, beta = c_ ? 1 : 0;
    CheckLt(cublasLtMatmul(Handle(), operation_, &one, p.b, first_, p.a, second_, &beta, p.c,
                           c_ ? added_ : result_, p.d, result_, &algorithm, workspace, kWorkspace,
                           stream),
            name_.c_str());
  }

  std::string name_;
  int32_t batch_ = 1;
  Operand a_, b_, d_;
  std::optional<Operand> c_, bias_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr, added_ = nullptr;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
  void* bound_bias_ = nullptr;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::StepsModule<collage::Product>>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    return tvm::ffi::String(std::to_string(cublasLtGetVersion()));
  });
}
