// From plan values to a program: layouts, reorders, in-place writes, post-op fusion.
//
// Values are views into buffers. Each operator asks the library which layout it prefers and gets
// its operands in it; a reorder is made once per value and layout and shared. Weights are packed
// while the program is built.
#ifndef COLLAGE_ONEDNN_COMPILER_H_
#define COLLAGE_ONEDNN_COMPILER_H_

#include <functional>
#include <unordered_map>

#include "plan_step.h"
#include "program.h"

namespace collage {

// Element types of a product's operands and of its result.
struct ProductTypes {
  Type src, weights, dst;
};

// What a primitive reads, by the names of its arguments.
using Used = std::vector<std::pair<int, View>>;
// Operands that do not depend on the chosen descriptor.
inline auto Reading(Used used) {
  return [used = std::move(used)](const PrimitiveDesc&) { return used; };
}

class Compiler {
 public:
  Compiler(Program& program, const char* weights, bool bfloat16)
      : program_(program),
        stream_(Engine()),
        weights_(weights),
        bfloat16_(bfloat16),
        constants_(program, stream_) {}

  // ---- values -------------------------------------------------------------------------------

  void DefineInput(int64_t id, const Dims& dims, Type type, int argument) {
    int buffer = program_.NewArgument(argument, Elements(dims) * ItemBytes(type));
    values_[id] = {dims, PlainDesc(dims, type), buffer, 0};
  }

  void DefineConstant(int64_t id, const Dims& dims, size_t offset) {
    int buffer = program_.NewBuffer(Buffer::kConstant, Elements(dims) * sizeof(float));
    program_.buffer(buffer).data = const_cast<char*>(weights_ + offset);
    values_[id] = {dims, PlainDesc(dims), buffer, 0};
    constants_.Add(buffer);
  }

  void Define(int64_t id, View view) { values_[id] = std::move(view); }

  const View& Value(int64_t id) const {
    auto it = values_.find(id);
    if (it == values_.end()) TVM_FFI_THROW(ValueError) << "the plan reads an undefined value";
    return it->second;
  }

  // Whether the plan holds one spatial operator only, whose border is the caller's.
  void SetAlone(bool alone) { alone_ = alone; }
  bool alone() const { return alone_; }

  // Whether a step may write its result over the operand of its post-op.
  bool Dead(const PostOp& op) const {
    const View& view = Value(op.value);
    return op.last && view.offset == 0 && program_.buffer(view.buffer).kind == Buffer::kArena &&
           program_.buffer(view.buffer).bytes == view.desc.get_size();
  }

  View NewView(const Desc& desc) {
    return {desc.get_dims(), desc, program_.NewBuffer(Buffer::kArena, desc.get_size()), 0};
  }

  bool IsConstant(const View& view) const {
    return program_.buffer(view.buffer).kind == Buffer::kConstant;
  }

  // The value in another layout: itself, a copy made before, or a new reorder.
  View Use(const View& view, const Desc& wanted) {
    if (SameLayout(view.desc, wanted)) return view;
    for (const Copy& copy : copies_) {
      if (copy.buffer == view.buffer && copy.offset == view.offset &&
          SameLayout(copy.from, view.desc) && SameLayout(copy.to.desc, wanted)) {
        return copy.to;
      }
    }
    View to = IsConstant(view) ? constants_.Pack(view, wanted) : Reorder(view, wanted);
    copies_.push_back({view.buffer, view.offset, view.desc, to});
    return to;
  }

  // Row-major, or in any dense layout; the element type stays.
  View UsePlain(const View& view) { return Use(view, PlainDesc(view.dims, view.type())); }
  View UseDense(const View& view) { return view.dense() ? view : UsePlain(view); }
  // The same for operators that compute in float32.
  View UsePlainFloat(const View& view) { return Use(view, PlainDesc(view.dims)); }
  View UseDenseFloat(const View& view) {
    return view.dense() ? Use(view, Retyped(view.desc, kFloat)) : UsePlainFloat(view);
  }
  // Descs in which a product reads a value when it multiplies elements of a type.
  static Desc OperandAs(const View& view, Type type) {
    if (view.type() == type) return view.desc;
    return view.dense() ? Retyped(view.desc, type) : PlainDesc(view.dims, type);
  }

  View Reorder(const View& view, const Desc& wanted) {
    View to = NewView(wanted);
    ReorderTo(view, to);
    return to;
  }

  void ReorderTo(const View& from, const View& to) {
    dnnl::reorder::primitive_desc pd(Engine(), from.desc, Engine(), to.desc, Attributes());
    Emit("reorder", pd, {{&from, from.desc, DNNL_ARG_FROM}, {&to, to.desc, DNNL_ARG_TO}},
         from.desc, to.desc, "");
  }

  void Emit(const std::string& what, const dnnl::primitive_desc_base& pd, std::vector<Binding> bindings,
            const Desc& takes, const Desc& gives, const std::string& fused) {
    Step step;
    step.what = what;
    step.takes = LayoutName(takes);
    step.gives = LayoutName(gives);
    step.fused = fused;
    program_.Append(std::move(step), pd, std::move(bindings));
  }

  // ---- primitives with post-ops -----------------------------------------------------------------

  // Makes a primitive descriptor for a destination layout, or an empty one.
  using Make = std::function<PrimitiveDesc(const Desc& dst, const primitive_attr& attr)>;
  // The operands of the chosen descriptor; called once.
  using Operands = std::function<Used(const PrimitiveDesc& pd)>;

  // Emit `make`'s primitive with as many of the post-ops as it takes without falling back to the
  // library's reference code; the rest follow as primitives of their own. `dst` is explicit.
  // `sums`: whether it can add to what the result's memory holds; some primitives accept such a
  // post-op and ignore it (3.2: pooling).
  View Fused(const std::string& what, const Desc& dst, std::vector<PostOp> posts, const Make& make,
             const Operands& operands, bool sums = false) {
    const Dims dims = dst.get_dims();
    PrimitiveDesc bare = make(dst, Attributes());
    if (!bare) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of " << what;
    bool reference = IsReference(bare);
    for (size_t n = posts.size() + 1; n-- > 0;) {
      for (bool sum : {true, false}) {
        int summed = sum && sums ? Summable(posts, n, dims, dst) : -1;
        if (sum && summed < 0) continue;
        primitive_attr attr = Attributes();
        if (n > 0) attr.set_post_ops(Chain(posts, n, dims, dst, summed));
        PrimitiveDesc pd = n == 0 ? bare : make(dst, attr);
        if (!pd || (n > 0 && !reference && IsReference(pd))) continue;
        return Finish(what, dst, posts, n, summed, pd, operands);
      }
    }
    TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of " << what;
    TVM_FFI_UNREACHABLE();
  }

  // A post-op as a primitive of its own, with the rest fused into it.
  View Apply(const View& source, const std::vector<PostOp>& posts) {
    if (posts.empty()) return source;
    PostOp head = posts.front();
    std::vector<PostOp> rest(posts.begin() + 1, posts.end());
    if (head.eltwise) return Eltwise(source, head, rest);
    return Binary(head.alg, head.name, source, Value(head.value), rest);
  }

  View Eltwise(const View& given, const PostOp& op, const std::vector<PostOp>& rest) {
    View source = UseDense(given);
    auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
      return dnnl::eltwise_forward::primitive_desc(
          Engine(), kInference, op.alg, dst, dst, op.alpha, op.beta, attr,
          true);
    };
    return Fused(op.name, source.desc, rest, make, Reading({{DNNL_ARG_SRC, source}}));
  }

  View Binary(algorithm alg, const std::string& name, View a, View b,
              const std::vector<PostOp>& rest) {
    Dims dims = BroadcastDims(a.dims, b.dims);
    if (a.dims != dims && b.dims == dims && Commutes(alg)) std::swap(a, b);
    if (a.dims != dims) a = Expand(a, dims);
    a = UseDense(a);
    if (b.dims == dims) {
      b = UseDense(b);
      // Of two element types the wider one stays, unless the other operand is a constant.
      if (a.type() != b.type() && !IsConstant(b)) {
        a = UseDenseFloat(a);
        b = UseDenseFloat(b);
      }
      // The layout that is not row-major comes from a convolution and goes on to one.
      if (a.plain() && !b.plain() && !IsConstant(b)) {
        a = Use(a, b.desc);
      } else {
        b = Use(b, a.desc);
      }
    } else if (!b.plain()) {
      b = UsePlain(b);
    }
    auto describe = [&](const View& left, const View& right) {
      return [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
        return dnnl::binary::primitive_desc(Engine(), alg, left.desc, right.desc, dst, attr, true);
      };
    };
    if (b.dims != dims) {
      PrimitiveDesc pd = describe(a, b)(a.desc, Attributes());
      if ((!pd || IsReference(pd)) && !a.plain()) {
        a = UsePlain(a);
        pd = describe(a, b)(a.desc, Attributes());
      }
      // A broadcast that no kernel knows: write the operand out in full.
      if (!pd || IsReference(pd)) b = Use(Expand(b, dims), a.desc);
    }
    return Fused(name, a.desc, rest, describe(a, b),
                 Reading({{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}}));
  }

  // The value written out over broadcast axes.
  View Expand(const View& source, const Dims& dims) {
    if (source.dims == dims) return source;
    View zeros = constants_.Zeros(dims);
    View plain = UsePlainFloat(source);
    dnnl::binary::primitive_desc pd(Engine(), algorithm::binary_add, zeros.desc, plain.desc,
                                    zeros.desc, Attributes());
    View to = NewView(zeros.desc);
    Emit("broadcast", pd,
         {{&zeros, zeros.desc, DNNL_ARG_SRC_0},
          {&plain, plain.desc, DNNL_ARG_SRC_1},
          {&to, to.desc, DNNL_ARG_DST}},
         plain.desc, to.desc, "");
    return to;
  }

  static Dims BroadcastDims(const Dims& a, const Dims& b) {
    Dims dims(a.size());
    for (size_t d = 0; d < a.size(); ++d) dims[d] = std::max(a[d], b[d]);
    return dims;
  }

  static primitive_attr Attributes() {
    primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attr;
  }

  // Element types to multiply in, the preferred ones first: rounded to bfloat16 if the plan asks for
  // that (and not, for this product, for `full` precision) and there is a kernel, else float32.
  std::vector<ProductTypes> TypesOf(Type dst, bool full) const {
    std::vector<ProductTypes> found = {{kFloat, kFloat, kFloat}};
    if (bfloat16_ && !full) found.insert(found.begin(), {kBrain, kBrain, dst});
    return found;
  }

  Constants& constants() { return constants_; }
  dnnl::stream& stream() { return stream_; }

 private:
  struct Copy {
    int buffer;
    int64_t offset;
    Desc from;
    View to;
  };
  // Which of the first n post-ops can add in place to memory that nobody needs afterwards.
  int Summable(const std::vector<PostOp>& posts, size_t n, const Dims& dims, const Desc& dst) const {
    for (size_t k = 0; k < n; ++k) {
      const PostOp& op = posts[k];
      if (op.eltwise || op.alg != algorithm::binary_add) continue;
      const View& other = Value(op.value);
      if (other.dims != dims) continue;
      // The library adds what lies in the result's memory, which has the result's size.
      if (other.type() != dst.get_data_type()) return -1;
      if (IsConstant(other) || Readers(posts, other.buffer) > 1) return -1;
      // A residual in another layout is copied first, and the copy is ours to overwrite.
      if (!SameLayout(other.desc, dst) || Dead(op)) return static_cast<int>(k);
      return -1;
    }
    return -1;
  }

  // How many post-ops read a buffer.
  int Readers(const std::vector<PostOp>& posts, int buffer) const {
    int count = 0;
    for (const PostOp& op : posts) count += !op.eltwise && Value(op.value).buffer == buffer;
    return count;
  }

  // Desc under which a post-op reads its operand.
  Desc OperandDesc(const View& other, const Dims& dims, const Desc& dst) const {
    if (other.dims == dims) return IsStrided(dst) ? Retyped(dst, other.type()) : dst;
    return other.plain() ? other.desc : PlainDesc(other.dims, other.type());
  }

  dnnl::post_ops Chain(const std::vector<PostOp>& posts, size_t n, const Dims& dims,
                       const Desc& dst, int summed) const {
    dnnl::post_ops chain;
    for (size_t k = 0; k < n; ++k) {
      const PostOp& op = posts[k];
      if (op.eltwise) {
        chain.append_eltwise(op.alg, op.alpha, op.beta);
      } else if (static_cast<int>(k) == summed) {
        chain.append_sum();
      } else {
        chain.append_binary(op.alg, OperandDesc(Value(op.value), dims, dst));
      }
    }
    return chain;
  }

  View Finish(const std::string& what, const Desc& dst, const std::vector<PostOp>& posts, size_t n,
              int summed, const PrimitiveDesc& pd, const Operands& operands) {
    Used used = operands(pd);
    std::string fused;
    std::optional<View> to;
    for (size_t k = 0; k < n; ++k) {
      const PostOp& op = posts[k];
      fused += (fused.empty() ? "" : "+") + op.name;
      if (op.eltwise) continue;
      const View& other = Value(op.value);
      if (static_cast<int>(k) == summed) {
        to = SumTarget(other, dst, used);
        fused += "(in place)";
        continue;
      }
      View operand = Use(other, OperandDesc(other, dst.get_dims(), dst));
      int position = DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(k));
      used.push_back({position | DNNL_ARG_SRC_1, operand});
    }
    if (to) {
      Forget(to->buffer);
    } else {
      to = NewView(dst);
    }
    std::vector<Binding> bindings;
    for (auto& [name, view] : used) bindings.push_back({&view, view.desc, name});
    bindings.push_back({&*to, dst, DNNL_ARG_DST});
    Emit(what, pd, bindings, used.empty() ? dst : used[0].second.desc, dst, fused);
    return Apply(*to, {posts.begin() + n, posts.end()});
  }

  // Memory that holds the residual and will hold the sum.
  View SumTarget(const View& other, const Desc& dst, const Used& used) {
    bool read = false;
    for (const auto& [name, view] : used) read |= view.buffer == other.buffer;
    if (SameLayout(other.desc, dst) && !read) return {other.dims, dst, other.buffer, 0};
    return Reorder(other, dst);
  }

  void Forget(int buffer) {
    auto stale = [&](const Copy& copy) { return copy.buffer == buffer || copy.to.buffer == buffer; };
    copies_.erase(std::remove_if(copies_.begin(), copies_.end(), stale), copies_.end());
  }

  Program& program_;
  dnnl::stream stream_;
  const char* weights_;
  bool bfloat16_;
  Constants constants_;
  std::unordered_map<int64_t, View> values_;
  bool alone_ = false;
  std::vector<Copy> copies_;
};

}  // namespace collage

#endif  // COLLAGE_ONEDNN_COMPILER_H_
