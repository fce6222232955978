"""What operators are called: by their ONNX type first, as people know them from the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from collage_engine.records.graph import Node, nodes_of
from collage_engine.records.operators import OPERATORS
from collage_engine.support.text import NAMED

_TYPE = re.compile(r"[A-Z][A-Za-z]*")
"""The last part of names such as ``/layer1/conv1/Conv``, which only repeats the type."""


def onnx_type(op: str) -> str:
    """Return the ONNX type of a Relax operator; the last part of its name where ONNX has none.

    Args:
        op: Such as ``nn.conv2d``, or ``onnx:DOMAIN.TYPE`` of an opaque operator, which keeps its
            domain: com.microsoft's Attention is not ONNX's.
    """
    last = op.rsplit(":" if ":" in op else ".", 1)[-1]
    row = OPERATORS.get(op)
    return row.onnx if row is not None and row.onnx else last or "operator"


class NodeTitles:
    """What operators are called: by the ONNX node in the user's file of which they are a part.

    Args:
        calls: The operators of a graph, by operator number.
    """

    def __init__(self, calls: Sequence[Node]) -> None:
        self._titles = [call.onnx_type or onnx_type(call.op) for call in calls]
        self._ops = [call.op for call in calls]
        self._nodes = nodes_of(calls)

    def __getitem__(self, operator: int) -> str:
        """Return the type of an operator's ONNX node: ``HardSwish``."""
        return self._titles[operator]

    def of(self, operators: Iterable[int]) -> list[str]:
        """Return the types of the ONNX nodes that hold some operators, each node once."""
        first: dict[int, int] = {}
        for operator in operators:
            first.setdefault(self._nodes[operator], operator)
        return [self._titles[operator] for operator in first.values()]

    def lowered(self, operator: int) -> str:
        """Return what an operator's ONNX node was lowered to: ``nn.conv2d, add``, each once."""
        own = self._nodes[operator]
        parts = (op for op, node in zip(self._ops, self._nodes, strict=True) if node == own)
        return ", ".join(dict.fromkeys(parts))

    def joined(self, operators: Iterable[int]) -> str:
        """Return a partition's nodes in short: ``Conv+Relu``, ``Div+Erf+Add+Mul+… (23 nodes)``."""
        titles = self.of(operators)
        if len(titles) <= NAMED:
            return "+".join(titles)
        return "+".join(titles[:NAMED]) + f"+… ({len(titles)} nodes)"


def short_name(name: str) -> str:
    """Return the part of an ONNX node's name that distinguishes it: ``layer1.0/conv1``.

    The last two parts are kept, without one that only repeats the type.
    """
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and _TYPE.fullmatch(parts[-1]):
        parts.pop()
    return "/".join(parts[-2:]) or name
