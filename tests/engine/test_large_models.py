"""Models whose weights stay in their files: opened, placed, confirmed, exported and run.

A small decoder stands for a large one: the number of bytes from which on weights are mapped is
lowered for all processes of a run. ``COLLAGE_LONG_TESTS=1`` does the decoder of 3.2 GB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_engine.api import open_model
from collage_engine.lowering.reference import original_outputs
from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.lowering.rounding_noise import rounding_noise
from collage_engine.model.importer import import_model
from collage_engine.model.onnx_external import (
    VARIABLE,
    is_mapped,
    mapped_array,
    place_of,
    with_own_weights,
)
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.toolchains.runtime import weight_files
from tests.support.artifact_cases import compile_loader
from tests.support.large_decoder import write_decoder

LONG = "COLLAGE_LONG_TESTS" in os.environ
LONG_BUDGET_S = 600.0
"""Seconds of a run on the decoder of 3.2 GB; chosen: enough to confirm it on two busy cores."""
SMALL = {"width": 64, "blocks": 1, "words": 300, "tokens": 4}


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, "1")
    return write_decoder(tmp_path / "model", **SMALL)


def mapped_of(path: Path) -> list[str]:
    model = import_model(path, evaluate=evaluate)
    return [tensor.name for tensor in model.onnx.graph.initializer if is_mapped(tensor)]


def test_only_large_models_are_mapped(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(mapped_of(decoder)) == 8  # all but those for normalising, which are in the file
    monkeypatch.delenv(VARIABLE)
    assert mapped_of(decoder) == []


def test_weights_are_where_the_file_has_them(decoder: Path) -> None:
    model = import_model(decoder, evaluate=evaluate)
    data = (decoder.parent / "weights.data").read_bytes()
    shared = 0
    for tensor in model.onnx.graph.initializer:
        if is_mapped(tensor):
            where = place_of(tensor)
            assert mapped_array(tensor).tobytes() == data[where.offset :][: where.length]
    arrays = [mapped_array(t) for t in model.onnx.graph.initializer if is_mapped(t)]
    for constant in model.graph.record.constants:
        values = model.constant(constant.index)
        shared += any(np.shares_memory(values, array) for array in arrays)
    assert shared == 8  # the importer holds no second copy of any of them
    assert with_own_weights(model.onnx).ByteSize() > len(data)


def test_the_cleaned_model_computes_what_the_file_computes(decoder: Path) -> None:
    model = import_model(decoder, evaluate=evaluate)
    inputs = model.random_inputs(3)
    found = evaluate(model.onnx, inputs)[0]
    np.testing.assert_array_equal(found, original_outputs(model, inputs)["scores"])
    noise = rounding_noise(model.onnx, inputs, 1e-4)
    assert noise is not None and 0 < noise[0] < 1e-4


@pytest.mark.parametrize("toolchain", ["onnxruntime", *(["openvino"] if LONG else [])])
def test_placed_exported_and_run(decoder: Path, toolchain: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = place(decoder, out, toolchain, 12.0, threads=1, in_place=False)
    assert run.memory is not None and run.memory.place_peak_bytes
    check_artifact(out, (decoder.parent / "weights.data").stat().st_size)
    check_other_weights_are_not_taken(tmp_path / "moved", compile_loader())


def place(path: Path, out: Path, toolchain: str, budget_s: float, **more: Any) -> Run:
    """Place a model on one toolchain, under more settings, and export it."""
    settings = RunSettings(toolchains=(toolchain,), budget_s=budget_s, **more)
    with open_model(path) as session:
        return session.place(settings, out=out)


def check_artifact(out: Path, weights_bytes: int) -> None:
    """The weights lie beside the module, which is found wherever the folder is."""
    moved = out.with_name("moved")
    shutil.move(out, moved)
    files = json.loads((moved / "manifest.json").read_text())["files"]
    beside = {name: about["bytes"] for name, about in files.items() if name.startswith("weights-")}
    assert sum(beside.values()) >= 0.9 * weights_bytes
    assert files["model.so"]["bytes"] < 1 << 20
    command = [sys.executable, str(moved / "loader" / "run_artifact.py"), str(moved)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "agrees with the sample" in done.stdout


def check_other_weights_are_not_taken(artifact: Path, cpp_loader: Path) -> None:
    """Neither loader looks for weights in another folder, though the environment names one."""
    elsewhere = artifact.with_name("elsewhere")
    elsewhere.mkdir()
    for file in artifact.glob("weights-*"):
        (elsewhere / file.name).write_bytes(bytes(file.stat().st_size))
    environment = {**os.environ, weight_files.VARIABLE: str(elsewhere)}
    python = [sys.executable, str(artifact / "loader" / "run_artifact.py")]
    for command in (python, [str(cpp_loader)]):
        done = subprocess.run(
            [*command, str(artifact)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not LONG, reason="takes 10 GB of disk and ten minutes")
@pytest.mark.timeout(3 * LONG_BUDGET_S)  # writing the model, exporting and loading come on top
@pytest.mark.parametrize("toolchain", ["onnxruntime", "openvino"])
def test_a_decoder_above_two_gigabytes(toolchain: str, tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "model")
    weights = (tmp_path / "model" / "weights.data").stat().st_size
    run = place(path, tmp_path / "out", toolchain, LONG_BUDGET_S)
    assert run.memory is not None and run.memory.place_peak_bytes is not None
    print(f"{toolchain}: {run.memory.place_peak_bytes / 2**30:.2f} GiB, {run.confirmation}")
    assert run.memory.place_peak_bytes < weights + 3e9
    check_artifact(tmp_path / "out", weights)
