"""Reads what trtexec writes of layers with ``--exportProfile`` and ``--exportLayerInfo``."""

from __future__ import annotations

import re
from typing import Any

from collage_engine.records.placement import Layer, Profile

ONNX_NAME = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
INSERTED = ("Reformatting CopyNode", "Reformat")


def read_profile(data: Any) -> Profile | None:
    """Return the layers of a file of trtexec; None: it is none."""
    found = data.get("Layers") if isinstance(data, dict) else data
    if not isinstance(found, list):
        return None
    layers = [
        _layer(each)
        for each in found
        if isinstance(each, dict) and ("Name" in each or "averageMs" in each)
    ]
    return Profile(toolchain="tensorrt", layers=tuple(layers)) if layers else None


def _layer(about: dict[str, Any]) -> Layer:
    name = str(about.get("Name", about.get("name", "")))
    took = about.get("medianMs", about.get("averageMs"))
    # "conv1 + PWN(relu1)", "{ForeignNode[a...b]}"; metadata name every node
    names = ONNX_NAME.findall(str(about.get("Metadata", "")))
    for part in () if names else re.split(r" \+ |\.\.\.|\|\|", name):
        names.append(re.sub(r"^(\{ForeignNode\[|\w+\()|[)\]}]+$", "", part.strip()))
    kind = str(about.get("LayerType", "layer"))
    inserted = name.startswith(INSERTED) or kind == "Reformat"
    return Layer(
        name=name,
        kind="Reformat" if inserted else kind,
        us=float(took) * 1e3 if took is not None else None,
        nodes=() if inserted else tuple(dict.fromkeys(names)),
        absorbs="before" if "ForeignNode" in name else "nothing",
        kernel=str(about.get("TacticName", "")),
    )
