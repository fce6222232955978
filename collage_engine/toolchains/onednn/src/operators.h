// One function per plan operator.
#ifndef COLLAGE_ONEDNN_OPERATORS_H_
#define COLLAGE_ONEDNN_OPERATORS_H_

#include "compiler.h"

namespace collage {

using LayoutOf = Desc (*)(const Dims&, Type);
struct LayoutPair {
  LayoutOf src, dst;
};

// Channels in blocks of 16: what depthwise kernels like, and cheaper to reach from row-major
// than channels-last.
inline Desc BlockedDesc(const Dims& dims, Type type = kFloat) {
  using tag = dnnl::memory::format_tag;
  static constexpr tag tags[] = {tag::nCw16c, tag::nChw16c, tag::nCdhw16c};
  return Desc(dims, type, tags[dims.size() - 3]);
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
  } else if (!conv.grouped() && conv.src[1] > 1 && conv.src[1] <= 4) {
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

inline View Convolve(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  View weights = c.Value(site.id("weights"));
  std::optional<View> bias;
  if (site.id("bias") >= 0) bias = c.UsePlain(c.Value(site.id("bias")));
  Dims dims = site.dims(), dilation = site.ints("dilation");
  Convolution conv{src.dims, weights.dims, dims, site.ints("strides"), site.ints("pads_begin"),
                   site.ints("pads_end")};
  Desc any_weights;
  Desc bias_desc = bias ? bias->desc : Desc();

  auto describe = [&](const Desc& from, const Desc& to,
                      const primitive_attr& attr) -> dnnl::convolution_forward::primitive_desc {
    constexpr auto alg = algorithm::convolution_direct;
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
  bool alone = c.alone() && src.plain() && src.type() == kFloat;
  dnnl::convolution_forward::primitive_desc chosen;
  for (const ProductTypes& types : c.TypesOf(site.type(), site.full())) {
    any_weights = AnyDesc(weights.dims, types.weights);
    for (LayoutPair layout : ConvolutionLayouts(conv, alone, operands_like_result)) {
      auto pd = describe(layout.src(src.dims, types.src), layout.dst(dims, types.dst),
                         c.Attributes());
      if (!pd) continue;
      if (!chosen || IsReference(chosen)) chosen = pd;
      if (!IsReference(chosen)) break;
    }
    if (chosen && !IsReference(chosen)) break;
  }
  if (!chosen) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of conv";
  Desc from = chosen.src_desc(), to = chosen.dst_desc();
  any_weights = AnyDesc(weights.dims, chosen.weights_desc().get_data_type());
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return describe(from, dst, attr);
  };
  auto operands = [&](const PrimitiveDesc& pd) {
    Used used = {
        {DNNL_ARG_SRC, c.Use(src, from)},
        {DNNL_ARG_WEIGHTS, c.Use(weights, pd.query_md(dnnl::query::weights_md, 0))}};
    if (bias) used.push_back({DNNL_ARG_BIAS, *bias});
    return used;
  };
  return c.Fused("conv", to, site.posts, make, operands, true);
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
  Type type = src.type();
  for (const Desc& from :
       {src.desc, ChannelsLastDesc(src.dims, type), PlainDesc(src.dims, type)}) {
    if (chosen && SameLayout(from, src.desc)) continue;
    auto pd = describe(from, AnyDesc(dims, type), c.Attributes());
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
  return c.Fused("pool " + kind, chosen.dst_desc(), site.posts, make,
                 Reading({{DNNL_ARG_SRC, c.Use(src, from)}}));
}

inline View MatMul(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  View weights = c.Value(site.id("weights"));
  std::optional<View> bias;
  if (site.id("bias") >= 0) bias = c.UsePlain(c.Value(site.id("bias")));
  Dims dims = site.dims();
  bool constant = c.IsConstant(weights);
  Desc bias_desc = bias ? bias->desc : Desc();

  auto describe = [&](const Desc& left, const Desc& right, const Desc& dst,
                      const primitive_attr& attr) -> PrimitiveDesc {
    if (bias) {
      return dnnl::matmul::primitive_desc(Engine(), left, right, bias_desc, dst, attr, true);
    }
    return dnnl::matmul::primitive_desc(Engine(), left, right, dst, attr, true);
  };

  // Transposed and sliced operands as they lie, where a kernel takes them; else row-major copies.
  struct Choice {
    Desc left, right, to;
  };
  std::vector<Choice> choices;
  for (const ProductTypes& types : c.TypesOf(site.type(), site.full())) {
    Desc left = Compiler::OperandAs(src, types.src);
    Desc right = constant ? AnyDesc(weights.dims, types.weights)
                          : Compiler::OperandAs(weights, types.weights);
    Desc plain_left = PlainDesc(src.dims, types.src), plain_to = PlainDesc(dims, types.dst);
    Desc plain_right = constant ? right : PlainDesc(weights.dims, types.weights);
    choices.insert(choices.end(), {{left, right, plain_to},
                                   {left, plain_right, plain_to},
                                   {plain_left, right, plain_to},
                                   {plain_left, plain_right, plain_to}});
  }
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
    Used used = {
        {DNNL_ARG_SRC, c.Use(src, chosen->left)},
        {DNNL_ARG_WEIGHTS, c.Use(weights, pd.query_md(dnnl::query::weights_md, 0))}};
    if (bias) used.push_back({DNNL_ARG_BIAS, *bias});
    return used;
  };
  return c.Fused("matmul", chosen->to, site.posts, make, operands, true);
}

// Operators that read one dense tensor and keep its layout.
inline View Softmax(Compiler& c, const Site& site) {
  View src = c.UseDenseFloat(c.Value(site.id("src")));
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
  return c.Fused(log ? "log_softmax" : "softmax", src.desc, site.posts, describe,
                 Reading({{DNNL_ARG_SRC, src}}));
}

// Over the last axis, with a scale and a shift.
inline View LayerNorm(Compiler& c, const Site& site) {
  View src = c.UsePlainFloat(c.Value(site.id("src")));
  const auto flags =
      dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return dnnl::layer_normalization_forward::primitive_desc(
        Engine(), kInference, dst, dst, site.number("epsilon"), flags, attr, true);
  };
  return c.Fused("layer_norm", src.desc, site.posts, make,
                 Reading({{DNNL_ARG_SRC, src},
                          {DNNL_ARG_SCALE, c.UsePlainFloat(c.Value(site.id("scale")))},
                          {DNNL_ARG_SHIFT, c.UsePlainFloat(c.Value(site.id("shift")))}}));
}

inline View Reduce(Compiler& c, const Site& site) {
  static const std::map<std::string, algorithm> known = {
      {"sum", algorithm::reduction_sum}, {"mean", algorithm::reduction_mean},
      {"max", algorithm::reduction_max}, {"min", algorithm::reduction_min},
      {"mul", algorithm::reduction_mul}};
  std::string name = site.text("alg");
  algorithm alg = Named(known, name, "unknown reduction");
  View src = c.UsePlainFloat(c.Value(site.id("src")));
  auto make = [&](const Desc& dst, const primitive_attr& attr) -> PrimitiveDesc {
    return dnnl::reduction::primitive_desc(Engine(), alg, src.desc, dst, 0.f, 0.f, attr, true);
  };
  return c.Fused("reduce " + name, PlainDesc(site.dims()), site.posts, make,
                 Reading({{DNNL_ARG_SRC, src}}));
}

inline View Concat(Compiler& c, const Site& site) {
  std::vector<View> sources;
  bool channels_last = false;
  bool same_type = true;
  for (int64_t id : site.ints("srcs")) {
    sources.push_back(c.Value(id));
    const View& v = sources.back();
    channels_last |= v.channels_last() && !v.plain();
    same_type &= v.type() == sources.front().type();
  }
  Type type = same_type ? sources.front().type() : kFloat;
  LayoutOf layout = channels_last ? ChannelsLastDesc : PlainDesc;
  std::vector<Desc> descs;
  for (View& v : sources) {
    // Slices are read where they lie.
    if (!v.strided() || v.dense()) v = c.Use(v, layout(v.dims, type));
    if (v.type() != type) v = c.Use(v, layout(v.dims, type));
    descs.push_back(v.desc);
  }
  Desc dst = layout(site.dims(), type);
  dnnl::concat::primitive_desc pd(Engine(), dst, static_cast<int>(Get<int64_t>(site.step, "axis")),
                                  descs, c.Attributes());
  View to = c.NewView(dst);
  std::vector<Binding> bindings;
  for (size_t i = 0; i < sources.size(); ++i) {
    bindings.push_back({&sources[i], descs[i], DNNL_ARG_MULTIPLE_SRC + static_cast<int>(i)});
  }
  bindings.push_back({&to, dst, DNNL_ARG_DST});
  c.Emit("concat", pd, bindings, descs[0], dst, "");
  return c.Apply(to, site.posts);
}

inline View Elementwise(Compiler& c, const Site& site) {
  PostOp op;
  op.name = site.text("alg");
  op.alg = EltwiseAlgorithm(op.name);
  op.alpha = site.number("alpha");
  op.beta = site.number("beta");
  return c.Eltwise(c.Value(site.id("src")), op, site.posts);
}

inline View BinaryStep(Compiler& c, const Site& site) {
  std::string name = site.text("alg");
  return c.Binary(BinaryAlgorithm(name), name, c.Value(site.id("src")),
                  c.Value(site.id("other")), site.posts);
}

// All steps of an LSTM or GRU of one layer. `src` is (step, batch, feature), the result (step,
// batch, state), of both directions one after the other; the first states are zero without `state`.
inline View Recurrent(Compiler& c, const Site& site) {
  static const std::map<std::string, dnnl::rnn_direction> directions = {
      {"forward", dnnl::rnn_direction::unidirectional_left2right},
      {"reverse", dnnl::rnn_direction::unidirectional_right2left},
      {"bidirectional", dnnl::rnn_direction::bidirectional_concat}};
  auto direction = Named(directions, site.text("direction"), "unknown direction");
  std::string cell = site.text("cell");
  View src = c.UsePlainFloat(c.Value(site.id("src")));
  View weights = c.Value(site.id("weights")), recurrent = c.Value(site.id("recurrent"));
  Used used = {
      {DNNL_ARG_SRC_LAYER, src}, {DNNL_ARG_BIAS, c.UsePlainFloat(c.Value(site.id("bias")))}};
  auto first = [&](const char* key, int name) {
    if (site.id(key) < 0) return Desc();
    used.push_back({name, c.UsePlainFloat(c.Value(site.id(key)))});
    return used.back().second.desc;
  };
  Desc bias = used[1].second.desc, none;
  Desc state = first("state", DNNL_ARG_SRC_ITER), memory = first("cell_state", DNNL_ARG_SRC_ITER_C);
  Desc layer = AnyDesc(weights.dims), iteration = AnyDesc(recurrent.dims);
  View to = c.NewView(PlainDesc(site.dims()));
  auto describe = [&]() -> PrimitiveDesc {
    if (cell == "lstm") {
      return dnnl::lstm_forward::primitive_desc(Engine(), kInference, direction, src.desc,
                                                state, memory, layer, iteration, bias, to.desc,
                                                none, none, c.Attributes(), true);
    }
    return dnnl::lbr_gru_forward::primitive_desc(Engine(), kInference, direction, src.desc,
                                                 state, layer, iteration, bias, to.desc, none,
                                                 c.Attributes(), true);
  };
  PrimitiveDesc pd = describe();
  if (!pd) TVM_FFI_THROW(RuntimeError) << "oneDNN has no implementation of this " << cell;
  auto packed = [&](int name) { return pd.query_md(dnnl::query::exec_arg_md, name); };
  used.push_back({DNNL_ARG_WEIGHTS_LAYER, c.Use(weights, packed(DNNL_ARG_WEIGHTS_LAYER))});
  used.push_back({DNNL_ARG_WEIGHTS_ITER, c.Use(recurrent, packed(DNNL_ARG_WEIGHTS_ITER))});
  std::vector<Binding> bindings;
  for (auto& [name, view] : used) bindings.push_back({&view, view.desc, name});
  bindings.push_back({&to, to.desc, DNNL_ARG_DST_LAYER});
  c.Emit(cell, pd, bindings, src.desc, to.desc, "");
  return c.Apply(to, site.posts);
}

inline View Reshape(Compiler& c, const Site& site) {
  View src = c.Value(site.id("src"));
  Dims dims = site.dims();
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
      {"conv", Convolve},        {"matmul", MatMul},        {"pool", Pooling},
      {"softmax", Softmax},
      {"layer_norm", LayerNorm}, {"reduce", Reduce},
      {"concat", Concat},        {"eltwise", Elementwise},  {"binary", BinaryStep},
      {"reshape", Reshape},      {"permute", Permute},      {"slice", Slice},
      {"recurrent", Recurrent},
      {"expand",
       [](Compiler& c, const Site& s) { return c.Expand(c.Value(s.id("src")), s.dims()); }}};
  return Named(known, op, "the plan has the unknown operator")(c, site);
}

}  // namespace collage

#endif  // COLLAGE_ONEDNN_OPERATORS_H_
