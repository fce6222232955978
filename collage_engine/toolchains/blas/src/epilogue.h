// What is applied to a result before it leaves the cache: functions, and other tensors.
#ifndef COLLAGE_BLAS_EPILOGUE_H_
#define COLLAGE_BLAS_EPILOGUE_H_

#include <collage_module.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "functions.h"

namespace collage {

// Where a tensor begins: an argument, the weights or the arena, and elements into it.
struct Place {
  enum Kind { kInput = 0, kOutput = 1, kWeights = 2, kArena = 3 };
  int kind = kArena;
  int index = 0;
  int64_t offset = 0;
};

struct Bases {
  const std::vector<void*>* arguments;
  size_t inputs;
  const float* weights;
  float* arena;

  float* At(const Place& p) const {
    switch (p.kind) {
      case Place::kInput: return static_cast<float*>((*arguments)[p.index]) + p.offset;
      case Place::kOutput: return static_cast<float*>((*arguments)[inputs + p.index]) + p.offset;
      case Place::kWeights: return const_cast<float*>(weights) + p.offset;
      default: return arena + p.offset;
    }
  }
};

inline Place ParsePlace(const json::Object& o) {
  return {static_cast<int>(Get<int64_t>(o, "kind")), static_cast<int>(GetInt(o, "index", 0)),
          GetInt(o, "offset", 0)};
}

// Offsets of a tensor for every index of the batch axes, the last one fastest.
inline std::vector<int64_t> BatchOffsets(const std::vector<int64_t>& dims,
                                         const std::vector<int64_t>& strides) {
  std::vector<int64_t> found{0};
  for (size_t d = 0; d < dims.size(); ++d) {
    std::vector<int64_t> next;
    next.reserve(found.size() * static_cast<size_t>(dims[d]));
    for (int64_t base : found) {
      for (int64_t i = 0; i < dims[d]; ++i) next.push_back(base + i * strides[d]);
    }
    found = std::move(next);
  }
  return found;
}

struct PostOp {
  using Unary = void (*)(float*, int64_t, float, float);
  using Binary = void (*)(float*, const float*, int64_t);
  std::string name;
  Unary unary = nullptr;
  Binary with_row = nullptr, with_one = nullptr;
  float a = 0, b = 0;
  Place place;
  std::vector<int64_t> batch;  // offset of each batch
  int64_t rows = 0, columns = 0;  // strides
};

class Epilogue {
 public:
  // `batch`: extents of the result's batch axes; strides of operands are batch, row, column.
  static Epilogue Parse(const json::Object& step, const std::vector<int64_t>& batch) {
    Epilogue out;
    if (!Has(step, "post")) return out;
    for (const ffi::Any& any : Get<json::Array>(step, "post")) {
      auto o = any.cast<json::Object>();
      PostOp op;
      op.name = GetString(o, "fn");
      op.a = static_cast<float>(Has(o, "a") ? Number(o, "a") : 0.0);
      op.b = static_cast<float>(Has(o, "b") ? Number(o, "b") : 0.0);
      if (Has(o, "place")) {
        op.place = ParsePlace(Get<json::Object>(o, "place"));
        std::vector<int64_t> strides = GetInts(o, "strides");
        if (strides.size() != batch.size() + 2) {
          TVM_FFI_THROW(ValueError) << op.name << ": strides do not fit the result";
        }
        op.columns = strides.back();
        op.rows = strides[strides.size() - 2];
        strides.resize(batch.size());
        op.batch = BatchOffsets(batch, strides);
        FindBinary(&op);
        out.ops_.push_back(op);
      } else if (op.name == "relu" && !out.ops_.empty() && out.ops_.back().name == "add") {
        PostOp& last = out.ops_.back();
        last.name = "add+relu";
        last.with_row = row::AddReluRow;
        last.with_one = row::AddReluOne;
      } else {
        FindUnary(&op);
        out.ops_.push_back(op);
      }
    }
    return out;
  }

  bool empty() const { return ops_.empty(); }

  std::string Names() const {
    std::string text;
    for (const PostOp& op : ops_) text += (text.empty() ? "" : "+") + op.name;
    return text;
  }

  // Apply to a tile at (row, column) of one batch's result; c points to the tile.
  void Apply(const Bases& bases, float* c, int64_t ld, int64_t rows, int64_t columns, size_t batch,
             int64_t row, int64_t column) const {
    if (ops_.empty()) return;
    for (int64_t r = 0; r < rows; ++r, c += ld) {
      for (const PostOp& op : ops_) {
        if (op.unary != nullptr) {
          op.unary(c, columns, op.a, op.b);
          continue;
        }
        const float* d = bases.At(op.place) + op.batch[batch] + (row + r) * op.rows +
                         column * op.columns;
        if (op.columns == 1) {
          op.with_row(c, d, columns);
        } else if (op.columns == 0) {
          op.with_one(c, d, columns);
        } else {
          for (int64_t i = 0; i < columns; ++i) op.with_one(c + i, d + i * op.columns, 1);
        }
      }
    }
  }

 private:
  static double Number(const json::Object& o, const char* key) {
    ffi::Any v = Field(o, key);
    if (auto whole = v.as<int64_t>()) return static_cast<double>(*whole);
    return v.cast<double>();
  }

  static void FindUnary(PostOp* op) {
    static const std::unordered_map<std::string, PostOp::Unary> table = {
        {"relu", row::Relu}, {"clip", row::Clip}, {"affine", row::Affine},
        {"reciprocal", row::Reciprocal}, {"leaky_relu", row::Leaky}, {"square", row::Square},
        {"cube", row::Cube}, {"sqrt", row::Root}, {"abs", row::Absolute}, {"exp", row::ExpRow},
        {"sigmoid", row::SigmoidRow}, {"tanh", row::TanhRow}, {"erf", row::ErfRow},
        {"gelu_erf", row::GeluErf}, {"gelu_tanh", row::GeluTanh}, {"silu", row::Silu},
        {"hardsigmoid", row::HardSigmoid}, {"hardswish", row::HardSwish}};
    auto it = table.find(op->name);
    if (it == table.end()) TVM_FFI_THROW(ValueError) << "no function \"" << op->name << "\"";
    op->unary = it->second;
  }

  static void FindBinary(PostOp* op) {
    struct Pair {
      PostOp::Binary with_row, with_one;
    };
    static const std::unordered_map<std::string, Pair> table = {
        {"add", {row::AddRow, row::AddOne}},
        {"subtract", {row::SubtractRow, row::SubtractOne}},
        {"subtract_from", {row::SubtractFromRow, row::SubtractFromOne}},
        {"multiply", {row::MultiplyRow, row::MultiplyOne}},
        {"divide", {row::DivideRow, row::DivideOne}},
        {"divide_into", {row::DivideIntoRow, row::DivideIntoOne}},
        {"maximum", {row::MaximumRow, row::MaximumOne}},
        {"minimum", {row::MinimumRow, row::MinimumOne}}};
    auto it = table.find(op->name);
    if (it == table.end()) TVM_FFI_THROW(ValueError) << "no function \"" << op->name << "\"";
    op->with_row = it->second.with_row;
    op->with_one = it->second.with_one;
  }

  std::vector<PostOp> ops_;
};

}  // namespace collage

#endif  // COLLAGE_BLAS_EPILOGUE_H_
