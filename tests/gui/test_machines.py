"""The machines of a farm: a panel where one is configured, a word in the line of the run."""

from __future__ import annotations

from PySide6.QtWidgets import QTabWidget

from collage_engine.drawing.farm_words import farm_sentence, working_text
from collage_engine.records.farm import FarmMachine, FarmStatus
from collage_gui.panels.tables import Table


def has_tab(page) -> bool:
    panel = page.panels.machines
    tabs = [t for t in page.docks._tabs.values() if t.indexOf(panel) >= 0]
    return len(tabs) == 1 and tabs[0].isTabVisible(tabs[0].indexOf(panel))


def test_there_is_no_machines_panel_without_a_farm(drive) -> None:
    d = drive()
    page = d.open()
    assert not has_tab(page) and page.document.farm.status is None
    page.docks.arrange("column")
    assert not has_tab(page)
    page.docks.arrange("around")


def test_the_panel_shows_machines_pools_queue_and_the_last_error(drive) -> None:
    d = drive()
    page = d.open()
    page.panels.run_settings.farm.setText("tls://10.0.0.1:8786")
    page.panels.run_settings.farm.editingFinished.emit()
    farm, panel = page.document.farm, page.panels.machines
    d.until(lambda: farm.status is not None)
    assert has_tab(page)
    assert panel.summary.text() == (
        "tls://10.0.0.1:8786: 3 machines in 1 pool, 1 measuring. 14 tasks wait for a machine."
    )
    assert panel.error.text() == "gamma was refused: it has another onednn."
    states = {m.name: panel.machines.columns[1].value(m) for m in panel.machines.rows}
    assert states == {
        "alpha": "measuring conv1",
        "beta": "idle",
        "gamma": "refused: its software does not fit",
    }
    assert [p.name for p in panel.pools.rows] == ["zen"]
    assert [p.queued for p in panel.placements.rows] == [14]
    page.docks.reveal("machines")
    table = panel.findChild(Table, "farmPlacements")
    panel.findChild(QTabWidget, "farmTabs").setCurrentWidget(table)
    table.setFixedWidth(340)
    d.until(lambda: table.viewport().width() <= 340)
    d.until(lambda: table.columnViewportPosition(2) + table.columnWidth(2) <= 340)
    assert table.columnWidth(0) >= 90, "model, state and stage are in view"
    assert page.panels.run_settings.settings().farm == "tls://10.0.0.1:8786"
    page.panels.run_settings.farm.setText("")
    page.panels.run_settings.farm.editingFinished.emit()
    assert not has_tab(page) and farm.status is None


def test_a_farm_that_cannot_be_reached_is_said_in_the_panel(drive) -> None:
    d = drive()
    page = d.open()
    page.document.farm.configure("tls://nowhere:1")
    d.until(lambda: page.document.farm.error)
    assert "cannot be reached" in page.panels.machines.error.text()
    assert not page.banner.isVisible()


def test_the_line_of_the_run_says_how_many_machines_work(drive) -> None:
    d = drive("--slow", "0.05", "--model", "resnet")
    page = d.open("resnet50.onnx")
    page.document.farm.configure("tls://10.0.0.1:8786")
    d.until(lambda: page.document.farm.status is not None)
    page.runs.start()
    d.until(lambda: "1 of 3 machines measuring" in page.strip.best.text())
    page.runs.cancel()
    d.until(lambda: not page.document.execution.running)


def test_words_of_a_farm() -> None:
    status = FarmStatus(address="a", machines=(FarmMachine(name="x", state="idle"),), queued=1)
    assert farm_sentence(status).endswith("0 measuring. 1 task waits for a machine.")
    assert working_text(status) == "0 of 1 machine measuring"
