"""Limits on what is deployed, and the facts of a run, as a person sets and reads them."""

from __future__ import annotations

from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_gui.document.execution import infeasible_sentence
from collage_gui.panels.toolchain_list import ToolchainList
from tests.gui.conftest import check


def test_limits_are_part_of_the_settings_and_come_back(opened) -> None:
    d, page = opened
    panel = page.panels.run_settings
    assert panel.settings().allow_runtimes == () and panel.settings().max_artifact_bytes == 0
    for action in panel.runtimes.menu().actions():
        if action.data() in ("tvm", "onednn"):
            action.trigger()
    assert panel.runtimes.text() == "TVM, oneDNN"
    panel.most.setValue(2)
    panel.largest.setValue(55.5)
    panel.memory.setValue(700)
    panel.licences.setText("Apache-2.0, MIT,,BSD, MIT")
    panel.tune.setValue(180)
    wanted = panel.settings()
    assert wanted.allow_runtimes == ("tvm", "onednn")
    assert (wanted.max_runtimes, wanted.max_artifact_bytes) == (2, 55_500_000)
    assert wanted.max_memory_bytes == 700_000_000
    assert wanted.licences == ("Apache-2.0", "MIT", "BSD")
    assert wanted.tune_budget_s == 180.0

    d.run(page)
    assert page.document.execution.settings.max_runtimes == 2, "the run was started with them"
    page.document.execution.settings = RunSettings()
    page.document.execution.settings_restored.emit()
    assert panel.settings().licences == () and panel.runtimes.text().startswith("any")
    page.document.execution.settings = wanted
    page.document.execution.settings_restored.emit()
    again = panel.settings()
    sizes = ("max_artifact_bytes", "max_memory_bytes")
    for field in ("allow_runtimes", "max_runtimes", *sizes, "licences"):
        assert getattr(again, field) == getattr(wanted, field), field


def test_a_search_that_finds_nothing_names_what_forbids_it() -> None:
    reason = {"reason": "no placement keeps to at most 1 MB"}
    limited = RunSettings(max_artifact_bytes=10**6)
    assert infeasible_sentence(reason, limited, pinned=False) == (
        "No placement satisfies the limits: no placement keeps to at most 1 MB"
    )
    assert infeasible_sentence(reason, limited, pinned=True).startswith(
        "No placement satisfies the pins and the limits: "
    )


def test_a_toolchain_without_its_device_can_be_asked_to_compile(qtbot) -> None:
    toolchains = ToolchainList()
    qtbot.addWidget(toolchains)
    here = ToolchainState(name="tvm", available=True, version="1")
    builds = ToolchainState(name="cublas", available=False, builds=True, reason="no driver")
    missing = ToolchainState(name="mkl", available=False, reason="not installed", install="pip …")
    toolchains.show_states((missing, builds, here), ())
    assert toolchains.names() == ("tvm",), "only what is here is used unasked"
    check(toolchains, "tvm", "cublas", "mkl")
    assert toolchains.names() == ("tvm", "cublas")
    toolchains.show_states((missing, builds, here), ("cublas",))
    assert toolchains.names() == ("cublas",)
