"""Writes the user's ONNX file with metadata in its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import helper
from onnx.external_data_helper import uses_external_data

from collage_engine.model.draft import node_name
from collage_engine.model.onnx_external import every_tensor
from collage_engine.model.onnx_file import parse_model, read_bytes
from collage_engine.support.errors import UsageError
from collage_engine.support.files import write_atomically


def write_annotated(path: Path, notes: Mapping[str, Mapping[str, str]], out: Path) -> None:
    """Write a model's file again, with metadata in its nodes; nothing else is changed.

    Args:
        path: The model's file.
        notes: By the node's name its metadata, which replaces what it has under the same keys.
        out: The file to write.

    Raises:
        UsageError: It is the model's file itself; or weights lie beside that, and it is in another
            folder.
    """
    model = parse_model(read_bytes(path), str(path))
    if out.resolve() == path.resolve():
        raise UsageError(f"{out} is the model itself, whose sessions know it as it is")
    beside = any(uses_external_data(tensor) for tensor in every_tensor(model))
    if beside and out.resolve().parent != path.resolve().parent:
        raise UsageError(f"{path} has weights beside it: write {out.name} into the same folder")
    for node in model.graph.node:
        known = {each.key: each.value for each in node.metadata_props}
        helper.set_metadata_props(node, known | dict(notes.get(node_name(node), {})))
    write_atomically(out, model.SerializeToString(deterministic=True))
