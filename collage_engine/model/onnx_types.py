"""Translates between types of ONNX and of the records, and finds nodes by names of values."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.records.graph import OPEN_SIZE, TensorType
from collage_engine.support.errors import ModelError

_ELEMENT_NAMES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float8_e8m0fnu": "FLOAT8E8M0",
    "float4_e2m1fn": "FLOAT4E2M1",
}


def element_type(dtype: str) -> int:
    """Return the ONNX element type of a record's type name."""
    name = _ELEMENT_NAMES.get(dtype, dtype.replace("_", "").upper())
    return int(TensorProto.DataType.Value(name))


def dtype_name(element: int) -> str:
    """Return the record's type name of an ONNX element type; the inverse of ``element_type``."""
    names = {getattr(TensorProto, name): dtype for dtype, name in _ELEMENT_NAMES.items()}
    return names.get(element) or TensorProto.DataType.Name(element).lower()


def opset_of(model: ModelProto) -> int | None:
    """Return the version of the standard's operator set that a model imports; None: it does not."""
    return next((o.version for o in model.opset_import if not o.domain), None)


def value_info(name: str, kind: TensorType) -> ValueInfoProto:
    """Return the ONNX description of a value with this name and type."""
    shape = [None if extent == OPEN_SIZE else extent for extent in kind.shape]
    return helper.make_tensor_value_info(
        name, element_type(kind.dtype), None if kind.any_rank else shape
    )


class OnnxIndex:
    """Producers and weights of a model by name."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.producer = {o: place for place, node in enumerate(self.nodes) for o in node.output}
        self.initializer: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}

    def walk(
        self, stop: Collection[str], values: Iterable[str]
    ) -> tuple[list[NodeProto], list[str]]:
        """Return the nodes (in model order) and weights that make the values.

        The walk ends at the values in ``stop``.
        """
        made: set[int] = set()
        weights: dict[str, None] = {}
        stack = list(values)
        while stack:
            value = stack.pop()
            if not value or value in stop:
                continue
            if value in self.initializer:
                weights[value] = None
                continue
            place = self.producer.get(value)
            if place is None:
                raise ModelError(
                    f"the sub-graph also needs '{value}', which is not among its inputs"
                )
            if place not in made:
                made.add(place)
                node = self.nodes[place]
                stack += [*node.input, *outer_values(node)]
        return [self.nodes[place] for place in sorted(made)], list(weights)
