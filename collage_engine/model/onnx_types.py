"""Translates between ONNX's types of values and the records' tensor types."""

from __future__ import annotations

from onnx import TensorProto, ValueInfoProto, helper

from collage_engine.records.graph import OPEN_SIZE, TensorType

_ELEMENT_NAMES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float8_e8m0fnu": "FLOAT8E8M0",
    "float4_e2m1fn": "FLOAT4E2M1",
}


def element_type(dtype: str) -> int:
    """Returns the ONNX element type of a record's type name."""
    name = _ELEMENT_NAMES.get(dtype, dtype.replace("_", "").upper())
    return int(TensorProto.DataType.Value(name))


def dtype_name(element: int) -> str:
    """Return the record's type name of an ONNX element type; the inverse of ``element_type``."""
    known = {getattr(TensorProto, name): dtype for dtype, name in _ELEMENT_NAMES.items()}
    return known.get(element) or TensorProto.DataType.Name(element).lower()


def value_info(name: str, kind: TensorType) -> ValueInfoProto:
    """Return the ONNX description of a value with this name and type."""
    shape = [None if extent == OPEN_SIZE else extent for extent in kind.shape]
    return helper.make_tensor_value_info(
        name, element_type(kind.dtype), None if kind.any_rank else shape
    )
