"""One session, every face: desktop, report and command line show the same figures."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest

from collage_engine.cli import output
from collage_engine.cli import print_run as cli
from collage_engine.drawing.report import render
from collage_engine.records.placement import (
    MemorySeen,
    MemoryUse,
    Run,
    Unmeasured,
)
from collage_engine.store.document import Document
from collage_engine.wording import figures
from collage_engine.wording.amounts import bytes_text, gain_text, signed_time, time_text
from collage_engine.wording.figures import winner_title
from collage_engine.wording.latencies import latency_rows
from collage_engine.wording.layers import compare_runs
from collage_gui.document.runs import Reference
from tests.support.recorded import recorded

MIX_US = 33.0
"""What the best placement of the search takes: more than the baseline that is exported."""
FASTER_US = 29.0
"""What a second run takes: less than the first one."""


@pytest.fixture
def session() -> Document:
    """The recorded session, as if its run had exported a baseline although it found a mix."""
    known = recorded("small")
    run = msgspec.convert(msgspec.to_builtins(known.runs[0]), Run)
    assert run.placement is not None
    first, *rest = run.placement.partitions
    moved = msgspec.structs.replace(first, candidate="another")
    mix = msgspec.structs.replace(run.placement, measured_us=MIX_US, partitions=(moved, *rest))
    run = msgspec.structs.replace(
        run,
        winner=run.baselines[0].name,
        tied=[],
        rivals=[mix],
        costs={c.id: c.cost for c in known.candidates},
        placement=msgspec.structs.replace(run.placement, measured_us=run.baselines[0].measured_us),
    )
    return Document(
        model=known.model, graph=known.graph, candidates=list(known.candidates), runs=[run]
    )


def shown_in_a_window(drive, *runs: Run):
    """A page that has these runs and shows the last one."""
    page = drive().open()
    page.document.runs._take(runs)
    page.document.runs.show(runs[-1].id)
    return page


def test_the_figures_of_a_run_are_the_same_on_every_face(drive, session, capsys) -> None:
    memory = MemoryUse(
        seen=MemorySeen(peak_bytes=10**8, base_bytes=10**7),
        weights_bytes=3 * 10**6,
        artifact_bytes=7 * 10**6,
    )
    run = msgspec.structs.replace(session.runs[0], memory=memory, max_rel_error=3e-6)
    session.runs[0] = run
    html = render(session, "html", run).decode()
    cli.print_run(run)
    printed = capsys.readouterr().out
    page = shown_in_a_window(drive, run)
    panel, placement = page.panels.runs, run.placement
    facts = panel.facts.model
    shown = " ".join(
        [page.answer.text.text(), panel.remark.text(), panel.detail.text()]
        + [facts.index(row, 2).data() for row in range(facts.rowCount())]
    )
    figures_of_it = [time_text(placement.measured_us), time_text(placement.estimated_us), "3.0e-06"]
    figures_of_it += [bytes_text(memory.weights_bytes), bytes_text(memory.artifact_bytes)]
    for face in (html, printed, shown):
        for figure in (*figures_of_it, winner_title(run)):
            assert figure in face
        for row in latency_rows(run) if face is not shown else ():
            assert row.us is None or (time_text(row.us) in face and row.name in face)
    table = csv.DictReader(io.StringIO(render(session, "latencies", run).decode()))
    for row, line in zip(latency_rows(run), table, strict=True):
        assert line["placement"] == row.name
        if row.us is not None:
            assert float(line["measured_us"]) == row.us
            slower = 100 * (row.us / placement.measured_us - 1)
            assert row.chosen or float(line["against_chosen_percent"]) == pytest.approx(slower)
    bars = {bar.key: bar for bar in panel.chart.bars}
    for baseline in run.baselines:
        won = baseline.name == run.winner
        key = f"run:{run.id}" if won else f"baseline:{baseline.name}"
        assert bars[key].value == baseline.measured_us
        assert not won or f"baseline:{baseline.name}" not in bars, "one placement, one bar"
    best = bars[f"found:{run.id}"]
    reference = next(b for b in run.baselines if b.name == "tvm").measured_us
    assert best.value == MIX_US and best.note.startswith(gain_text(MIX_US, reference))
    assert "TVM only" in panel.against.text(), "all bars are against one reference"


@pytest.mark.parametrize("together", [True, False])
def test_two_runs_differ_by_the_same_on_every_face(drive, session, capsys, together) -> None:
    """Without common rounds there is no percentage on any of them."""
    before = session.runs[0]
    first, *rest = before.placement.partitions
    moved = msgspec.structs.replace(first, toolchain="openblas", candidate="elsewhere")
    placement = msgspec.structs.replace(
        before.placement, measured_us=FASTER_US, partitions=(moved, *rest)
    )
    rivals = [before.placement] if together else []
    after = msgspec.structs.replace(
        before, id="run-2", name="again", placement=placement, rivals=rivals
    )
    session.runs.append(after)
    difference = compare_runs(before, after, session.graph)
    output.print_comparison(difference, before, after, session)
    printed = capsys.readouterr().out
    html = render(session, "html", before).decode()
    page = shown_in_a_window(drive, before, after)
    page.document.comparison.set_reference(Reference("run", before.id))
    panel = page.panels.runs
    note, answer = panel.changes.note.text(), page.answer.text.text()
    gain = gain_text(FASTER_US, before.placement.measured_us).strip("+−")
    if together:
        assert gain in html and gain in answer
        assert f"{first.node_count} moved" in note and f"{first.node_count} node" in printed
        for face in (printed, note):
            assert signed_time(FASTER_US - before.placement.measured_us) in face
        return
    column = [c.title for c in panel.all_runs.model.columns].index("Against shown")
    faces = [printed, html, note, answer]
    faces += [panel.all_runs.model.index(row, column).data() for row in range(2)]
    faces += [bar.note for bar in panel.chart.bars if bar.key.startswith("run:")]
    assert not any(gain in face for face in faces), faces
    assert sum(figures.NOT_TOGETHER in face for face in faces) == 5, faces


def test_the_best_mix_is_a_bar_and_a_view_when_a_baseline_won(drive, session) -> None:
    run = session.runs[0]
    page = shown_in_a_window(drive, run)
    assert "The best mix that was timed" in page.panels.runs.remark.text()
    page.panels.runs.chart.chosen.emit(f"found:{run.id}")
    shown = page.document.placement.shown
    assert shown.found_by == run.id and not shown.estimated
    assert time_text(MIX_US) in page.answer.text.text()
    assert figures.why_not_found(run) in render(session, "html", run).decode()


def test_a_part_of_a_sum_is_no_sum(session) -> None:
    placement = session.runs[0].placement
    assert "add up to" in figures.partition_sum_text(placement)
    first, *rest = placement.partitions
    unknown = msgspec.structs.replace(first, estimated_us=None)
    part = msgspec.structs.replace(placement, partitions=(unknown, *rest))
    count = len(placement.partitions)
    assert figures.partition_sum_text(part) == f"{count - 1} of {count} partitions have a cost"
    none = [msgspec.structs.replace(p, estimated_us=None) for p in placement.partitions]
    part = msgspec.structs.replace(placement, partitions=tuple(none))
    assert part.measured_us is not None
    assert figures.partition_sum_text(part) == "", "timed as a whole before any of its partitions"
    untimed = msgspec.structs.replace(part, measured_us=None)
    assert figures.partition_sum_text(untimed).startswith("0 of ")
    unexpected = msgspec.structs.replace(part, estimated_us=None, additive_error_us=None)
    assert figures.estimate_text(unexpected) == ""


def test_what_a_baseline_is_does_not_stand_there_as_found_by_the_search(session) -> None:
    run = session.runs[0]
    mix = run.best_found()
    assert mix is run.rivals[0] and "The best mix that was timed" in figures.why_not_found(run)
    other = next(b for b in run.baselines if b.name not in (run.winner, "tvm"))
    alone = msgspec.structs.replace(run.rivals[0].partitions[0], candidate="a whole model")
    whole = msgspec.structs.replace(run.rivals[0], partitions=(alone,))
    known = [
        msgspec.structs.replace(b, candidates=("a whole model",)) if b is other else b
        for b in run.baselines
    ]
    both = msgspec.structs.replace(run, rivals=[whole, mix], baselines=known)
    assert both.best_found() is mix, "a toolchain alone has a bar of its own"
    (collage,) = [row for row in latency_rows(both) if row.name == "Collage"]
    assert collage.us == mix.measured_us, "the tables of command line and report have it, too"
    only = msgspec.structs.replace(run, rivals=[whole], baselines=known)
    assert only.best_found() is None
    untimed = Unmeasured(candidates=0, share=0.0, contenders=1)
    for left, said in ((None, "The search found no other"), (untimed, "No other placement of")):
        told = msgspec.structs.replace(only, unmeasured=left)
        assert figures.why_not_found(told).startswith(said)


def test_all_runs_stand_side_by_side_with_the_drift_of_the_machine(drive, session) -> None:
    before = session.runs[0]
    slower = [
        msgspec.structs.replace(b, measured_us=b.measured_us * 1.04) if b.measured_us else b
        for b in before.baselines
    ]
    after = msgspec.structs.replace(before, id="run-2", name="again", baselines=slower)
    page = shown_in_a_window(drive, after, before)
    model = page.panels.runs.all_runs.model
    row = next(place for place in range(2) if model.index(place, 0).data() == "again")
    cells_of = {
        column.title: model.index(row, at).data() for at, column in enumerate(model.columns)
    }
    assert cells_of["Drift"] == "+4.0" and cells_of["Against shown"] == "the same placement"
