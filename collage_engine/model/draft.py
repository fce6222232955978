"""Holds a model in work: ONNX nodes as plain objects that remember the user's node names.

Clean-up rewrites a draft; every rewrite moves names along, so that in the end each node of
the user's file is either named by an operator or among the folded ones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from collage_engine.model.onnx_file import tensor_array
from collage_engine.model.onnx_outer_values import outer_values, with_outer_values
from collage_engine.model.onnx_types import opset_of
from collage_engine.support.errors import MOST_CHARACTERS, displayable

_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
_QUOTED = re.compile(r"'([^']*)'")
_NUMBERS = count()
"""Numbers of ONNX nodes, which only tell them apart."""


@dataclass(eq=False, slots=True)
class Op:
    """One ONNX operator in work.

    ``names`` are the user's nodes that it stands for, its own first.
    """

    type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, AttributeProto] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    nodes: frozenset[int] = field(default_factory=lambda: frozenset({next(_NUMBERS)}))
    """Numbers of the ONNX nodes that it is, or is a part of: operators that share one are never
    parted."""
    part_of: str = ""
    """The type of the ONNX node of which it is a part; empty: its own."""
    scope: tuple[str, ...] = ()
    """The modules around the node (``module_scope``)."""
    domain: str = ""
    outer: tuple[str, ...] = ()
    """The values that the node's branches read from outside, by the names under which the branches
    know them; they are its last inputs, in this order."""

    @property
    def name(self) -> str:
        """Returns the user's name for the node.

        Where it stands for no node of theirs, it is the name of its first output.
        """
        return self.names[0] if self.names else self.outputs[0]

    @property
    def onnx_type(self) -> str:
        """Return the type of the ONNX node that it is, or is a part of."""
        return self.part_of or self.type

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute (strings as ``str``), or the default."""
        attribute = self.attributes.get(name)
        if attribute is None:
            return default
        value = helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def set(self, **values: Any) -> None:
        """Set attributes; Python values become ONNX ones."""
        for name, value in values.items():
            self.attributes[name] = helper.make_attribute(name, value)

    def input(self, index: int) -> str:
        """Return the name of an input; empty when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def part(
        self,
        type: str,
        inputs: list[str],
        outputs: list[str],
        attributes: dict[str, AttributeProto] | None = None,
    ) -> Op:
        """Return a new operator that computes a part of this ONNX node."""
        held, names = dict(attributes or {}), list(self.names)
        return Op(type, inputs, outputs, held, names, self.nodes, self.onnx_type, self.scope)

    def take_in(self, other: Op) -> None:
        """Note that another operator was folded into this one: their ONNX nodes are one."""
        self.names += [name for name in other.names if name not in self.names]
        self.nodes |= other.nodes

    def to_proto(self) -> NodeProto:
        """Return the node as ONNX; values that its branches read go by the names they have now."""
        node = NodeProto()
        node.op_type = self.type
        node.domain = self.domain
        node.name = self.name
        own = len(self.inputs) - len(self.outer)
        node.input.extend(self.inputs[:own])
        node.output.extend(self.outputs)
        renamed = dict(zip(self.outer, self.inputs[own:], strict=True))
        node.attribute.extend(with_outer_values(a, renamed) for a in self.attributes.values())
        return node


def node_name(node: NodeProto) -> str:
    """Return what the user calls a node: its name, or its first output when it has none."""
    name = node.name or next((o for o in node.output if o), "")
    return name if len(name) <= MOST_CHARACTERS else displayable(name)


def module_scope(node: NodeProto) -> tuple[str, ...]:
    """Return the modules around a node, outer ones first, as PyTorch's newer exporter notes them.

    Each is written with those around it (``['', 'layer1', 'layer1.0', 'relu_1']``), and the last is
    the call that became the node; they are returned as ``("layer1", "0")``.
    """
    written = next((p.value for p in node.metadata_props if p.key == _SCOPES_KEY), "")
    scope: list[str] = []
    outer = ""
    for path in _QUOTED.findall(written[: 2 * MOST_CHARACTERS])[:-1]:
        if path:
            scope.append(path.removeprefix(f"{outer}.") if outer else path)
            outer = path
    return tuple(scope)


def op_from(node: NodeProto, names: Iterable[str] | None = None) -> Op:
    """Return an ONNX node as an ``Op`` that stands for ``names``, or for itself."""
    outer = outer_values(node)
    return Op(
        node.op_type,
        [*node.input, *outer],
        list(node.output),
        {a.name: a for a in node.attribute},
        [node_name(node)] if names is None else list(names),
        scope=module_scope(node),
        domain=node.domain,
        outer=outer,
    )


class Constants:
    """Named constants; a weight's bytes are looked at only when somebody reads its values.

    Attributes:
        tensors: The constants as ONNX has them, by name: those of the file first.
    """

    def __init__(self, tensors: Iterable[TensorProto]) -> None:
        self.tensors = {t.name: t for t in tensors}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> np.ndarray:
        return tensor_array(self.tensors[name], f"The tensor '{name}'")

    def __setitem__(self, name: str, values: np.ndarray) -> None:
        self.tensors[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)


class Draft:
    """The graph in work. ``types`` maps a value to (element type, shape or None)."""

    def __init__(self, model: ModelProto, path: str = "") -> None:
        graph = model.graph
        self.path = path
        """The user's file, for messages."""
        self.constants = Constants(graph.initializer)
        self.ops = [op_from(n) for n in graph.node]
        self.inputs: list[ValueInfoProto] = [i for i in graph.input if i.name not in self.constants]
        self.outputs: list[ValueInfoProto] = list(graph.output)
        self.types: dict[str, tuple[int, tuple[int, ...] | None]] = {}
        self.partial: dict[str, tuple[int, ...] | None] = {}
        """Shapes of values that are not all known, ``OPEN_SIZE`` where a size is not; None where
        not even the number of dimensions is."""
        self.structured: set[str] = set()
        """Values that are sequences, optional values or maps of tensors."""
        self.opset = opset_of(model) or 1
        self._opsets = list(model.opset_import)
        self._name = graph.name
        self._ir_version = model.ir_version
        self._fresh = 0
        self._taken = {v for op in self.ops for v in (*op.inputs, *op.outputs)}
        self._taken |= {*self.constants.tensors, *(i.name for i in self.inputs)}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Return names of the values that leave the graph, which no rewrite changes."""
        return frozenset(o.name for o in self.outputs)

    def uses(self) -> Counter[str]:
        """Return how often each value is read, graph outputs counted."""
        counts = Counter(v for op in self.ops for v in op.inputs if v)
        counts.update(o.name for o in self.outputs)
        return counts

    def fresh(self, hint: str) -> str:
        """Return a value name nothing else has."""
        name = hint
        while name in self._taken:
            self._fresh += 1
            name = f"{hint}_{self._fresh}"
        self._taken.add(name)
        return name

    def constant(self, hint: str, values: np.ndarray) -> str:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        self.constants[name] = values
        return name

    def shape(self, value: str) -> tuple[int, ...] | None:
        """Return the value's shape where all of it is known."""
        if value in self.constants:
            return tuple(self.constants.tensors[value].dims)
        return self.types.get(value, (0, None))[1]

    def element_type(self, value: str) -> int:
        """Return the ONNX element type; 0 when it is unknown."""
        if value in self.constants:
            return self.constants.tensors[value].data_type
        return self.types.get(value, (0, None))[0]

    def to_model(self, *, skeleton: bool = False) -> ModelProto:
        """Return the draft as an ONNX model.

        A skeleton holds big weights as inputs (for shape inference).
        """
        model = ModelProto()
        # Runtimes refuse a newer format version than they know, needed or not.
        model.ir_version = min(max(self._ir_version, 8), 10)
        model.producer_name = "collage"
        model.opset_import.extend(self._opsets)
        graph = model.graph
        graph.name = self._name or "model"
        graph.node.extend(op.to_proto() for op in self.ops)
        seen: set[str] = set()
        copies: dict[str, count[int]] = {}
        for node in graph.node:  # ONNX Runtime wants every node's name to differ.
            if node.name in seen:
                numbers = copies.setdefault(node.name, count(2))
                node.name = next(n for n in (f"{node.name}__{i}" for i in numbers) if n not in seen)
            seen.add(node.name)
        graph.input.extend(self.inputs)
        graph.output.extend(self.outputs)
        for name, tensor in self.constants.tensors.items():
            if skeleton and math.prod(tensor.dims) > 64:
                graph.input.append(
                    helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
                )
            else:
                graph.initializer.append(tensor)
        return model
