"""Gives the op pattern kinds of Relax operators, with the meanings Relay's ``TOpPattern`` had.

Relax has no such attribute; inferring kinds from TIR is looser (a pool or a softmax comes out
as anchor, an add with a bias as elementwise), so Relay's table is written down here
(TVM v0.18, ``python/tvm/relay/op/_tensor.py``, ``_transform.py``, ``_reduce.py``,
``nn/_nn.py`` and the C++ registrations). Normalisations, which Relay took apart before it came to
kinds, are anchors like softmax. ``kind_of`` says None for what the table lacks.
"""

from __future__ import annotations

from collage_engine.records.graph import OpKind

_BY_KIND: dict[OpKind, str] = {
    "elementwise": """
        abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor
        full full_like isfinite isinf isnan log logical_not negative nn.gelu nn.gelu_tanh
        nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus ones ones_like round rsqrt sigmoid sign
        sin sinh sqrt square tan tanh trunc zeros zeros_like
    """,
    "broadcast": """
        add atan2 bitwise_and bitwise_or bitwise_xor broadcast_to dequantize divide equal
        ewise_fma expand_dims floor_divide floor_mod greater greater_equal left_shift less
        less_equal log_add_exp logical_and logical_or logical_xor maximum minimum mod multiply
        nn.prelu not_equal power quantize right_shift subtract tile repeat where
    """,
    "injective": """
        arange concat dynamic_strided_slice eye eye_like flatten flip gather_elements
        gather_nd image.affine_grid image.resize2d image.resize3d index_tensor layout_transform
        meshgrid nn.batch_flatten nn.pad nn.pixel_shuffle permute_dims reshape
        reverse_sequence split squeeze stack strided_slice take tril triu
    """,
    "reduction": """
        argmax argmin collapse_sum_like collapse_sum_to max mean median min prod std sum variance
    """,
    "anchor": """
        matmul nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d
        nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.conv1d nn.conv1d_transpose nn.conv2d
        nn.conv2d_transpose nn.conv3d nn.conv3d_transpose nn.log_softmax nn.max_pool1d
        nn.max_pool2d nn.max_pool3d nn.softmax one_hot vision.roi_align vision.roi_pool
        image.grid_sample einsum outer nn.group_norm nn.instance_norm nn.layer_norm nn.rms_norm
    """,
    "opaque": """
        argsort bucketize cumprod cumsum index_put multinomial_from_uniform nn.attention
        nn.attention_bias nn.attention_var_len nn.batch_norm nn.cross_entropy_with_logits
        nn.dropout nn.nll_loss nonzero
        scatter_elements scatter_nd slice_scatter sort topk unique
        vision.all_class_non_max_suppression vision.get_valid_counts
        vision.multibox_transform_loc vision.non_max_suppression
    """,
}

_TABLE: dict[str, OpKind] = {op: kind for kind, names in _BY_KIND.items() for op in names.split()}


def kind_of(op: str) -> OpKind | None:
    """Returns the kind of a Relax operator (named without ``relax.``); None for one not listed."""
    return _TABLE.get(op)
