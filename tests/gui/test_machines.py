"""The machines of a farm: a panel where one is configured, a word in the line of the run."""

from __future__ import annotations

import msgspec
from PySide6.QtWidgets import QTabWidget

from collage_engine.drawing.farm_words import (
    farm_sentence,
    machine_state,
    placement_state,
    working_text,
)
from collage_engine.records.cost import Cost
from collage_engine.records.farm import FarmMachine, FarmPlacement, FarmPool, FarmStatus
from collage_gui.panels.cost_text import cost_tip
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
        "tls://10.0.0.1:8786: 3 machines in 1 pool; 1 idle, 1 measuring, 1 refused. "
        "14 tasks wait for a machine."
    )
    assert panel.error.text() == "gamma was refused: it has another onednn."
    states = {m.name: panel.machines.columns[1].value(m) for m in panel.machines.rows}
    assert states == {
        "alpha": "measuring conv1",
        "beta": "idle",
        "gamma": "refused",
    }
    assert [p.name for p in panel.pools.rows] == ["zen"]
    assert [p.queued for p in panel.placements.rows] == [14]
    page.docks.reveal("machines")
    table = panel.findChild(Table, "farmPlacements")
    panel.findChild(QTabWidget, "farmTabs").setCurrentWidget(table)
    table.setFixedWidth(340)
    d.until(lambda: table.viewport().width() <= 340)
    d.until(lambda: table.columnViewportPosition(2) + table.columnWidth(2) <= 340)
    assert table.columnWidth(0) >= 90, "model, state and machine are in view"
    machines = panel.findChild(Table, "farmMachines")
    machines.setFixedWidth(368)
    panel.findChild(QTabWidget, "farmTabs").setCurrentWidget(machines)
    d.until(lambda: machines.viewport().width() <= 368)
    d.until(lambda: machines.columnViewportPosition(2) + machines.columnWidth(2) <= 368)
    assert machines.columnWidth(1) >= 130, "machine, state and pool are in view"
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


def test_a_farm_that_takes_long_to_fail_is_still_said(drive) -> None:
    """A farm that is gone is given up after many seconds: it is not asked again meanwhile."""
    d = drive("--late", "farm.status:0.5")
    page = d.open()
    farm = page.document.farm
    farm._timer.setInterval(50)
    farm.configure("tls://nowhere:1")
    d.until(lambda: farm.error)
    assert "cannot be reached" in page.panels.machines.error.text()
    farm.configure("tls://10.0.0.1:8786")
    assert not farm.error and farm.status is None, "the other farm has said nothing yet"
    d.until(lambda: farm.status is not None)


def test_a_chosen_machine_stays_chosen_while_its_state_changes(drive) -> None:
    d = drive()
    page = d.open()
    farm, panel = page.document.farm, page.panels.machines
    farm.configure("tls://10.0.0.1:8786")
    d.until(lambda: farm.status is not None)
    farm.stop()
    table = panel.findChild(Table, "farmMachines")
    table.show_row(1)
    _, beta, gamma = farm.status.machines
    farm.status = msgspec.structs.replace(
        farm.status, machines=(gamma, msgspec.structs.replace(beta, done=10))
    )
    farm.changed.emit()
    (chosen,) = table.chosen()
    assert chosen.name == "beta" and chosen.done == 10
    farm.status = msgspec.structs.replace(farm.status, machines=(gamma,))
    farm.changed.emit()
    assert not table.chosen() and table.model().rowCount() == 1


def test_the_line_of_the_run_says_how_many_machines_work(drive) -> None:
    d = drive("--slow", "0.05", "--model", "resnet")
    page = d.open("resnet50.onnx")
    page.document.farm.configure("tls://10.0.0.1:8786")
    d.until(lambda: page.document.farm.status is not None)
    page.runs.start()
    d.until(lambda: "1 of 2 machines measuring" in page.strip.best.text())
    page.runs.cancel()
    d.until(lambda: not page.document.execution.running)


def test_words_of_a_farm() -> None:
    joining = (FarmMachine(name="x"), FarmMachine(name="y"))
    assert farm_sentence(FarmStatus(address="a", machines=joining)) == "a: 2 machines; 2 joining."
    assert farm_sentence(FarmStatus(address="a")) == "a: no machine has joined."
    machines = (
        FarmMachine(name="x", state="idle", pool="zen"),
        FarmMachine(name="y", state="lost", pool="zen", reason="it has left the farm"),
    )
    pools = (FarmPool(name="zen", machines=("x", "y")), FarmPool(name="empty"))
    status = FarmStatus(address="a", machines=machines, pools=pools, queued=1)
    assert farm_sentence(status) == (
        "a: 2 machines in 1 pool; 1 idle, 1 lost. 1 task waits for a machine."
    )
    assert working_text(status) == "0 of 1 machine measuring"
    assert [machine_state(one) for one in machines] == ["idle", "lost"]
    for state, stage, text in (
        ("running", "whole-models", "timing whole models"),
        ("running", "", "running"),
        ("finished", "confirm", "finished"),
    ):
        assert placement_state(FarmPlacement(model="m", state=state, stage=stage)) == text


def test_a_pool_of_the_farm_is_chosen_for_a_run(drive) -> None:
    d = drive()
    page = d.open()
    settings, farm = page.panels.run_settings, page.document.farm
    assert settings.pool.isHidden(), "there is no farm"
    settings.farm.setText("tls://10.0.0.1:8786")
    settings.farm.editingFinished.emit()
    d.until(lambda: farm.status is not None)
    listed = [settings.pool.itemText(at) for at in range(settings.pool.count())]
    assert listed == ["the one with the most machines", "zen, 2 machines"]
    assert not settings.pool.isHidden() and settings.settings().pool == ""
    settings.pool.setCurrentIndex(1)
    farm.ask()
    farm.status = msgspec.structs.replace(farm.status, pools=())
    farm.changed.emit()
    assert settings.settings().pool == "zen", "it stays chosen though it has no machine now"
    settings.farm.setText("tls://10.0.0.2:8786")
    settings.farm.editingFinished.emit()
    assert settings.settings().pool == "", "another farm has other pools"
    settings.farm.setText("")
    settings.farm.editingFinished.emit()
    assert settings.pool.isHidden()


def test_a_run_on_a_farm_has_the_toolchains_of_its_pool(drive) -> None:
    """This machine may lack what the pool has, and have what the pool lacks."""
    d = drive()
    page = d.open()
    settings, farm = page.panels.run_settings, page.document.farm
    own = settings.toolchains.names()
    assert {"tvm", "onednn"} <= set(own)
    settings.farm.setText("tls://10.0.0.1:8786")
    settings.farm.editingFinished.emit()
    d.until(lambda: settings.toolchains.names() == ("tvm",))
    listed = [settings.toolchains.item(at).text() for at in range(settings.toolchains.count())]
    assert any("oneDNN\nthe machines of the pool zen have none" in text for text in listed)
    farm.stop()
    (zen,) = farm.status.pools
    other = FarmPool(name="arm", machines=("delta",), toolchains={"tango": "0.3"})
    delta = FarmMachine(name="delta", state="idle", pool="arm")
    farm.status = msgspec.structs.replace(
        farm.status, pools=(zen, other), machines=(*farm.status.machines, delta)
    )
    farm.changed.emit()
    assert settings.toolchains.names() == ("tvm",), "zen has more machines"
    settings.pool.setCurrentIndex(settings.pool.findData("arm"))
    settings.pool.activated.emit(settings.pool.currentIndex())
    assert settings.settings().toolchains == ("tango",) and settings.settings().pool == "arm"
    assert [a.data() or a.text() for a in page.pins.never_on_menu().actions()] == ["tango"]
    settings.farm.setText("")
    settings.farm.editingFinished.emit()
    assert settings.toolchains.names() == own


def test_a_cost_says_which_machine_has_measured_it() -> None:
    cost = Cost(state="measured", median_us=5.0, count=3, measured_at="today", machine="atlas")
    assert "Measured today on atlas" in cost_tip(cost)
