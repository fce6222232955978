// OpenBLAS as a runtime module: a batch of products of row-major matrices in one call.
//
// The library is what scipy-openblas32 ships, every symbol with the prefix scipy_. Its own threads stay off. A large
// product is shared among the threads of TVM's pool, which stand idle while TVM's kernels wait for it.
#include <cblas.h>
#include <collage_module.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace collage {
namespace {

// c (m×n) = a (m×k) · b (k×n) + beta·c, row major.
void Multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                     float beta, float* c, int64_t ldc) {
  scipy_cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
}

// Multiply-adds of the largest product that the library computes unpacked; 0 when it packs always.
double SmallProduct() {
  // The unpacked kernels of sgemm exist for AVX-512 only, up to 100·100·100.
  static const double most = [] {
    const std::string core = scipy_openblas_get_corename();
    return core == "SkylakeX" || core == "Cooperlake" || core == "SapphireRapids" ? 1e6 : 0.0;
  }();
  return most;
}

// Called once, when the first module is made: one thread of the library's own.
void StartLibrary() { scipy_openblas_set_num_threads(1); }

// A piece of about `most`, so that equal pieces fill `extent`; a multiple of 16 when it is cut.
int64_t EvenPiece(int64_t extent, int64_t most) {
  if (extent <= most) return extent;
  const int64_t count = (extent + most - 1) / most, piece = (extent + count - 1) / count;
  return std::min(extent, (piece + 15) / 16 * 16);
}

// c = a·b, in pieces where the library has kernels for small products that read their operands unpacked
// (OpenBLAS with AVX-512): such pieces are faster than one large product, by 10 % on a whole ShuffleNet-v2, most of
// all where one extent is short and packing the other operand would cost as much as the product. Over 13 products
// of ResNet-50 and BERT these sizes are 5 % behind the best of nine choices for each, the others 4 to 7 % behind.
// `beta`: 1 where the product is added to what lies in c, else 0.
void MultiplyAll(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                        float beta, float* c, int64_t ldc) {
  const double small = SmallProduct();
  int64_t rows = m, columns = n, depth = k;
  if (small > 0 && static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) > small) {
    depth = EvenPiece(k, 192);
    int64_t& longer = m > n ? rows : columns;
    int64_t& shorter = m > n ? columns : rows;
    longer = EvenPiece(longer, 224);
    const auto fits = static_cast<int64_t>(small / static_cast<double>(depth * longer));
    shorter = std::min(shorter, std::clamp<int64_t>(fits / 16 * 16, 16, 128));
  }
  // The pieces of the longer extent are outside, so that a piece of the other operand is read again while it is hot.
  const int64_t outer = m > n ? m : n, outer_step = m > n ? rows : columns;
  const int64_t inner = m > n ? n : m, inner_step = m > n ? columns : rows;
  for (int64_t at = 0; at < outer; at += outer_step) {
    for (int64_t p = 0; p < k; p += depth) {
      for (int64_t in = 0; in < inner; in += inner_step) {
        const int64_t row = m > n ? at : in, column = m > n ? in : at;
        Multiply(std::min(rows, m - row), std::min(columns, n - column), std::min(depth, k - p), a + row * lda + p, lda,
                 b + p * ldb + column, ldb, p == 0 ? beta : 1.0f, c + row * ldc + column, ldc);
      }
    }
  }
}

// TVMParallelGroupEnv of tvm/runtime/c_backend_api.h.
struct ParallelGroup {
  void* sync;
  int32_t tasks;
};

// Runs body(share, shares) on the threads of TVM's pool, as many as it has of `most`; by the caller alone where
// there is no pool.
template <typename Body>
void Share(int most, const Body& body) {
  using Task = int (*)(int, ParallelGroup*, void*);
  using Launch = int (*)(Task, void*, int);
  static const auto launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "TVMBackendParallelLaunch"));
  const Task task = [](int share, ParallelGroup* group, void* data) {
    (*static_cast<const Body*>(data))(share, group->tasks);
    return 0;
  };
  static const auto count = ffi::Function::GetGlobal("runtime.NumThreads");
  if (most > 1 && launch != nullptr && count.has_value()) {
    // TVM refuses to start more tasks than its pool has threads, and an application may narrow the pool.
    const int tasks = std::min(most, (*count)().cast<int>());
    if (tasks > 1 && launch(task, const_cast<Body*>(&body), tasks) == 0) return;
  }
  body(0, 1);
}

class BlasModule : public PlanModule {
 public:
  BlasModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : PlanModule(symbol, plan_text), weights_(Allocate(weights.size)), weights_bytes_(weights.size) {
    json::Object plan = ParseObject(plan_text, "the plan");
    for (const auto* specs : {&inputs(), &outputs()}) {
      for (const TensorSpec& spec : *specs) {
        if (spec.dtype.code != kDLFloat || spec.dtype.bits != 32) {
          TVM_FFI_THROW(TypeError) << "the BLAS runtime takes float32 tensors only";
        }
      }
    }
    static const bool started = (StartLibrary(), true);
    (void)started;
    std::memcpy(weights_.get(), weights.data, weights.size);
    m_ = Get<int64_t>(plan, "m");
    n_ = Get<int64_t>(plan, "n");
    k_ = Get<int64_t>(plan, "k");
    Parse(plan, "a", &a_);
    Parse(plan, "b", &b_);
    if (Has(plan, "bias")) {
      bias_by_rows_ = Get<bool>(plan, "bias_by_rows");
      Parse(plan, "bias", &bias_.emplace());
    }
    // Below 30 µs of work, at some 100 GFLOP/s, waking other threads takes longer than it saves.
    constexpr double kWorthSharing = 3e6;
    const double operations = 2.0 * static_cast<double>(a_.batch.size()) * m_ * n_ * k_;
    threads_ = operations < kWorthSharing ? 1 : threads();
  }

 protected:
  void Execute() final {
    const float *a = Data(a_), *b = Data(b_);
    auto* c = static_cast<float*>(pointers()[inputs().size()]);
    const auto batches = static_cast<int64_t>(a_.batch.size());
    // A batch is shared by its products, a single product by its longer side, 16 rows or columns at least.
    const bool by_rows = m_ > n_;
    const int64_t extent = by_rows ? m_ : n_;
    const int64_t pieces = batches >= threads_ ? 1 : std::clamp<int64_t>(extent / 16, 1, threads_);
    const int64_t piece = (extent + pieces - 1) / pieces, jobs = batches * pieces;
    Share(static_cast<int>(std::min<int64_t>(threads_, jobs)), [&](int share, int shares) {
      for (int64_t job = jobs * share / shares; job < jobs * (share + 1) / shares; ++job) {
        const int64_t i = job / pieces, begin = job % pieces * piece, size = std::min(piece, extent - begin);
        if (size <= 0) continue;
        const int64_t row = by_rows ? begin : 0, column = by_rows ? 0 : begin;
        const int64_t rows = by_rows ? size : m_, columns = by_rows ? n_ : size;
        float* out = c + i * m_ * n_ + row * n_ + column;
        if (bias_) Fill(Data(*bias_) + bias_->batch[i] + (bias_by_rows_ ? row : column), rows, columns, out);
        MultiplyAll(rows, columns, k_, a + a_.batch[i] + row * k_, k_, b + b_.batch[i] + column, n_,
                    bias_ ? 1.0f : 0.0f, out, n_);
      }
    });
  }

  void Describe(json::Object* out) const final {
    const auto put = [&](const char* key, const std::string& value) { out->Set(ffi::String(key), ffi::String(value)); };
    put("what", "sgemm");
    put("size", std::to_string(a_.batch.size()) + " x " + std::to_string(m_) + "x" + std::to_string(n_) + "x" +
                    std::to_string(k_));
    out->Set(ffi::String("threads"), static_cast<int64_t>(threads_));
  }

  ffi::Bytes Weights() const final {
    return ffi::Bytes(weights_.get(), weights_bytes_);
  }

 private:
  struct Operand {
    int64_t input = -1;  // −1: the weights
    int64_t offset = 0;
    std::vector<int64_t> batch;  // where its matrices begin
  };

  static void Parse(const json::Object& plan, const char* key, Operand* out) {
    auto about = Get<json::Object>(plan, key);
    out->input = Get<int64_t>(about, "input");
    out->offset = Get<int64_t>(about, "offset");
    out->batch = GetInts(about, "batch");
  }

  // Write the bias to a piece of the result, to which the product is then added.
  void Fill(const float* bias, int64_t rows, int64_t columns, float* out) const {
    for (int64_t r = 0; r < rows; ++r, out += n_) {
      if (bias_by_rows_) {
        std::fill_n(out, columns, bias[r]);
      } else {
        std::copy_n(bias, columns, out);
      }
    }
  }

  const float* Data(const Operand& operand) const {
    return operand.input < 0 ? reinterpret_cast<const float*>(weights_.get()) + operand.offset
                             : static_cast<const float*>(pointers()[static_cast<size_t>(operand.input)]);
  }

  Storage weights_;
  size_t weights_bytes_;
  int64_t m_ = 0, n_ = 0, k_ = 0;
  int threads_ = 1;
  Operand a_, b_;
  std::optional<Operand> bias_;
  bool bias_by_rows_ = false;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::BlasModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    collage::StartLibrary();
    float a = 2.0f, b = 3.0f, c = 0.0f;
    collage::Multiply(1, 1, 1, &a, 1, &b, 1, 0.0f, &c, 1);
    if (c != 6.0f) TVM_FFI_THROW(RuntimeError) << "the BLAS multiplies wrongly";
  });
}
