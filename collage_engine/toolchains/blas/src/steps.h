// The steps of a plan: products, convolutions and copies, each with what follows it.
#ifndef COLLAGE_BLAS_STEPS_H_
#define COLLAGE_BLAS_STEPS_H_

#include <memory>

#include "blocks.h"
#include "columns.h"
#include "epilogue.h"

namespace collage {

// Below this many microseconds of work, waking the other threads takes longer than it saves.
inline constexpr double kWorthSharing = 30.0;

class Step {
 public:
  explicit Step(const json::Object& o)
      : name(Has(o, "name") ? GetString(o, "name") : GetString(o, "op")) {}
  virtual ~Step() = default;
  virtual void Run(const Bases& bases) const = 0;
  virtual void Describe(json::Object* out) const = 0;

  std::string name;
  int threads = 1;

 protected:
  // Microseconds on one thread, roughly: 100 GFLOP/s, 0.2 ns an element moved.
  void Share(int most, double flops, double elements) {
    threads = flops / 100e3 + elements * 0.2e-3 >= kWorthSharing ? most : 1;
  }
};

inline void Put(json::Object* out, const char* key, const std::string& value) {
  out->Set(ffi::String(key), ffi::String(value));
}
inline void Put(json::Object* out, const char* key, int64_t value) {
  out->Set(ffi::String(key), value);
}

class ProductStep : public Step {
 public:
  ProductStep(const json::Object& o, int most) : Step(o) {
    batch_ = GetInts(o, "batch");
    m_ = Get<int64_t>(o, "m");
    n_ = Get<int64_t>(o, "n");
    k_ = Get<int64_t>(o, "k");
    Parse(o, "a", &a_);
    Parse(o, "b", &b_);
    Parse(o, "c", &c_);
    post_ = Epilogue::Parse(o, batch_);
    blocks_ = ChooseBlocks(m_, n_, k_, m_ > n_, false, !post_.empty());
    double all = static_cast<double>(c_.offsets.size()) * m_ * n_;
    Share(most, 2.0 * all * k_, all);
  }

  void Run(const Bases& bases) const final {
    if (m_ == 1 || n_ == 1) return RunVector(bases);
    auto gather = [](int64_t, int64_t, int64_t, int64_t) { return Matrix{nullptr, 0, false}; };
    SharePieces(blocks_, m_, n_, Batches(), threads,
                [&](int64_t i, int64_t begin, int64_t size, int64_t from, int64_t to) {
                  Matrix a = At(bases, a_, i), b = At(bases, b_, i);
                  float* c = bases.At(c_.place) + c_.offsets[i];
                  OuterPiece(blocks_, a, b, c, c_.ld, k_, begin, size, from, to, gather,
                             [&](int64_t r, int64_t q, int64_t rows, int64_t columns) {
                               post_.Apply(bases, c + r * c_.ld + q, c_.ld, rows, columns, i, r, q);
                             });
                });
  }

  void Describe(json::Object* out) const final {
    bool vector = m_ == 1 || n_ == 1;
    Put(out, "what", vector ? "sgemv" : "sgemm");
    Put(out, "fused", post_.Names());
    Put(out, "size", std::to_string(Batches()) + " x " + std::to_string(m_) + "x" +
                         std::to_string(n_) + "x" + std::to_string(k_));
    Put(out, "transposed", std::string(a_.transposed ? "a" : "") + (b_.transposed ? "b" : ""));
    if (!vector) {
      Put(out, "pieces", std::to_string(blocks_.m) + "x" + std::to_string(blocks_.n) + "x" +
                             std::to_string(blocks_.k));
    }
  }

 private:
  struct Operand {
    Place place;
    std::vector<int64_t> offsets;
    int64_t ld = 0;
    bool transposed = false;
  };

  void Parse(const json::Object& o, const char* key, Operand* out) {
    auto view = Get<json::Object>(o, key);
    out->place = ParsePlace(view);
    out->offsets = BatchOffsets(batch_, GetInts(view, "batch"));
    out->ld = Get<int64_t>(view, "ld");
    out->transposed = GetInt(view, "transposed", 0) != 0;
  }

  static Matrix At(const Bases& bases, const Operand& o, int64_t batch) {
    return {bases.At(o.place) + o.offsets[batch], o.ld, o.transposed};
  }

  int64_t Batches() const { return static_cast<int64_t>(c_.offsets.size()); }

  // One row or one column; its parts are shared among threads.
  void RunVector(const Bases& bases) const {
    int64_t extent = std::max(m_, n_);
    int64_t part = threads == 1 ? extent : std::max<int64_t>(64, CeilDiv(extent, threads));
    int64_t parts = CeilDiv(extent, part);
    Pool::Get().Run(Batches() * parts, threads, [&](int64_t job) {
      int64_t i = job / parts, begin = job % parts * part, size = std::min(part, extent - begin);
      Matrix a = At(bases, a_, i), b = At(bases, b_, i);
      float* c = bases.At(c_.place) + c_.offsets[i];
      if (m_ == 1) {
        // Row times matrix: the matrix, seen the other way round, times the row.
        MultiplyVector(!b.transposed, b.transposed ? size : k_, b.transposed ? k_ : size,
                       b.At(0, begin), b.ld, a.data, a.transposed ? a.ld : 1, 0.0f, c + begin, 1);
        post_.Apply(bases, c + begin, c_.ld, 1, size, i, 0, begin);
      } else {
        MultiplyVector(a.transposed, a.transposed ? k_ : size, a.transposed ? size : k_,
                       a.At(begin, 0), a.ld, b.data, b.transposed ? 1 : b.ld, 0.0f,
                       c + begin * c_.ld, c_.ld);
        post_.Apply(bases, c + begin * c_.ld, c_.ld, size, 1, i, begin, 0);
      }
    });
  }

  std::vector<int64_t> batch_;
  int64_t m_, n_, k_;
  Operand a_, b_, c_;
  Epilogue post_;
  Blocks blocks_;
};

class ConvolutionStep : public Step {
 public:
  ConvolutionStep(const json::Object& o, int most) : Step(o) {
    images_ = Get<int64_t>(o, "images");
    groups_ = Get<int64_t>(o, "groups");
    filters_ = Get<int64_t>(o, "filters");
    last_ = GetInt(o, "channels_last", 0) != 0;
    out_h_ = Get<int64_t>(o, "out_h");
    w_.channels = Get<int64_t>(o, "channels");
    w_.all_channels = w_.channels * groups_;
    w_.height = Get<int64_t>(o, "h");
    w_.width = Get<int64_t>(o, "w");
    w_.out_width = Get<int64_t>(o, "out_w");
    w_.kernel_h = Get<int64_t>(o, "kernel_h");
    w_.kernel_w = Get<int64_t>(o, "kernel_w");
    w_.stride_h = Get<int64_t>(o, "stride_h");
    w_.stride_w = Get<int64_t>(o, "stride_w");
    w_.dilation_h = Get<int64_t>(o, "dilation_h");
    w_.dilation_w = Get<int64_t>(o, "dilation_w");
    w_.pad_h = Get<int64_t>(o, "pad_h");
    w_.pad_w = Get<int64_t>(o, "pad_w");
    x_ = ParsePlace(Get<json::Object>(o, "x"));
    weights_ = ParsePlace(Get<json::Object>(o, "weights"));
    y_ = ParsePlace(Get<json::Object>(o, "y"));
    post_ = Epilogue::Parse(o, {images_});
    pixels_ = out_h_ * w_.out_width;
    int64_t m = last_ ? pixels_ : filters_, n = last_ ? filters_ : pixels_;
    blocks_ = ChooseBlocks(m, n, w_.depth(), last_, !w_.direct(), !post_.empty());
    double all = static_cast<double>(images_ * groups_ * filters_) * pixels_;
    Share(most, 2.0 * all * w_.depth(), all);
  }

  void Run(const Bases& bases) const final {
    const float* x = bases.At(x_);
    const float* weights = bases.At(weights_);
    float* y = bases.At(y_);
    int64_t depth = w_.depth(), image = w_.all_channels * w_.height * w_.width;
    int64_t all_filters = filters_ * groups_;
    int64_t m = last_ ? pixels_ : filters_, n = last_ ? filters_ : pixels_;
    SharePieces(blocks_, m, n, images_ * groups_, threads,
                [&](int64_t job, int64_t begin, int64_t size, int64_t from, int64_t to) {
      int64_t group = job % groups_, i = job / groups_;
      int64_t first = group * filters_;
      if (last_) {
        const float* data = x + i * image + group * w_.channels;
        float* c = y + i * pixels_ * all_filters + first;
        Matrix a{data, w_.all_channels, false};
        Matrix b{weights + group * depth * filters_, filters_, false};
        OuterPiece(blocks_, a, b, c, all_filters, depth, begin, size, from, to,
                   [&](int64_t p, int64_t ps, int64_t k0, int64_t ks) {
                     if (w_.direct()) return Matrix{nullptr, 0, false};
                     float* gathered = Scratch(static_cast<size_t>(ps * ks));
                     GatherRows(w_, data, k0, ks, p, ps, gathered);
                     return Matrix{gathered, ks, false};
                   },
                   [&](int64_t r, int64_t q, int64_t rows, int64_t columns) {
                     post_.Apply(bases, c + r * all_filters + q, all_filters, rows, columns, i, r,
                                 first + q);
                   });
      } else {
        const float* data = x + i * image + group * w_.channels * w_.height * w_.width;
        float* c = y + (i * all_filters + first) * pixels_;
        Matrix a{weights + first * depth, depth, false};
        Matrix b{data, pixels_, false};
        OuterPiece(blocks_, a, b, c, pixels_, depth, begin, size, from, to,
                   [&](int64_t p, int64_t ps, int64_t k0, int64_t ks) {
                     if (w_.direct()) return Matrix{nullptr, 0, false};
                     float* gathered = Scratch(static_cast<size_t>(ps * ks));
                     GatherColumns(w_, data, k0, ks, p, ps, gathered);
                     return Matrix{gathered, ps, false};
                   },
                   [&](int64_t r, int64_t q, int64_t rows, int64_t columns) {
                     post_.Apply(bases, c + r * pixels_ + q, pixels_, rows, columns, i, first + r,
                                 q);
                   });
      }
    });
  }

  void Describe(json::Object* out) const final {
    Put(out, "what", w_.direct() ? "sgemm convolution" : "sgemm convolution, columns gathered");
    Put(out, "fused", post_.Names());
    Put(out, "size", std::to_string(images_ * groups_) + " x " + std::to_string(filters_) + "x" +
                         std::to_string(pixels_) + "x" + std::to_string(w_.depth()));
    Put(out, "layout", last_ ? "channels last" : "channels first");
    Put(out, "pieces", std::to_string(blocks_.m) + "x" + std::to_string(blocks_.n) + "x" +
                           std::to_string(blocks_.k));
  }

 private:
  int64_t images_, groups_, filters_, out_h_, pixels_;
  bool last_;
  Window w_;
  Place x_, weights_, y_;
  Epilogue post_;
  Blocks blocks_;
};

// y = f(x) element by element, x read with any strides, y without gaps.
class CopyStep : public Step {
 public:
  CopyStep(const json::Object& o, int most) : Step(o) {
    dims_ = GetInts(o, "dims");
    auto view = Get<json::Object>(o, "x");
    x_ = ParsePlace(view);
    strides_ = GetInts(view, "strides");
    y_ = ParsePlace(Get<json::Object>(o, "y"));
    columns_ = dims_.back();
    step_ = strides_.back();
    std::vector<int64_t> batch(dims_.begin(), dims_.end() - 1);
    strides_.pop_back();
    offsets_ = BatchOffsets(batch, strides_);
    post_ = Epilogue::Parse(o, batch);
    Share(most, 0, static_cast<double>(offsets_.size()) * columns_);
  }

  void Run(const Bases& bases) const final {
    const float* x = bases.At(x_);
    float* y = bases.At(y_);
    auto rows = static_cast<int64_t>(offsets_.size());
    // A part of a row that stays in the first-level cache while functions follow each other.
    int64_t part = std::min<int64_t>(columns_, 4096), parts = CeilDiv(columns_, part);
    int64_t at_once = std::max<int64_t>(1, 16384 / part);
    int64_t all = rows * parts;
    Pool::Get().Run(CeilDiv(all, at_once), threads, [&](int64_t job) {
      for (int64_t at = job * at_once; at < std::min(all, (job + 1) * at_once); ++at) {
        int64_t r = at / parts, q = at % parts * part, size = std::min(part, columns_ - q);
        const float* from = x + offsets_[r] + q * step_;
        float* to = y + r * columns_ + q;
        if (step_ == 1) {
          if (to != from) std::memcpy(to, from, sizeof(float) * static_cast<size_t>(size));
        } else {
          for (int64_t i = 0; i < size; ++i) to[i] = from[i * step_];
        }
        post_.Apply(bases, to, 0, 1, size, r, 0, q);
      }
    });
  }

  void Describe(json::Object* out) const final {
    Put(out, "what", post_.empty() ? "copy" : "elementwise");
    Put(out, "fused", post_.Names());
    Put(out, "size", std::to_string(offsets_.size()) + "x" + std::to_string(columns_));
  }

 private:
  std::vector<int64_t> dims_, strides_, offsets_;
  int64_t columns_, step_;
  Place x_, y_;
  Epilogue post_;
};

inline std::unique_ptr<Step> MakeStep(const json::Object& o, int threads) {
  std::string op = GetString(o, "op");
  if (op == "product") return std::make_unique<ProductStep>(o, threads);
  if (op == "convolution") return std::make_unique<ConvolutionStep>(o, threads);
  if (op == "copy") return std::make_unique<CopyStep>(o, threads);
  TVM_FFI_THROW(ValueError) << "the plan has an unknown step \"" << op << "\"";
  TVM_FFI_UNREACHABLE();
}

}  // namespace collage

#endif  // COLLAGE_BLAS_STEPS_H_
