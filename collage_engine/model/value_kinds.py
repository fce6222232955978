"""Knows which of a model's values have a type, and which have a size that is open."""

from __future__ import annotations

from collections.abc import Collection

from onnx import NodeProto, defs

from collage_engine.model.enclosures import (
    AT_BORDER,
    CARRIED,
    enclose,
    held_constants,
    with_dependent,
)
from collage_engine.model.frontend import OpaqueParts, UnknownType
from collage_engine.model.observed_types import Evaluate, may_never_end, observed_types
from collage_engine.model.onnx_cleanup import CleanModel
from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.model.onnx_types import dtype_name, opset_of
from collage_engine.model.opaque import is_standard
from collage_engine.records.graph import TensorType
from collage_engine.support.errors import ModelError

_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}
"""Operators whose results ONNX infers from their bodies, and often cannot although they have one
size."""


class ValueKinds:
    """Types of a cleaned model's values, which get known step by step."""

    def __init__(self, clean: CleanModel, evaluate: Evaluate) -> None:
        self.types = dict(clean.draft.types)
        """Element type (0: unknown) and shape (None: unknown) by name."""
        self._clean = clean
        self._graph = clean.onnx.graph
        self._evaluate = evaluate
        self._held = held_constants(self._graph)
        self._open: set[str] = set()
        self._observed: str | None = None
        """What the last run that failed said; None before anything was observed."""

    def parts(self, opaque: Collection[str]) -> OpaqueParts:
        """Return what is to become opaque operators; orders the model's nodes accordingly.

        Args:
            opaque: First outputs of nodes that are not to be converted.
        """
        self._open = with_dependent(self._graph.node, self._open, self.types)
        apart = set(self._clean.draft.structured) | self._open
        apart |= {n for n, (e, _) in self.types.items() if e and e not in CARRIED}
        enclosures = enclose(self._graph, apart)
        return OpaqueParts(
            nodes={*opaque, *self._alone(apart)},
            enclosures=enclosures,
            held=self._held,
            open_types={name: self._open_type(name) for name in self._open if self._has_type(name)},
        )

    def find_out(self, error: UnknownType) -> None:
        """Find out the type of a value that has none, by running the model or as an open one.

        Raises:
            ModelError: Its type stays unknown.
        """
        value = error.value
        if value in self._open:
            raise self._refusal(error)
        if self._depends_on_data(error.node, value):
            self._open.add(value)
            return
        if self._observed is None:
            kinds, self._observed = observed_types(
                self._clean.onnx, self.types, self._evaluate, self._clean.draft.structured
            )
            self.types |= {
                name: kind
                for name, kind in kinds.items()
                if name not in self._open and name not in self._clean.draft.structured
            }
            if value in kinds:
                return
        nobody_knows = not is_standard(error.node) and self._observed
        if not self._has_type(value) or nobody_knows or may_never_end(error.node):
            raise self._refusal(error)
        self._open.add(value)

    def _refusal(self, error: UnknownType) -> ModelError:
        observed = self._observed or ""
        said = f"; running it says: {observed.rstrip('.')}" if observed else ""
        return ModelError(f"{error}{said}.")

    def _alone(self, apart: Collection[str]) -> set[str]:
        """Return the first outputs of nodes that read or make what is apart, enclosed or not."""
        return {
            next((o for o in node.output if o), "")
            for node in self._graph.node
            if any(v in apart for v in (*node.input, *node.output, *outer_values(node)) if v)
        }

    def _has_type(self, value: str) -> bool:
        return self.types.get(value, (0, None))[0] in AT_BORDER

    def _open_type(self, value: str) -> TensorType:
        element = self.types[value][0]
        shape = self._clean.draft.partial.get(value)
        if shape is None:
            return TensorType((), dtype_name(element), any_rank=True)
        return TensorType(shape, dtype_name(element))

    def _depends_on_data(self, node: NodeProto, value: str) -> bool:
        """Tells whether ONNX would have inferred the size of a node's result if it were fixed."""
        if not is_standard(node) or node.op_type in _CONTROL_FLOW:
            return False
        try:
            schema = defs.get_schema(node.op_type, opset_of(self._clean.onnx) or 1, "")
        except defs.SchemaError:
            return False
        if not schema.has_type_and_shape_inference_function or not self._has_type(value):
            return False
        known = {t.name for t in self._graph.initializer}
        return all(
            v in known or self.types.get(v, (0, None))[1] is not None for v in node.input if v
        )
