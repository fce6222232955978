"""What the command line prints: complete names, whole lines, nothing wider than the terminal."""

from __future__ import annotations

import re

import msgspec
import pytest

from collage_engine.cli import output, print_run, screen
from collage_engine.drawing import palette
from collage_engine.drawing.formatting import gain_text, spread_text
from collage_engine.records.answers import Alternative, ExplainAnswer
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.comparison import Comparison, NodeChange
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.operator_titles import NodeTitles
from collage_engine.records.placement import Baseline, CandidateCounts, Partition, Placement, Run
from collage_engine.records.toolchain import ToolchainInstance, ToolchainState
from collage_engine.report.markdown import run_markdown
from tests.support.runs import run_record

BASIC = ToolchainInstance(toolchain="onnxruntime", config=(("level", "basic"),))
PIN = "conv[0]=onnxruntime[level=basic]"


def run() -> Run:
    part = Partition(
        id="p0",
        candidate="c",
        toolchain="onnxruntime",
        config={"level": "basic"},
        nodes=(0, 1),
        onnx_nodes=("a", "b"),
        estimated_us=20.0,
    )
    placement = Placement(
        partitions=(part,),
        estimated_us=30.0,
        measured_us=20.0,
        additive_error_us=-10.0,
        spread_us=(19.0, 23.46),
    )
    long = "greedy onnxruntime → onednn → tvm"
    return run_record(
        model={"nodes": 2},
        placement=placement,
        baselines=[
            Baseline(
                name="onnxruntime[level=basic]",
                kind="whole-model",
                measured_us=22.0,
                spread_us=(21.0, 1999.0),
                estimated_us=12345.0,
            ),
            Baseline(name=long, kind="greedy", measured_us=500.0),
            Baseline(name="onednn", kind="whole-model", reason="oneDNN has no argmax [yet]"),
        ],
        max_abs_error=0.0,
        max_rel_error=1e-7,
    )


def candidate(nodes: tuple[int, ...], cost: Cost, name: str = "c") -> CandidateRecord:
    return CandidateRecord(
        id=name,
        nodes=nodes,
        instance=BASIC,
        label="+".join(["nn.conv2d"] * len(nodes)),
        rule="rule " * 30,
        key=name,
        cost=cost,
    )


def titles(*operators: str) -> NodeTitles:
    """Titles of operators that are nodes of their own."""
    return NodeTitles([Node(index=NodeIndex(0), form="call", op=op) for op in operators])


@pytest.fixture(autouse=True)
def no_titles_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolchains have no titles here, whatever other tests taught the palette."""
    monkeypatch.setattr(palette, "_learned", {})


@pytest.mark.parametrize("width", [80, 90, 120])
def test_the_latency_table_fits_and_keeps_every_name(width):
    text = screen.as_text(print_run.latency_table(run(), width), width)
    lines = text.splitlines()
    assert len(lines) == 4  # header, Collage, two with a time
    assert max(map(len, lines)) <= width
    assert "level=basic only" in text
    assert "onnxruntime → onednn → tvm" in text
    assert ("estimated" in text) == (width >= print_run.NARROW)
    assert lines[1].startswith("→  Collage")


def test_a_run_is_printed_whole_into_a_pipe(capsys):
    print_run.print_run(run())
    said = capsys.readouterr().out
    assert "onnxruntime[level=basic]           1      2" in said
    assert "oneDNN has no argmax [yet]" in said
    assert "measured, it takes 10.0 µs less" in said
    assert "\x1b" not in said
    assert all(line == line.rstrip() for line in said.splitlines())


def test_a_run_that_measured_next_to_nothing_says_so_in_every_text(capsys):
    counts = CandidateCounts(distinct=1980, measured=5, skipped=1975, unreached=1975)
    few = msgspec.structs.replace(run(), candidates=counts)
    says = "Only 5 of 1,980 candidates were measured"
    print_run.print_run(few)
    assert says in capsys.readouterr().out
    assert says in run_markdown(few)


def test_a_tied_row_has_no_percentage(capsys):
    tied = msgspec.structs.replace(run(), tied=["onnxruntime[level=basic]"])
    print_run.print_run(tied)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("=  ")]
    assert "tied" in row and "+" not in row
    verdict, *lines = run_markdown(tied).splitlines()
    (cells,) = [line for line in lines if "level=basic" in line]
    assert "tied" in cells and "+" not in cells and "%" not in verdict


def test_candidates_are_one_line_each_in_a_pipe(capsys):
    output.print_candidates(
        [candidate((0, 1, 2, 5), invalid("too hot"))], titles("nn.conv2d", *["nn.relu"] * 5)
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    cells = ["onnxruntime[level=basic]", "0–2,5", "Conv+Relu+Relu+Relu"]
    assert lines[1].split()[:3] == cells
    assert "invalid" in lines[1]
    assert lines[2] == "1 candidate, 1 distinct, 0 not measured yet"


def test_an_explanation_is_a_table_of_the_best_choice_of_each_toolchain(capsys):
    lines = (
        Alternative(toolchain="tvm", status="chosen", operators="Conv", here_us=3.0),
        Alternative(toolchain="onednn", status="slower", here_us=2.0, whole_us=0.5),
        Alternative(toolchain="onednn[x=1]", status="slower", here_us=9.0, whole_us=9.0),
        Alternative(toolchain="openblas", status="unmeasured", whole_us=4.0, reason="no time"),
        Alternative(toolchain="tvm[y=2]", status="tied", here_us=3.0, whole_us=-0.1),
        Alternative(toolchain="mkl", status="invalid", reason="it crashed [signal 11]"),
    )
    output.print_explanation(ExplainAnswer(words=("A [b] c.",), alternatives=lines))
    said = capsys.readouterr().out
    assert said.startswith("A [b] c.\n")
    rows = [line.split() for line in said.splitlines()[3:8]]
    assert rows[0][:3] == ["→", "tvm", "Conv"]
    assert [row[0] for row in rows[1:]] == ["onednn", "openblas", "tvm", "mkl"]
    assert "9.00" not in said, "of a toolchain the best choice is enough"
    assert "+0.500 µs" in said and "≥ +4.00 µs" in said and "−0.100 µs" in said
    assert "not measured: no time" in said and "cannot run: it crashed [signal 11]" in said


def test_toolchains_say_what_is_missing_and_how_to_get_it(capsys):
    output.print_toolchains(
        [
            ToolchainState(
                name="tvm", available=True, version="1", devices=("cpu",), targets=("cpu", "cuda")
            ),
            ToolchainState(name="x", available=False, reason="no", install="pip install 'x[cpu]'"),
        ]
    )
    said = capsys.readouterr().out
    assert re.search(r"tvm +1 +cpu, cuda +cpu +available", said)
    assert "x is missing: no\n  to use it: pip install 'x[cpu]'\n" in said


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((10.0, 10.0), "difference: none"),
        ((10.0, 11.0), "difference: +1.00 µs (+10.0 %)"),
        ((10.0, 9.0), "difference: −1.00 µs (−10.0 %)"),
    ],
)
def test_comparisons(capsys, times, says):
    nodes = tuple(
        NodeChange(node=n, change="moved" if n < 3 else "regrouped", before="tvm", after="onednn")
        for n in range(5)
    )
    output.print_comparison(
        Comparison(
            a="a",
            b="b",
            measured_us=times,
            delta_us=times[1] - times[0],
            nodes=nodes,
            by_toolchain={"tvm": (2, 1)},
        ),
        ("first", "second"),
    )
    said = capsys.readouterr().out
    assert says in said
    assert "tvm: 2 → 1 partition\n" in said
    assert "3 nodes moved, 2 regrouped\n  tvm → onednn: 0–2\n" in said


def test_numbers():
    assert gain_text(11, 10) == "+10.0 %"
    assert gain_text(9.99999, 10) == "0.0 %"
    assert gain_text(8390, 10) == "×839"
    assert gain_text(None, 10) == gain_text(5, None) == "–"
    assert spread_text((19.0, 23.46), 20.0) == "19.0–23.5"
    assert spread_text((1900.0, 2346.0), 2000.0) == "1.90–2.35"
    assert spread_text(None, 2.0) == ""
