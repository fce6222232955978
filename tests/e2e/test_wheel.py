"""The wheel that carries the compiled adapters, in an environment without a compiler."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.bare_environment import ROOT, BareEnvironment


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "COLLAGE_LONG_TESTS" not in os.environ,
    reason="installs a linker of 90 MB: COLLAGE_LONG_TESTS=1",
)
def test_a_model_is_placed_where_no_compiler_is(tmp_path: Path) -> None:
    subprocess.run([ROOT / ".ci" / "build", tmp_path / "dist"], check=True)
    (wheel,) = (tmp_path / "dist").glob("*-manylinux_2_*_x86_64.whl")
    bare = BareEnvironment(tmp_path / "bare", product=wheel)
    python = tmp_path / "bare" / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    subprocess.run([*pip, "ziglang"], check=True)
    environment = {
        "PATH": str(python.parent),
        "CXX": "",
        "COLLAGE_BUILD_DIR": str(tmp_path / "compiled"),
    }
    for name in ("g++", "clang++", "cc", "ld"):
        assert shutil.which(name, path=environment["PATH"]) is None
    model = ROOT / "resources" / "models" / "mnist.onnx"
    place = ("place", model, "-o", "out", "--threads", "1", "--budget", "1m", "--json")
    place += ("--session", "s.collage")
    document = json.loads(bare.collage(*place, **environment))
    print(f"first placement after {document['first_answer_s']:.1f} s")
    available = {each["name"] for each in document["toolchains"] if each["available"]}
    assert available >= {"tvm", "onnxruntime", "onednn", "openvino", "openblas"}
    assert document["max_rel_error"] < 1e-4
    carried = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if "_carried" in name}
    for name in ("cublas", "cudnn"):  # compiled without a device, where its packages are
        if importlib.util.find_spec("nvidia.cu13") is not None:
            assert any(file.startswith(f"libcollage_{name}_") for file in carried)
    libraries = {file.name for file in (tmp_path / "compiled").rglob("libcollage_*.so")}
    assert len(libraries) >= 4 and libraries < carried
    bare.collage("run", "out", **environment)
    bare.collage("export", "s.collage", "--onnxruntime", "out.onnx", **environment)
    assert not bare.opened_in_checkout() - {str(model)}
