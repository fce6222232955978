// One function per plan operator.
#ifndef COLLAGE_ONEDNN_OPERATORS_H_
#define COLLAGE_ONEDNN_OPERATORS_H_

#include "compiler.h"

namespace collage {

inline constexpr auto kInference = dnnl::prop_kind::forward_inference;

// A plan step and what it reads from the plan.
struct Site {
  const json::Object& step;
  int64_t out;
  std::vector<PostOp> posts;

  Dims dims() const { return GetInts(step, "dims"); }
  Dims ints(const char* key) const { return GetInts(step, key); }
  int64_t id(const char* key) const { return GetInt(step, key, -1); }
  float number(const char* key, double otherwise) const {
    return static_cast<float>(Has(step, key) ? Get<double>(step, key) : otherwise);
  }
  std::string text(const char* key) const { return GetString(step, key); }
};

inline PostOp ParsePostOp(const json::Object& object) {
  PostOp op;
  op.eltwise = GetString(object, "kind") == "eltwise";
  op.name = GetString(object, "alg");
  op.alg = op.eltwise ? EltwiseAlgorithm(op.name) : BinaryAlgorithm(op.name);
  if (op.eltwise) {
    op.alpha = static_cast<float>(Get<double>(object, "alpha"));
    op.beta = static_cast<float>(Get<double>(object, "beta"));
  } else {
    op.value = Get<int64_t>(object, "value");
  }
  return op;
}

using LayoutOf = Desc (*)(const Dims&);
struct LayoutPair {
  LayoutOf src, dst;
};

// Channels in blocks of 16: what depthwise kernels like, and cheaper to reach from row-major
// than channels-last.
inline Desc BlockedDesc(const Dims& dims) {
  using tag = dnnl::memory::format_tag;
  static constexpr tag tags[] = {tag::nCw16c, tag::nChw16c, tag::nCdhw16c};
  return Desc(dims, kFloat, tags[dims.size() - 3]);
}

inline bool Wide() {
  static const bool wide = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core;
  return wide;
}

struct Convolution {
  Dims src, weights, dst, strides, begin, end;

  bool grouped() const { return weights.size() > src.size(); }
  bool depthwise() const { return grouped() && weights[1] == 1 && weights[2] == 1; }
  bool pointwise() const {
    bool unit = !grouped();
    for (size_t d = 2; unit && d < src.size(); ++d) {
      unit = weights[d] == 1 && strides[d - 2] == 1 && begin[d - 2] == 0 && end[d - 2] == 0;
    }
    return unit;
  }
};

// Layouts to offer a convolution, the expected best first. In a chain channels-last wins on
// AVX-512 (the library's own choice too), blocked channels below it. A convolution alone between
// row-major borders also pays for the way there and back; figures from a Sapphire Rapids core:
// 10 GB/s to channels-last, 190 GFLOP/s, and the plain kernels of 1×1 take 22 % longer.
inline std::vector<LayoutPair> ConvolutionLayouts(const Convolution& conv, bool alone,
                                                  int same_shape_operands) {
  std::vector<LayoutPair> chain = {{ChannelsLastDesc, ChannelsLastDesc}, {AnyDesc, AnyDesc}};
  if (!Wide()) std::swap(chain[0], chain[1]);
  chain.push_back({PlainDesc, PlainDesc});
  if (!alone || !Wide()) return chain;
  LayoutPair first = chain[0];
  int64_t space = Elements(conv.dst) / (conv.dst[0] * conv.dst[1]);
  if (conv.depthwise() && conv.src[1] % 16 == 0) {
    first = {BlockedDesc, BlockedDesc};
  } else if (!conv.grouped() && conv.src[1] <= 4) {
    first = {PlainDesc, AnyDesc};
  } else if (conv.pointwise() && space >= 64) {
    double bytes = sizeof(float) * static_cast<double>(
        Elements(conv.src) + (1 + same_shape_operands) * Elements(conv.dst));
    double flops = 2.0 * static_cast<double>(Elements(conv.dst)) * static_cast<double>(conv.src[1]);
    if (bytes / 10e9 > 0.22 * flops / 190e9) first = {PlainDesc, PlainDesc};
  }
  chain.insert(chain.begin(), first);
  return chain;
}

template <typename Forward>
View ConvolutionLike(Compiler& c, const Site& site, algorithm alg, const std::string& name) {
  View src = c.Value(site.id("src"));
  View weights = c.Value(site.id("weights"));
  std::optional<View> bias;
  if (site.id("bias") >= 0) bias = c.UsePlain(c.Value(site.id("bias")));
  Dims dims = site.dims(), dilation = site.ints("dilation");
  Convolution conv{src.dims, weights.dims, dims, site.ints("strides"), site.ints("pads_begin"),
                   site.ints("pads_end")};
  Desc any_weights = AnyDesc(weights.dims);
  Desc bias_desc = bias ? bias->desc : Desc();

  auto describe = [&](const Desc& from, const Desc& to,
                      const primitive_attr& attr) -> typename Forward::primitive_desc {
    if (bias) {
      return {Engine(),     kInference, alg,        from,     any_weights, bias_desc, to,
              conv.strides, dilation,   conv.begin, conv.end, attr,        true};
    }
    return {Engine(), kInference, alg,      from, any_weights, to, conv.strides,
            dilation, conv.begin, conv.end, attr, true};
  };

  int operands_like_result = 0;
  for (const PostOp& op : site.posts) {
    operands_like_result += !op.eltwise && c.Value(op.value).dims == dims;
  }
  bool alone = c.alone() && alg == algorithm::convolution_direct && src.plain();
  typename Forward::primitive_desc chosen;
  for (LayoutPair layout : ConvolutionLayouts(conv, alone, operands_like_result)) {
    auto pd = describe(layout.src(src.dims), layout.dst(dims), c.Attributes());
    if (!pd) continue;
    if (!chosen || IsReference(chosen)) chosen = pd;
    if (!IsReference(chosen)) break;
  }
  if (!chosen) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of this " << name;
  Desc from = chosen.src_desc(), to = chosen.dst_desc();
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return describe(from, dst, attr);
  };
  auto operands = [&](const PrimitiveDesc& pd) {
    std::vector<std::pair<int, View>> used = {
        {DNNL_ARG_SRC, c.Use(src, from)},
        {DNNL_ARG_WEIGHTS, c.Use(weights, pd.query_md(dnnl::query::weights_md, 0))}};
    if (bias) used.push_back({DNNL_ARG_BIAS, *bias});
    return used;
  };
  return c.Fused(name, to, site.posts, make, operands, std::nullopt, true);
}

inline View MatMul(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  View weights = c.Value(site.id("weights"));
  std::optional<View> bias;
  if (site.id("bias") >= 0) bias = c.UsePlain(c.Value(site.id("bias")));
  Dims dims = site.dims();
  bool constant = c.IsConstant(weights);
  Desc bias_desc = bias ? bias->desc : Desc();
  // The order in which the result's axes lie in memory, when a transposition follows.
  Desc to = Has(site.step, "order") ? StridedDesc(dims, StridesInOrder(dims, site.ints("order")))
                                    : PlainDesc(dims);

  auto describe = [&](const Desc& left, const Desc& right, const Desc& dst,
                      const primitive_attr& attr) -> PrimitiveDesc {
    if (bias) {
      return dnnl::matmul::primitive_desc(Engine(), left, right, bias_desc, dst, attr, true);
    }
    return dnnl::matmul::primitive_desc(Engine(), left, right, dst, attr, true);
  };

  // Transposed and sliced operands as they lie, where a kernel takes them; else row-major copies.
  Desc left = src.desc, right = constant ? AnyDesc(weights.dims) : weights.desc;
  struct Choice {
    Desc left, right, to;
  };
  Desc plain_left = PlainDesc(src.dims), plain_to = PlainDesc(dims);
  Desc plain_right = constant ? right : PlainDesc(weights.dims);
  std::vector<Choice> choices = {{left, right, to},
                                 {left, right, plain_to},
                                 {left, plain_right, plain_to},
                                 {plain_left, right, plain_to},
                                 {plain_left, plain_right, plain_to}};
  const Choice* chosen = nullptr;
  for (const Choice& choice : choices) {
    PrimitiveDesc pd = describe(choice.left, choice.right, choice.to, c.Attributes());
    if (!pd) continue;
    chosen = &choice;
    if (!IsReference(pd)) break;
  }
  if (chosen == nullptr) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of matmul";

  auto make = [&](const Desc& dst, const primitive_attr& attr) {
    return describe(chosen->left, chosen->right, dst, attr);
  };
  auto operands = [&](const PrimitiveDesc& pd) {
    std::vector<std::pair<int, View>> used = {
        {DNNL_ARG_SRC, c.Use(src, chosen->left)},
        {DNNL_ARG_WEIGHTS, c.Use(weights, pd.query_md(dnnl::query::weights_md, 0))}};
    if (bias) used.push_back({DNNL_ARG_BIAS, *bias});
    return used;
  };
  return c.Fused("matmul", chosen->to, site.posts, make, operands, std::nullopt, true);
}

inline View Pooling(Compiler& c, const Site& site) {
  std::string kind = site.text("alg");
  algorithm alg = kind == "max"   ? algorithm::pooling_max
                  : kind == "avg" ? algorithm::pooling_avg_exclude_padding
                                  : algorithm::pooling_avg_include_padding;
  View src = c.UseDense(c.Value(site.id("src")));
  Dims dims = site.dims();
  auto describe = [&](const Desc& from, const Desc& to, const primitive_attr& attr) {
    return dnnl::pooling_forward::primitive_desc(
        Engine(), kInference, alg, from, to, site.ints("strides"), site.ints("kernel"),
        site.ints("dilation"), site.ints("pads_begin"), site.ints("pads_end"), attr, true);
  };
  dnnl::pooling_forward::primitive_desc chosen;
  for (const Desc& from : {src.desc, ChannelsLastDesc(src.dims), PlainDesc(src.dims)}) {
    if (chosen && SameLayout(from, src.desc)) continue;
    auto pd = describe(from, AnyDesc(dims), c.Attributes());
    if (!pd) continue;
    if (!chosen) chosen = pd;
    if (IsReference(pd)) continue;
    chosen = pd;
    break;
  }
  if (!chosen) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of pooling";
  Desc from = chosen.src_desc();
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return describe(from, dst, attr);
  };
  auto operands = [&](const PrimitiveDesc&) {
    return std::vector<std::pair<int, View>>{{DNNL_ARG_SRC, c.Use(src, from)}};
  };
  return c.Fused("pool " + kind, chosen.dst_desc(), site.posts, make, operands);
}

// Operators that read one dense tensor and keep its layout.
inline View Softmax(Compiler& c, const Site& site) {
  View given = c.Value(site.id("src"));
  View src = c.UseDense(given);
  bool log = GetInt(site.step, "log", 0) != 0;
  int axis = static_cast<int>(Get<int64_t>(site.step, "axis"));
  auto describe = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return dnnl::softmax_forward::primitive_desc(
        Engine(), kInference, log ? algorithm::softmax_log : algorithm::softmax_accurate, dst, dst,
        axis, attr, true);
  };
  if (!src.plain()) {
    PrimitiveDesc pd = describe(src.desc, c.Attributes());
    if (!pd || IsReference(pd)) src = c.UsePlain(src);
  }
  auto operands = [&](const PrimitiveDesc&) {
    return std::vector<std::pair<int, View>>{{DNNL_ARG_SRC, src}};
  };
  std::optional<View> reuse;
  if (c.Dead(site.id("src")) || src.buffer != given.buffer) reuse = src;
  return c.Fused(log ? "log_softmax" : "softmax", src.desc, site.posts, describe, operands, reuse);
}

// Over the last axis, with an optional scale and shift.
inline View LayerNorm(Compiler& c, const Site& site) {
  View given = c.Value(site.id("src"));
  View src = c.UsePlain(given);
  auto flags = dnnl::normalization_flags::none;
  std::vector<std::pair<int, View>> used = {{DNNL_ARG_SRC, src}};
  if (site.id("scale") >= 0) {
    flags |= dnnl::normalization_flags::use_scale;
    used.push_back({DNNL_ARG_SCALE, c.UsePlain(c.Value(site.id("scale")))});
  }
  if (site.id("shift") >= 0) {
    flags |= dnnl::normalization_flags::use_shift;
    used.push_back({DNNL_ARG_SHIFT, c.UsePlain(c.Value(site.id("shift")))});
  }
  float epsilon = site.number("epsilon", 1e-5);
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return dnnl::layer_normalization_forward::primitive_desc(Engine(), kInference, dst, dst,
                                                             epsilon, flags, attr, true);
  };
  auto operands = [&](const PrimitiveDesc&) { return used; };
  std::optional<View> reuse;
  if (c.Dead(site.id("src")) || src.buffer != given.buffer) reuse = src;
  return c.Fused("layer_norm", src.desc, site.posts, make, operands, reuse);
}

// Per channel (axis 1); with the data's own statistics unless a mean and variance are given.
inline View BatchNorm(Compiler& c, const Site& site) {
  View given = c.Value(site.id("src"));
  View src = c.UseDense(given);
  auto flags = dnnl::normalization_flags::none;
  std::vector<std::pair<int, View>> used = {{DNNL_ARG_SRC, src}};
  auto add = [&](const char* key, int name, dnnl::normalization_flags flag) {
    if (site.id(key) < 0) return;
    flags |= flag;
    used.push_back({name, c.UsePlain(c.Value(site.id(key)))});
  };
  add("scale", DNNL_ARG_SCALE, dnnl::normalization_flags::use_scale);
  add("shift", DNNL_ARG_SHIFT, dnnl::normalization_flags::use_shift);
  add("mean", DNNL_ARG_MEAN, dnnl::normalization_flags::use_global_stats);
  add("variance", DNNL_ARG_VARIANCE, dnnl::normalization_flags::use_global_stats);
  float epsilon = site.number("epsilon", 1e-5);
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return dnnl::batch_normalization_forward::primitive_desc(Engine(), kInference, dst, dst,
                                                             epsilon, flags, attr, true);
  };
  auto operands = [&](const PrimitiveDesc&) { return used; };
  std::optional<View> reuse;
  if (c.Dead(site.id("src")) || src.buffer != given.buffer) reuse = src;
  return c.Fused("batch_norm", src.desc, site.posts, make, operands, reuse);
}

inline View Reduce(Compiler& c, const Site& site) {
  static const std::map<std::string, algorithm> known = {
      {"sum", algorithm::reduction_sum}, {"mean", algorithm::reduction_mean},
      {"max", algorithm::reduction_max}, {"min", algorithm::reduction_min},
      {"mul", algorithm::reduction_mul}};
  auto it = known.find(site.text("alg"));
  if (it == known.end()) TVM_FFI_THROW(ValueError) << "unknown reduction " << site.text("alg");
  View src = c.UsePlain(c.Value(site.id("src")));
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return dnnl::reduction::primitive_desc(Engine(), it->second, src.desc, dst, 0.f, 0.f, attr,
                                           true);
  };
  auto operands = [&](const PrimitiveDesc&) {
    return std::vector<std::pair<int, View>>{{DNNL_ARG_SRC, src}};
  };
  return c.Fused("reduce " + it->first, PlainDesc(site.dims()), site.posts, make, operands);
}

inline View Prelu(Compiler& c, const Site& site) {
  View src = c.UseDense(c.Value(site.id("src")));
  View slope = c.UsePlain(c.Value(site.id("weights")));
  dnnl::prelu_forward::primitive_desc pd(Engine(), kInference, src.desc, slope.desc, src.desc,
                                         c.Attributes());
  View to = c.NewView(src.desc);
  c.Emit("prelu", pd,
         {{&src, src.desc, DNNL_ARG_SRC},
          {&slope, slope.desc, DNNL_ARG_WEIGHTS},
          {&to, to.desc, DNNL_ARG_DST}},
         src.desc, to.desc, "");
  return c.Apply(to, site.posts, to);
}

inline View Concat(Compiler& c, const Site& site) {
  std::vector<View> sources;
  bool channels_last = false;
  for (int64_t id : site.ints("srcs")) {
    sources.push_back(c.Value(id));
    const View& v = sources.back();
    channels_last |= v.channels_last() && !v.plain();
  }
  LayoutOf layout = channels_last ? ChannelsLastDesc : PlainDesc;
  std::vector<Desc> descs;
  for (View& v : sources) {
    // Slices are read where they lie.
    if (!v.strided() || v.dense()) v = c.Use(v, layout(v.dims));
    descs.push_back(v.desc);
  }
  Desc dst = layout(site.dims());
  dnnl::concat::primitive_desc pd(Engine(), dst, static_cast<int>(Get<int64_t>(site.step, "axis")),
                                  descs, c.Attributes());
  View to = c.NewView(dst);
  std::vector<Binding> bindings;
  for (size_t i = 0; i < sources.size(); ++i) {
    bindings.push_back({&sources[i], descs[i], DNNL_ARG_MULTIPLE_SRC + static_cast<int>(i)});
  }
  bindings.push_back({&to, dst, DNNL_ARG_DST});
  c.Emit("concat", pd, bindings, descs[0], dst, "");
  return c.Apply(to, site.posts, to);
}

inline View Resample(Compiler& c, const Site& site) {
  algorithm alg = site.text("alg") == "nearest" ? algorithm::resampling_nearest
                                                : algorithm::resampling_linear;
  View src = c.UseDense(c.Value(site.id("src")));
  Dims dims = site.dims();
  auto describe = [&](const Desc& from, const Desc& to, const primitive_attr& attr) {
    return dnnl::resampling_forward::primitive_desc(Engine(), kInference, alg, from, to, attr,
                                                    true);
  };
  auto pd = describe(src.desc, AnyDesc(dims), c.Attributes());
  if (!pd) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of this resize";
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return describe(src.desc, dst, attr);
  };
  auto operands = [&](const PrimitiveDesc&) {
    return std::vector<std::pair<int, View>>{{DNNL_ARG_SRC, src}};
  };
  return c.Fused("resize", pd.dst_desc(), site.posts, make, operands);
}

inline View Elementwise(Compiler& c, const Site& site) {
  PostOp op;
  op.name = site.text("alg");
  op.alg = EltwiseAlgorithm(op.name);
  op.alpha = site.number("alpha", 0);
  op.beta = site.number("beta", 0);
  View src = c.Value(site.id("src"));
  std::optional<View> reuse;
  if (c.Dead(site.id("src"))) reuse = src;
  return c.Eltwise(src, op, site.posts, reuse);
}

inline View BinaryStep(Compiler& c, const Site& site) {
  std::string name = site.text("alg");
  int64_t left = site.id("src"), right = site.id("other");
  View a = c.Value(left), b = c.Value(right);
  algorithm alg = BinaryAlgorithm(name);
  std::optional<View> reuse;
  if (c.Dead(left) && a.dims == site.dims()) {
    reuse = a;
  } else if (Commutes(alg) && c.Dead(right) && b.dims == site.dims()) {
    std::swap(a, b);
    reuse = a;
  }
  return c.Binary(alg, name, a, b, site.posts, reuse);
}

inline View Reshape(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  Dims dims = site.dims();
  if (Elements(src.dims) != Elements(dims)) {
    TVM_FFI_THROW(ValueError) << "reshape changes the number of elements";
  }
  if (src.strided()) {
    if (std::optional<View> view = Reshaped(src, dims)) return *view;
  }
  return *Reshaped(c.UsePlain(src), dims);
}

inline View Permute(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  if (!src.strided()) src = c.UsePlain(src);
  return Permuted(src, site.ints("axes"));
}

inline View Slice(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  if (!src.strided()) src = c.UsePlain(src);
  return Sliced(src, site.ints("begin"), site.ints("step"), site.dims());
}

inline View Lower(Compiler& c, const std::string& op, const Site& site) {
  using Operator = View (*)(Compiler&, const Site&);
  static const std::map<std::string, Operator> known = {
      {"conv",
       [](Compiler& c, const Site& s) {
         return ConvolutionLike<dnnl::convolution_forward>(c, s, algorithm::convolution_direct,
                                                           "conv");
       }},
      {"deconv",
       [](Compiler& c, const Site& s) {
         return ConvolutionLike<dnnl::deconvolution_forward>(
             c, s, algorithm::deconvolution_direct, "deconv");
       }},
      {"matmul", MatMul},       {"pool", Pooling},        {"softmax", Softmax},
      {"layer_norm", LayerNorm}, {"batch_norm", BatchNorm}, {"reduce", Reduce},
      {"prelu", Prelu},         {"concat", Concat},       {"resize", Resample},
      {"eltwise", Elementwise}, {"binary", BinaryStep},   {"reshape", Reshape},
      {"permute", Permute},     {"slice", Slice},
      {"expand",
       [](Compiler& c, const Site& s) { return c.Expand(c.Value(s.id("src")), s.dims()); }}};
  auto it = known.find(op);
  if (it == known.end()) TVM_FFI_THROW(ValueError) << "unknown operator " << op << " in the plan";
  return it->second(c, site);
}

}  // namespace collage

#endif  // COLLAGE_ONEDNN_OPERATORS_H_
