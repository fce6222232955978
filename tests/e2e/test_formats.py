"""A small convolutional network comes out NHWC from end to end when the costs say so."""

from __future__ import annotations

import json

import onnx
import pytest

from collage_engine.candidates.open_model import OpenModel
from collage_engine.records.cost import Cost
from collage_engine.records.settings import RunSettings
from collage_engine.store.measurement import Measurement
from collage_engine.store.store import Store
from tests.support.caches import fresh_cache
from tests.support.command import collage
from tests.support.toolchain_cases import Net

TOOLCHAINS = ("onednn", "tvm")


def network() -> onnx.ModelProto:
    """conv, depthwise conv, conv, each with ReLU; the last image is an output and is classified."""
    net = Net()
    x = net.input(1, 16, 20, 20)
    for name, groups in (("first", 1), ("depthwise", 16), ("last", 1)):
        weight = net.randn(16, 16 // groups, 3, 3, scale=0.2)
        x = net.add("Conv", x, weight, net.randn(16), pads=[1] * 4, group=groups)
        net.nodes[-1].name = name
        x = net.add("Relu", x)
    pooled = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(x, net.add("Gemm", pooled, net.randn(16, 5)))


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """(document, cache, folder) of a run on stored costs: NHWC is cheap, all else is dear.

    The middle convolution is pinned to a partition of its own, so that there are borders whatever
    a single partition may take on this machine.
    """
    folder = tmp_path_factory.mktemp("formats")
    onnx.save(network(), str(folder / "net.onnx"))
    cache = fresh_cache(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_CACHE_DIR", str(cache))
        workspace = OpenModel(str(folder / "net.onnx"), {})
        menu = workspace.menu(RunSettings(toolchains=TOOLCHAINS, threads=1))
        store = Store()
        for record in sorted(menu.candidates, key=lambda r: bool(r.takes or r.gives)):
            us = 20.0 if record.takes or record.gives else 200.0 * len(record.nodes)
            cost = Cost(state="measured", median_us=us, low_us=us, high_us=us, count=9)
            store.put(Measurement(key=record.key, cost=cost))
        store.close()
        workspace.close()
    done = collage(
        f"place {folder / 'net.onnx'} -o {folder / 'out'} --json --threads 1 "
        f"--toolchains {','.join(TOOLCHAINS)} --session "
        f"{folder / 's.collage'} --pin depthwise=exactly --no-in-place",
        cache=cache,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), cache, folder


def test_images_stay_channels_last_and_the_border_is_converted_once(placed):
    document, _, _ = placed
    placement = document["placement"]
    assert document["winner"] == "collage"
    made = {n: p for p in placement["partitions"] for n in p["nodes"]}
    for part in placement["partitions"]:
        for producer in part["takes"]:
            assert made[int(producer)]["gives"][producer] == "nhwc"
    between = [p for p in placement["partitions"] if "depthwise" in p["onnx_nodes"]]
    assert len(between) == 1
    assert set(between[0]["takes"].values()) == set(between[0]["gives"].values()) == {"nhwc"}
    # Only the image that leaves the model is brought back, once, though it is read inside too.
    (once,) = placement["conversions"]
    assert (once["source"], once["target"]) == ("nhwc", "plain") and once["us"] > 0
    outside = [r["name"] for r in document["residual"]]
    assert any(name.startswith("convert_nhwc_to_plain") for name in outside), outside
    assert document["max_rel_error"] < 1e-4


def test_the_session_keeps_and_tells_the_formats(placed):
    _, cache, folder = placed
    told = collage(f"explain {folder / 's.collage'} depthwise", cache=cache)
    assert told.returncode == 0, told.stderr
    assert "input and output nhwc" in told.stdout
    report = folder / "report.html"
    done = collage(f"report {folder / 's.collage'} -o {report}", cache=cache)
    assert done.returncode == 0, done.stderr
    text = report.read_text()
    assert "input and output nhwc" in text and "converted between partitions" in text


def test_its_artifact_has_plain_borders_and_runs_by_itself(placed):
    _, cache, folder = placed
    done = collage(f"run {folder / 'out'}", cache=cache)
    assert done.returncode == 0, done.stderr
    again = collage(f"export {folder / 's.collage'} -o {folder / 'again'}", cache=cache)
    assert again.returncode == 0, again.stderr
    assert collage(f"run {folder / 'again'}", cache=cache).returncode == 0
