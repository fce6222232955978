"""What can be chosen for a target: toolchains, precisions; and looking into whole covers."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_gui.panels.run_settings import PrecisionChoice
from collage_gui.panels.toolchain_list import ToolchainList
from collage_gui.preferences import Preferences
from collage_gui.welcome import WelcomePage
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
    page = WelcomePage(preferences)
    qtbot.addWidget(page)
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


def test_target_precision_and_whole_covers_are_part_of_the_settings_and_come_back(opened) -> None:
    _, page = opened
    panel = page.panels.run_settings
    page.show_toolchains(STATES)
    assert panel.settings().in_place and panel.in_place.isChecked()
    panel.target.setText("cuda:sm_80")
    panel.precision.choose("tf32")
    panel.in_place.setChecked(False)
    panel.unchecked.setChecked(True)
    panel.strict_nan.setChecked(True)
    panel.target.setText("cuda:sm_9")  # on the way to another one
    wanted = panel.settings()
    assert (wanted.precision, wanted.in_place, wanted.unchecked) == ("tf32", False, True)
    assert wanted.strict_nan
    assert wanted.toolchains == ("tvm", "cublas", "openvino")
    saved = msgspec.to_builtins(wanted)  # as a run of the session holds it
    page.document.execution.settings = RunSettings()
    page.document.execution.settings_restored.emit()
    assert panel.settings().in_place and panel.settings().precision == "float32"
    assert not panel.settings().unchecked and not panel.settings().strict_nan
    assert "onednn" in panel.settings().toolchains
    page.document.execution.settings = msgspec.convert(saved, RunSettings)
    page.document.execution.settings_restored.emit()
    assert panel.settings() == wanted
    panel.target.setText("")
    panel.target.editingFinished.emit()
    assert panel.settings().target == "cpu" and "cublas" not in panel.settings().toolchains
