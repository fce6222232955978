"""Limits on what is deployed, and the facts of a run, as a person sets and reads them."""

from __future__ import annotations

import msgspec

from collage_engine.records.accuracy import Accuracy
from collage_engine.records.memory import MemorySeen, MemoryUse
from collage_engine.records.pin import LimitVerdict
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_gui.document.comparison import Reference
from collage_gui.document.execution import infeasible_sentence
from collage_gui.panels.run_pages import FactsPage
from collage_gui.panels.toolchain_list import ToolchainList


def _texts(page: FactsPage) -> dict[tuple[str, str], list[str]]:
    found = {}
    for row in range(page.model.rowCount()):
        group, name, *values = (page.model.index(row, at).data() for at in range(4))
        found[group, name] = values[: 1 if page.table.isColumnHidden(3) else 2]
    return found


def test_limits_are_part_of_the_settings_and_come_back(drive) -> None:
    d = drive()
    page = d.open()
    panel = page.panels.run_settings
    assert panel.settings().allow_runtimes == () and panel.settings().max_artifact_bytes == 0
    for action in panel.runtimes.menu().actions():
        if action.data() in ("tvm", "onednn"):
            action.trigger()
    panel.most.setValue(2)
    panel.largest.setValue(55.5)
    panel.memory.setValue(700)
    panel.licences.setText("Apache-2.0, MIT,,BSD, MIT")
    panel.tune.setValue(180)
    panel.measure.setCurrentIndex(1)
    wanted = panel.settings()
    assert set(wanted.allow_runtimes) == {"tvm", "onednn"}
    assert (wanted.max_runtimes, wanted.max_artifact_bytes) == (2, 55_500_000)
    assert wanted.max_memory_bytes == 700_000_000
    assert wanted.licences == ("Apache-2.0", "MIT", "BSD")
    assert (wanted.tune_budget_s, wanted.measure) == (180.0, "all")
    assert "TVM" in panel.runtimes.text() and "oneDNN" in panel.runtimes.text()

    d.run(page)
    assert page.document.execution.settings.max_runtimes == 2, "the run was started with them"
    page.document.execution.settings = RunSettings()
    page.document.execution.settings_restored.emit()
    assert panel.settings().licences == () and panel.runtimes.text().startswith("any")
    page.document.execution.settings = wanted
    page.document.execution.settings_restored.emit()
    again = panel.settings()
    sizes = ("max_artifact_bytes", "max_memory_bytes")
    for field in ("allow_runtimes", "max_runtimes", *sizes, "licences", "measure"):
        assert getattr(again, field) == getattr(wanted, field), field


def test_facts_of_a_run_and_of_the_one_it_is_compared_with(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    d.run(page)
    document = page.document
    first, second = document.runs.all
    second.limits = [
        LimitVerdict(
            constraint="max_runtimes",
            text="at most 1 runtime",
            state="honoured",
            price_us=11.0,
            reason="costs 11 µs (2.0 %)",
        )
    ]
    second.memory = MemoryUse(seen=MemorySeen(load_peak_bytes=3 << 20, run_peak_bytes=2 << 20))
    second.accuracy = Accuracy(precision="bfloat16", tolerance=0.01, samples=4, max_rel_error=2e-3)
    document.runs.show(second.id)
    found = _texts(page.panels.runs.facts)
    assert found["Limits", "at most 1 runtime"] == ["honoured, costs 11 µs (2.0 %)"]
    assert found["Memory", "largest while loading"] == ["3.00 MiB"]
    assert found["Accuracy", "tolerance"] == ["0.01, kept on 4 sets of inputs"]
    document.comparison.set_reference(Reference("run", first.id))
    found = _texts(page.panels.runs.facts)
    assert found["Memory", "largest while loading"] == ["3.00 MiB", "–"]
    assert len(found["Candidates", "found"]) == 2


def test_partitions_tell_configuration_precision_and_formats(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    table = page.panels.partitions.table
    titles = [column.title for column in page.panels.partitions.model.columns]
    precision, formats = titles.index("Precision"), titles.index("Formats")
    assert table.isColumnHidden(precision) and table.isColumnHidden(formats)
    shown = page.document.placement.shown
    first, *rest = shown.placement.partitions
    first = msgspec.structs.replace(
        first, config={"tuned": "yes"}, precision="bfloat16", max_rel_error=2e-3, gives={0: "nhwc"}
    )
    placement = msgspec.structs.replace(shown.placement, partitions=(first, *rest))
    page.document.show_placement(placement, "changed")
    assert not table.isColumnHidden(precision) and not table.isColumnHidden(formats)
    model = page.panels.partitions.model
    row = model.place_of(lambda r: r.id == first.id)
    cells = [model.index(row, at).data() for at in (0, precision, formats)]
    assert cells[0].endswith("(tuned yes)") and cells[1:] == ["bf16", "output nhwc"]


def test_a_search_that_finds_nothing_names_what_forbids_it() -> None:
    reason = {"reason": "no placement keeps to at most 1 MB"}
    limited = RunSettings(max_artifact_bytes=10**6)
    assert infeasible_sentence(reason, limited, pinned=False) == (
        "No placement satisfies the limits: no placement keeps to at most 1 MB"
    )
    assert infeasible_sentence(reason, limited, pinned=True).startswith(
        "No placement satisfies the pins and the limits: "
    )
    assert infeasible_sentence({"pins": "a=tvm"}, RunSettings(), pinned=True) == (
        "No placement satisfies the pins: pins: a=tvm"
    )


def test_a_toolchain_without_its_device_can_be_asked_to_compile(qtbot) -> None:
    toolchains = ToolchainList()
    qtbot.addWidget(toolchains)
    here = ToolchainState(name="tvm", available=True, version="1")
    builds = ToolchainState(name="cublas", available=False, builds=True, reason="no driver")
    missing = ToolchainState(name="mkl", available=False, reason="not installed", install="pip …")
    toolchains.show_states((missing, builds, here), ())
    assert toolchains.names() == ("tvm",), "only what is here is used unasked"
    assert toolchains.choose(("tvm", "cublas", "mkl")) == ["mkl"]
    assert toolchains.names() == ("tvm", "cublas")
    toolchains.show_states((missing, builds, here), ("cublas",))
    assert toolchains.names() == ("cublas",)
