// Convolutions, pools and resizing.
#ifndef COLLAGE_ONEDNN_SPATIAL_H_
#define COLLAGE_ONEDNN_SPATIAL_H_

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

}  // namespace collage

#endif  // COLLAGE_ONEDNN_SPATIAL_H_
