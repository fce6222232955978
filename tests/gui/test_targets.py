"""What can be chosen for a target: toolchains, precisions; and looking into whole covers."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_gui.main_window.window import MainWindow
from collage_gui.panels.run_settings import PrecisionChoice, ToolchainList
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme
from tests.gui.conftest import check

STATES = (
    ToolchainState(name="tvm", available=True, version="1", builds=True, targets=("cpu", "cuda")),
    ToolchainState(name="onednn", available=True, version="3", targets=("cpu",)),
    ToolchainState(name="cublas", available=True, version="13", targets=("cuda",)),
    ToolchainState(
        name="cudnn", available=False, builds=True, reason="no driver", targets=("cuda",)
    ),
    ToolchainState(name="openvino", available=True, version="2026"),
)
"""The last one is as an older engine tells it, which names no targets."""


def _item(toolchains: ToolchainList, name: str):
    return next(
        item
        for at in range(toolchains.count())
        if (item := toolchains.item(at)).data(Qt.ItemDataRole.UserRole) == name
    )


def _words(precision: PrecisionChoice) -> list[str]:
    return [precision.itemText(at) for at in range(precision.count())]


def test_the_first_start_counts_the_toolchains_that_are_looked_for(qtbot, tmp_path) -> None:
    preferences = Preferences(str(tmp_path / "settings.ini"))
    window = MainWindow(preferences, Theme(preferences))
    qtbot.addWidget(window)
    page = window.welcome
    assert page.busy.maximum() == 0, "a share is shown before anything is counted"
    page.show_probing(4, 10)
    assert (page.busy.value(), page.busy.maximum()) == (3, 10)
    assert "toolchains: 4 of 10. At the first start" in page.engine.text()
    page.show_probing(3, 10)
    assert page.busy.value() == 3, "two are looked for at a time; the bar went back"
    page.show_engine("here", STATES)
    assert page.busy.isHidden() and "of 10" not in page.engine.text()


def test_only_toolchains_for_the_target_are_of_the_run(qtbot) -> None:
    toolchains = ToolchainList()
    qtbot.addWidget(toolchains)
    toolchains.show_states(STATES, ())
    assert toolchains.names() == ("tvm", "onednn", "openvino")
    assert "only for NVIDIA devices" in _item(toolchains, "cublas").text()
    check(toolchains, "tvm", "cublas")
    assert toolchains.names() == ("tvm",), "the other one cannot be checked"
    toolchains.show_target("cuda")
    assert toolchains.names() == ("tvm", "cublas")
    onednn = _item(toolchains, "onednn")
    assert "only for processors" in onednn.text()
    assert not onednn.flags() & Qt.ItemFlag.ItemIsEnabled
    assert onednn.data(Qt.ItemDataRole.CheckStateRole) is None
    assert _item(toolchains, "cudnn").flags() & Qt.ItemFlag.ItemIsUserCheckable
    _item(toolchains, "cudnn").setCheckState(Qt.CheckState.Checked)
    toolchains.show_target("cpu")
    assert toolchains.names() == ("tvm",), "as they were left"
    toolchains.show_target("cuda")
    assert set(toolchains.names()) == {"tvm", "cublas", "cudnn"}


def test_precisions_of_devices_are_offered_for_devices(qtbot) -> None:
    precision = PrecisionChoice()
    qtbot.addWidget(precision)
    assert _words(precision) == ["float32", "bf16", "int8"]
    precision.choose("bfloat16")
    precision.show_target("cuda")
    assert precision.precision() == "bfloat16"
    assert _words(precision) == ["float32", "tf32", "fp16", "bf16", "int8"]
    precision.choose("float16")
    precision.show_target("cpu")
    assert precision.precision() == "float32", "no toolchain computes in it on a processor"


def test_bfloat16_cannot_be_chosen_where_the_processor_has_none(qtbot) -> None:
    precision = PrecisionChoice()
    qtbot.addWidget(precision)
    without = [msgspec.structs.replace(state, bfloat16=False) for state in STATES]
    precision.show_states(without)
    entry = precision.model().index(_words(precision).index("bf16: not on this processor"), 0)
    assert not precision.model().flags(entry) & Qt.ItemFlag.ItemIsEnabled
    precision.show_target("cuda")
    assert "bf16" in _words(precision), "a device computes in it whatever the processor does"
    precision.show_target("cpu")
    precision.show_states([*without[1:], msgspec.structs.replace(STATES[0], bfloat16=True)])
    assert "bf16" in _words(precision), "one toolchain is enough"


def test_every_setting_is_read_from_the_panel_and_comes_back(opened) -> None:
    _d, page = opened
    panel, execution = page.panels.run_settings, page.document.execution
    page.show_toolchains(STATES)
    plain = panel.settings()
    assert plain.in_place and plain.target == "cpu" and panel.runtimes.text().startswith("any")
    panel.target.setText("cuda:sm_80")
    panel.precision.choose("tf32")
    panel.in_place.setChecked(False)
    for box in (panel.unchecked, panel.strict_nan):
        box.setChecked(True)
    panel.target.setText("cuda:sm_9")  # on the way to another one
    for action in panel.runtimes.menu().actions():
        if action.data() in ("tvm", "onednn"):
            action.trigger()
    assert panel.runtimes.text() == "TVM, oneDNN"
    numbers = {panel.most: 2, panel.largest: 55.5, panel.memory: 700, panel.tune: 180}
    for field, value in (numbers | {panel.threads: 3, panel.tolerance: 1.5}).items():
        field.setValue(value)
    panel.licences.setText("Apache-2.0, MIT,,BSD, MIT")
    wanted = panel.settings()
    expected = RunSettings(
        target=wanted.target,
        precision="tf32",
        in_place=False,
        unchecked=True,
        strict_nan=True,
        toolchains=("tvm", "cublas", "openvino"),
        allow_runtimes=("tvm", "onednn"),
        max_runtimes=2,
        max_artifact_bytes=55_500_000,
        max_memory_bytes=700_000_000,
        licences=("Apache-2.0", "MIT", "BSD"),
        tune_budget_s=180.0,
        threads=3,
        tolerance=0.015,
    )
    assert wanted == expected
    saved = msgspec.to_builtins(wanted)  # as a run of the session holds it
    for settings in (RunSettings(), msgspec.convert(saved, RunSettings)):
        execution.settings = settings
        execution.settings_restored.emit()
        assert panel.settings() == (wanted if settings.threads == 3 else plain)
    panel.target.setText("")
    panel.target.editingFinished.emit()
    assert panel.settings().target == "cpu" and "cublas" not in panel.settings().toolchains
