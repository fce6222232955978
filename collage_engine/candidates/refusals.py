"""Why a toolchain cannot take an operator, as people read it: ONNX types and toolchains' titles.

Toolchains and rules give their reasons in terms of the dataflow graph (``nn.conv2d``) and of their
own machinery (``a BLAS``, ``openblas.conv``). Every face shows what is made of them here.
"""

from __future__ import annotations

import re

from collage_engine.records.errors import UsageError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import ONNX_TYPES, onnx_type
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.registry import get
from collage_engine.wording import constraints as words

_RULE = re.compile(r"^(?:op|\w+(?:\.\w+)+)(?::\w+)?: (?=\S)")
"""The name of a rule in front of a reason: ``op: ``, ``openblas.conv: ``."""
_DOTTED = re.compile(
    "|".join(
        rf"(?<![\w.]){re.escape(op)}(?!\w)"
        for op in sorted(ONNX_TYPES, key=len, reverse=True)
        if "." in op
    )
)
"""Operators of the dataflow graph whose names are no ordinary words."""
_OPAQUE = re.compile(r"(?<![\w.])onnx:(?=\w)")
_KIND = " is an operator of kind "
"""What a rule that takes operators by themselves says of those that are too large for it."""
_CALLS_NOTHING = "no partition with it would call "
"""What the enumeration says where a library's own rules match and no call comes of them."""
_THEMSELVES = (
    (re.compile(r"\b[Aa] BLAS computes no (\S+)"), r"{title} does not compute \1"),
    (re.compile(r"\b(?:[Aa]|[Tt]he) BLAS\b"), "{title}"),
    (re.compile(r"\bsgemm computes\b"), "{title} computes"),
    (
        re.compile(r"\bno matrix product to do it along with$"),
        "only together with a matrix product or a convolution",
    ),
    (re.compile(r"^it (?=returns |takes |has )"), "{title} "),
)
"""How adapters name themselves: that of all BLAS libraries does not know for which it stands."""


def title_of(name: str) -> str:
    """Return a toolchain's title; its name where no toolchain is called so."""
    try:
        return get(name).about.title
    except UsageError:
        return name


def plain_reason(reason: str, node: Node, instance: ToolchainInstance) -> str:
    """Return a reason for people.

    Args:
        reason: What the toolchain, or the rule that failed, says.
        node: The operator that it speaks of.
        instance: The toolchain instance that has no candidate with the operator.
    """
    kind = onnx_type(node.op)
    title = title_of(instance.library or instance.toolchain)
    if instance.library and (_KIND in reason or reason.startswith(_CALLS_NOTHING)):
        caller = title_of(instance.toolchain)
        return words.NO_CALL.format(toolchain=caller, library=title, operator=kind)
    if _KIND in reason:
        return words.NOT_BY_ITSELF.format(toolchain=title, operator=kind)
    text = reason
    own = rf"{re.escape(node.op)}(?!\w)(?: '[^']*'| \(node \d+\))?"
    while (rule := _RULE.match(text)) and not re.match(own, text):
        text = text[rule.end() :]
    if node.op:
        text = re.sub(rf"^{own}", kind, text)
        text = re.sub(rf"\b(no|like|of) {re.escape(node.op)}(?![\w.])", rf"\1 {kind}", text)
    for pattern, plainly in _THEMSELVES:
        text = pattern.sub(plainly.format(title=title), text)
    text = _DOTTED.sub(lambda found: ONNX_TYPES[found.group()], text)
    return _OPAQUE.sub("", text)
