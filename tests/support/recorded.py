"""Recorded sessions for the tests of the desktop and of drawings, and a graph too large for one.

``tests/gui/record.py`` places the models of the sessions with real toolchains.
"""

from __future__ import annotations

import lzma
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from collage_engine.records.answers import InsideAnswer
from collage_engine.records.graph import GraphRecord
from collage_engine.store.document import Document
from collage_engine.store.session_file import load_session
from collage_engine.wording.titles import register_toolchains
from tests.support.graphs import GraphBuilder

DATA = Path(__file__).resolve().parents[1] / "data"
INSIDE = DATA / "inside.json"


@cache
def recorded(name: str) -> Document:
    """Return the document of a session: ``small`` (19 operators) or ``resnet`` (225).

    The mix that the search found for ``resnet`` was tied with TVM alone, which is simpler: here it
    is what the run exports, since it has more to show.
    """
    with tempfile.NamedTemporaryFile(suffix=".collage") as plain:
        plain.write(lzma.decompress((DATA / f"{name}.collage.xz").read_bytes()))
        plain.flush()
        document = load_session(plain.name)
    if name == "resnet":
        (run,) = document.runs
        document.runs = [
            msgspec.structs.replace(run, placement=run.rivals[0], winner="collage", tied=[])
        ]
    register_toolchains(document.toolchains)
    return document


@cache
def recorded_inside() -> InsideAnswer:
    """Return what is inside a candidate of ``small``."""
    return msgspec.json.decode(INSIDE.read_bytes(), type=InsideAnswer)


@cache
def large_graph(layers: int = 225, heads: int = 4) -> GraphRecord:
    """Return transformer blocks with one mask that feeds them all: more than 10,000 operators."""
    b = GraphBuilder((1, 128, 256))
    x = b.parameter("tokens")
    mask = b.call("add", b.parameter("attention_mask"), name="/mask/Add")

    def product(name: str, value: int) -> int:
        return b.call("matmul", value, b.constant((256, 64)), name=f"{name}/MatMul")

    for layer in range(layers):
        at = f"/encoder/layer.{layer}"
        norm = b.call("nn.layer_norm", x, name=at + "/norm1/LayerNorm")
        outs = []
        for head in range(heads):
            here = f"{at}/attention/head.{head}"
            query, key, value = (
                b.call("add", product(f"{here}/{part}", norm), name=f"{here}/{part}/Add")
                for part in "qkv"
            )
            scores = b.call("matmul", query, key, name=f"{here}/scores/MatMul")
            scores = b.call("add", scores, mask, name=f"{here}/scores/Mask")
            scores = b.call("nn.softmax", scores, name=f"{here}/Softmax")
            outs.append(b.call("matmul", scores, value, name=f"{here}/context/MatMul"))
        merged = b.call("reshape", *outs, name=at + "/merge/Reshape")
        x = b.call("add", product(at + "/proj", merged), x, name=at + "/Add1")
        norm = b.call("nn.layer_norm", x, name=at + "/norm2/LayerNorm")
        wide = b.call("nn.gelu", product(at + "/mlp/up", norm), name=at + "/mlp/Gelu")
        x = b.call("add", product(at + "/mlp/down", wide), x, name=at + "/Add2")
    return b.build(x).record
