"""``place --precision bf16`` under a tolerance that forbids a part of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.records.precision import in_precision
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from collage_engine.toolchains.runtime.toolchain import has_bfloat16
from tests.support.caches import fresh_cache
from tests.support.command import collage
from tests.support.toolchain_cases import Net, error, imported, reference, run, whole

pytestmark = pytest.mark.skipif(not has_bfloat16(), reason="the processor has no bfloat16 products")


def network() -> onnx.ModelProto:
    """Convolutions that carry errors to the result unequally far."""
    net = Net(seed=3)
    y = net.input(1, 32, 28, 28)
    for _ in range(4):
        w = net.randn(32, 32, 3, 3, scale=0.08)
        y = net.add("Relu", net.add("Conv", y, w, net.randn(32, scale=0.1), pads=[1] * 4))
    y = net.add("Conv", y, net.randn(16, 32, 1, 1, scale=0.2), net.randn(16))
    y = net.add("GlobalAveragePool", y)
    return net.model(y)


@pytest.fixture(scope="module")
def placed(tmp_path_factory) -> tuple[dict, Path, float, Path]:
    folder = tmp_path_factory.mktemp("bf16")
    path = folder / "net.onnx"
    onnx.save(network(), path)
    model = imported(network())
    toolchain = OneDnnToolchain()
    assert toolchain.probe().available
    function = whole(model, in_precision(ToolchainInstance(toolchain="onednn"), "bfloat16"))
    feeds = model.random_inputs(0)
    (result,) = run(toolchain.compile(function), function, feeds)
    alone = error(result, reference(network(), function, feeds)[0])
    tolerance = 0.7 * alone
    done = collage(
        f"place {path} -o {folder / 'out'} --json --precision bf16 "
        f"--tolerance {tolerance:g} --threads 1 --toolchains "
        f"onnxruntime,onednn --session {folder / 's.collage'}",
        cache=fresh_cache(folder / "cache"),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder, tolerance, path


def test_the_tolerance_is_kept_on_every_sample(placed) -> None:
    document, folder, tolerance, path = placed
    about = document["accuracy"]
    assert about["samples"] == 4 and about["tolerance"] == pytest.approx(tolerance, rel=1e-4)
    assert about["max_rel_error"] <= tolerance and document["max_rel_error"] <= tolerance
    # Not by its own word alone: the artifact, on inputs it has seen and on one it has not.
    import onnxruntime
    import tvm

    model = imported(onnx.load(path))
    main = tvm.relax.VirtualMachine(
        tvm.runtime.load_module(str(folder / "out" / "model.so")), tvm.cpu()
    )["main"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for seed in range(4):
        feeds = model.random_inputs(seed)
        (truth,) = session.run(None, feeds)
        result = main(tvm.runtime.tensor(feeds["x0"])).numpy()
        assert error(result, truth) <= tolerance * 1.01  # float32 of another session
        assert np.isfinite(result).all()


def test_what_breaks_the_tolerance_is_listed_and_did_not_win(placed) -> None:
    document, _, tolerance, _ = placed
    narrow = next(b for b in document["baselines"] if b["name"] == "onednn[precision=bf16]")
    assert narrow["reduced"] and narrow["measured_us"] is None
    assert narrow["max_rel_error"] > tolerance and "not accurate enough" in narrow["reason"]
    products = document["accuracy"]["products"]
    rounded = [p for p in products if p.get("rounded")]
    assert len(products) == 5 and 0 < len(rounded) < 5
    tried = document["accuracy"]["tried"]
    assert any(t["max_rel_error"] <= tolerance and not t.get("reason") for t in tried)
    assert "precision" in document["seconds"]
    full = next(b for b in document["baselines"] if b["name"] == "onednn")
    assert not full["reduced"] and full["measured_us"] is not None
    for part in document["placement"]["partitions"]:
        assert part["precision"] in ("float32", "bfloat16")
        assert (part["precision"] == "bfloat16") == (part["config"].get("precision") == "bf16")
        assert part["max_rel_error"] is None or part["max_rel_error"] <= 2e-2
