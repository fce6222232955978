"""What runtimes' tools write of layers: read, and aligned with the ONNX nodes of a model."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from collage_engine.drawing.report import render
from collage_engine.records.toolchain import ToolchainState
from collage_engine.run.profile import read_profile
from collage_engine.store.profiles import diagnosis, run_of_profile
from collage_engine.store.session_file import load_session
from collage_engine.support.errors import UsageError
from collage_engine.wording.figures import baseline_drift, why_not_found
from collage_engine.wording.layers import compare_runs
from tests.support.recorded import recorded

SESSION = Path(__file__).parents[1] / "data" / "mnist.collage"
CUDA, HOST = "CUDAExecutionProvider", "CPUExecutionProvider"
FIRST = ("Convolution28", "Plus30", "ReLU32")
SECOND = ("Convolution110", "Plus112", "ReLU114")

ORT = [
    ("ReLU32_Output_0_nchwc", "Conv", CUDA, 10),
    ("ReorderOutput", "ReorderOutput", CUDA, 2),
    ("Pooling66", "MaxPool", CUDA, 4),
    ("fused Convolution110", "FusedConv", HOST, 20),
    ("Pooling160_Output_0_nchwc", "MaxPool", HOST, 3),
    ("Memcpy_token_5", "MemcpyFromHost", CUDA, 1),
    ("Times212_reshape0", "Reshape", CUDA, 1),
    ("Times212/MatMulAddFusion", "Gemm", HOST, 5),
]
"""Name, type, provider and microseconds of the layers of a profile of ONNX Runtime."""


def ort_profile() -> str:
    events: list[dict] = [
        {"cat": "Session", "name": "session_initialization", "dur": 9, "args": {}}
    ]
    for run in (0, 1, 4):
        for name, kind, provider, us in ORT:
            args = {"op_name": kind, "provider": provider}
            event = {"cat": "Node", "name": f"{name}_kernel_time", "dur": us + run, "args": args}
            events.append(event)
        events.append({"cat": "Session", "name": "model_run", "dur": 60 + run, "args": {}})
    return json.dumps(events)


COUNTERS = [
    ("Input3", "NOT_RUN", "Parameter", "unknown_f32", "0.000"),
    ("Input3_f32_abcd_acdb_Convolution28", "EXECUTED", "Reorder", "jit_uni_f32", "0.001"),
    ("Convolution28", "EXECUTED", "Convolution", "brgconv_avx512_f32", "0.010"),
    ("ReLU32", "NOT_RUN", "Relu", "undef", "0.000"),
    ("Pooling66", "EXECUTED", "Pooling", "ref_any_f32", "0.004"),
    ("Convolution110/WithoutBiases", "EXECUTED", "Convolution", "brgconv_avx512_f32", "0.020"),
    ("Pooling160", "EXECUTED", "Pooling", "jit_avx512_f32", "0.003"),
    ("Times212_reshape0", "NOT_RUN", "Reshape", "unknown_f32", "0.000"),
    ("Plus214_Output_0", "EXECUTED", "FullyConnected", "brgemm_avx512_f32", "0.005"),
]
"""The counters of OpenVINO, as benchmark_app writes them."""


def counters_csv(separator: str) -> str:
    head = ["layerName", "execStatus", "layerType", "execType", "realTime (ms)", "cpuTime (ms)"]
    rows = [[*row, row[-1]] for row in COUNTERS]
    total = ["Total", "", "", "", "0.043", "0.043"]
    return "\n".join(separator.join(row) for row in (head, *rows, total)) + "\n\n"


def counters_json() -> str:
    keys = ("name", "status", "node_type", "exec_type", "real_time")
    nodes = [dict(zip(keys, (n, f"Status.{s}", *rest), strict=True)) for n, s, *rest in COUNTERS]
    return json.dumps({"report_type": "average", "avg_performance": {"nodes": nodes}})


TRTEXEC = [
    {"count": 100},
    {"name": "Reformatting CopyNode for Input Tensor 0 to Convolution28", "averageMs": 0.001},
    {"name": "Convolution28 + Plus30 + PWN(ReLU32)", "averageMs": 0.01, "medianMs": 0.009},
    {"name": "Pooling66", "averageMs": 0.004},
    {"name": "{ForeignNode[Convolution110...Plus214]}", "averageMs": 0.03},
]
LAYER_INFO = {
    "Layers": [
        {
            "Name": "conv",
            "LayerType": "CaskConvolution",
            "TacticName": "sm80_xmma",
            "Metadata": "[ONNX Layer: Convolution28]\x1e[ONNX Layer: Plus30]",
        }
    ]
}


@pytest.fixture(scope="module")
def document():
    return load_session(SESSION)


def diagnosed(document, content: str, path: Path):
    path.write_text(content)
    profile = read_profile(path)
    about = ToolchainState(name=profile.toolchain, available=True, title="R")
    run = run_of_profile(document, profile, about)
    covered = sorted(k for part in run.placement.partitions for k in part.nodes)
    assert covered == list(range(len(document.graph.nodes))), "every operator is in one layer"
    return run, diagnosis(document.graph, run, None)


def test_a_profile_of_onnx_runtime_says_what_fell_back(document, tmp_path):
    run, found = diagnosed(document, ort_profile(), tmp_path / "p.json")
    rows = {row.onnx_nodes: (row.us, row.state, row.device) for row in found.nodes}
    assert rows == {
        FIRST: (11, "ran", ""),
        ("Pooling66",): (5, "ran", ""),
        SECOND: (21, "fell back", HOST),
        ("Pooling160",): (4, "fell back", HOST),
        ("Times212_reshape0",): (2, "ran", ""),
        ("Times212", "Plus214"): (6, "fell back", HOST),
    }
    assert [row.us for row in found.nodes] == sorted(
        (us for us, _, _ in rows.values()), reverse=True
    )
    assert {(each.name, each.us) for each in found.inserted} == {
        ("ReorderOutput", 3),
        ("MemcpyFromHost", 2),
    }
    assert found.layers_us == sum(us + 1 for *_, us in ORT) and found.measured_us == 61
    layers = run.placement.layers
    assert sum(one.us for one in layers) == found.layers_us
    assert {one.name for one in layers if one.partition is None} == {
        "ReorderOutput",
        "MemcpyFromHost",
    }
    assert run.placement.measured_us == 61 and run.toolchains[0].title == "R"


@pytest.mark.parametrize("content", [counters_csv(";"), counters_csv(","), counters_json()])
def test_counters_of_openvino_are_read_in_every_form(content, document, tmp_path):
    _, found = diagnosed(document, content, tmp_path / "report")
    rows = {row.onnx_nodes: (row.us, row.state, row.device) for row in found.nodes}
    assert rows.pop(("Pooling66",)) == (pytest.approx(4), "fell back", "ref_any_f32")
    assert rows.pop(("Times212_reshape0",)) == (0, "ran", ""), "in less than a microsecond"
    last = next(names for names in rows if "Plus214" in names)
    assert set(last) >= {"Times212", "Plus214"} and rows.pop(last)[0] == pytest.approx(5)
    assert rows[FIRST][0] == pytest.approx(10) and rows[SECOND][0] == pytest.approx(20)
    assert [(each.name, each.us) for each in found.inserted] == [("Reorder", pytest.approx(1))]


def test_layers_of_trtexec_are_read(document, tmp_path):
    _, found = diagnosed(document, json.dumps(TRTEXEC), tmp_path / "p.json")
    rows = {row.onnx_nodes: row.us for row in found.nodes}
    assert rows[FIRST] == pytest.approx(9) and rows["Pooling66",] == pytest.approx(4)
    (rest,) = (names for names in rows if "Plus214" in names)
    assert {*SECOND, "Pooling160", "Times212", "Plus214"} <= set(rest)
    assert found.inserted[0].us == pytest.approx(1) and found.measured_us is None
    _, found = diagnosed(document, json.dumps(LAYER_INFO), tmp_path / "p.json")
    assert {"Convolution28", "Plus30"} <= set(found.nodes[0].onnx_nodes), "names without times"
    assert found.layers_us is None and all(not row.us for row in found.nodes)


def test_a_profile_beside_a_placement_says_what_it_would_gain(document, tmp_path):
    run, _ = diagnosed(document, ort_profile(), tmp_path / "p.json")
    placed = document.runs[-1]
    found = diagnosis(document.graph, run, placed)
    parts = placed.placement.partitions
    assert {name for row in found.nodes for name in row.placed_on} == {p.instance for p in parts}
    assert found.placement_us == placed.placement.measured_us and found.placement == placed.id
    assert msgspec.convert(msgspec.to_builtins(found), type(found)) == found
    assert baseline_drift(run, placed) is None, "profiling takes time of its own"
    assert not why_not_found(run)
    document.runs.append(run)
    assert document.run("last") is placed and document.run(document.title(run)) is run
    document.runs.remove(run)


def cut(run, *parts: tuple[tuple[int, ...], float | None]):
    """Return a run whose partitions have these operators and take so many microseconds."""
    like = run.placement.partitions[0]
    partitions = tuple(
        msgspec.structs.replace(like, id=f"p{k}", nodes=nodes, in_place_us=us, estimated_us=us)
        for k, (nodes, us) in enumerate(parts)
    )
    placement = msgspec.structs.replace(run.placement, partitions=partitions)
    return msgspec.structs.replace(run, placement=placement)


def test_a_difference_is_of_partitions_and_never_of_a_share_of_one(document, tmp_path):
    profiled, _ = diagnosed(document, ort_profile(), tmp_path / "p.json")
    run, graph = document.runs[-1], document.graph
    rest = tuple(range(4, len(graph.nodes)))
    layers = cut(profiled, ((0,), 10.0), ((1, 2), 20.0), ((3,), 5.0), (rest, 9.0))

    def deltas(*parts):
        rows = diagnosis(graph, layers, cut(run, *parts)).nodes
        return [row.delta_us for row in sorted(rows, key=lambda row: -(row.us or 0.0))]

    whole = deltas(((0, 1, 2, 3, *rest), 44.0))
    assert whole == [None] * 4, "a whole model has no times of layers"
    split = deltas(((0,), 7.0), ((1,), 8.0), ((2,), 9.0), ((3, *rest), 30.0))
    assert split == [-3.0, -3.0, None, None], "the layer (1, 2) is two partitions"
    assert deltas(((0,), None), ((1, 2), 21.0), ((3,), 5.0), (rest, 9.0)) == [1.0, None, 0.0, 0.0]
    changes = compare_runs(layers, cut(run, ((0,), 7.0), ((1, 2), 4.0), ((3, *rest), 1.0)), graph)
    owners = graph.node_of_operator
    together = {k for k in (1, 2) if owners[1] == owners[2]}
    for change in changes.nodes:
        known = {0: -3.0} | dict.fromkeys(together, -16.0)
        assert change.delta_us == known.get(change.node), change


def as_model_explorer_reads_it(text: str, nodes: set[str]) -> dict[str, tuple[float, str]]:
    """Each node's value and colour, by ``NodeDataProviderGraphData`` in Model Explorer's types.ts.

    A key is the id of a node, which its adapter for ONNX takes from the node's name. The least
    value has the colour of stop 0, the greatest that of stop 1, others one in between.
    """
    data = json.loads(text)
    values = {name: result["value"] for name, result in data["results"].items()}
    assert values.keys() <= nodes and all(isinstance(v, int | float) for v in values.values())
    stops = sorted(data["gradient"], key=lambda item: item["stop"])
    assert (stops[0]["stop"], stops[-1]["stop"]) == (0, 1)
    least, most = min(values.values()), max(values.values())
    ends = [[int(stop["bgColor"][k : k + 2], 16) for k in (1, 3, 5)] for stop in stops]
    seen = {}
    for name, value in values.items():
        share = (value - least) / (most - least)
        mixed = (round(a + share * (b - a)) for a, b in zip(ends[0], ends[-1], strict=True))
        seen[name] = value, "#" + "".join(f"{part:02x}" for part in mixed)
    return seen


def test_model_explorer_colours_the_nodes_of_a_run():
    recorded_run = recorded("small").runs[0]
    names = {name for call in recorded("small").graph.nodes for name in call.onnx_nodes}
    seen = as_model_explorer_reads_it(render(recorded("small"), "explorer").decode(), names)
    alone = {p.onnx_nodes[0]: p for p in recorded_run.placement.partitions if p.node_count == 1}
    assert seen.keys() == alone.keys() and len(seen) > 1
    for name, (value, _) in seen.items():
        assert value == pytest.approx(alone[name].in_place_us, abs=1e-3)
    assert len({colour for _, colour in seen.values()}) > 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[1, 2]",
        b"a,b\n1,2\n",
        b"\xff\xfe\x00",
        b'{"Layers": [3]}',
        b"[" * 99999,
    ],
)
def test_a_file_of_another_kind_is_refused(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"other\.json is no"):
        read_profile(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(tmp_path)


def test_a_damaged_profile_is_refused(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(ort_profile().replace('"dur": 10', '"dur": "long"'))
    with pytest.raises(UsageError, match="looks like a profile of ONNX Runtime"):
        read_profile(path)
    path.write_text(counters_csv(";").replace("0.010", "ten"))
    with pytest.raises(UsageError, match="looks like a profile of OpenVINO"):
        read_profile(path)
