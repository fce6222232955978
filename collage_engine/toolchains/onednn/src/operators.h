// One function per plan operator; spatial ones are in spatial.h.
#ifndef COLLAGE_ONEDNN_OPERATORS_H_
#define COLLAGE_ONEDNN_OPERATORS_H_

#include "spatial.h"

namespace collage {

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
