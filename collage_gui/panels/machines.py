"""Shows the machines of a farm, their pools, and the placements that are under way on it."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QTabWidget, QVBoxLayout, QWidget

from collage_engine.drawing.farm_words import (
    UNUSED,
    farm_sentence,
    machine_state,
    placement_state,
)
from collage_gui import words
from collage_gui.document.farm import Farm
from collage_gui.elided_label import plain
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme


class MachinesPanel(QWidget):
    """One line about the farm, its last error, and tables of machines, pools and placements."""

    def __init__(self, farm: Farm, theme: Theme) -> None:
        super().__init__()
        self._farm = farm
        self.setObjectName("machinesPanel")
        self.summary = plain(QLabel(wordWrap=True))
        self.summary.setObjectName("farmSummary")
        self.error = plain(QLabel(wordWrap=True))
        self.error.setObjectName("farmError")
        self.error.setProperty("banner", "warning")
        self.machines = RowsModel(
            [
                Column("Machine", lambda m: m.name, width=84),
                Column(
                    "State",
                    machine_state,
                    width=130,
                    stretches=True,
                    beside=1,
                    tip=lambda m: "; ".join(filter(None, (machine_state(m), m.reason))),
                ),
                Column("Pool", lambda m: m.pool, width=130),
                Column("Done", lambda m: m.done, "number", width=60, about="Finished tasks"),
                Column(
                    "Drift",
                    lambda m: None if m.drift is None else 100 * m.drift,
                    "percent",
                    width=76,
                    about=words.ABOUT_DRIFT_OF_MACHINE,
                ),
                Column("Processor", lambda m: m.processor, width=160),
                Column("Cores", lambda m: m.cores or None, "number", width=60),
                Column("Reason", lambda m: m.reason, width=220),
            ]
        )
        self.machines.faded = lambda m: m.state in UNUSED
        self.pools = RowsModel(
            [
                Column("Pool", lambda p: p.name, width=168),
                Column("Machines", lambda p: ", ".join(p.machines), width=110, stretches=True),
                Column("Processor", lambda p: p.description, width=160),
                Column(
                    "Toolchains",
                    lambda p: ", ".join(f"{n} {v}" for n, v in sorted(p.toolchains.items())),
                    width=200,
                ),
                Column("Reason", lambda p: p.reason, width=220),
            ]
        )
        self.placements = RowsModel(
            [
                Column("Model", lambda p: p.model, width=96),
                Column(
                    "State",
                    placement_state,
                    width=150,
                    stretches=True,
                    beside=1,
                    tip=lambda p: p.reason or placement_state(p),
                ),
                Column(
                    "Machine", lambda p: p.machine, width=90, about=words.ABOUT_MACHINE_OF_A_RUN
                ),
                Column(
                    "Waiting",
                    lambda p: p.queued,
                    "number",
                    width=76,
                    about=words.ABOUT_WAITING_GROUPS,
                ),
                Column(
                    "Measured",
                    lambda p: p.measured,
                    "number",
                    width=82,
                    about=words.ABOUT_MEASURED_GROUPS,
                ),
                Column("Reason", lambda p: p.reason, width=220),
            ]
        )
        tabs = QTabWidget()
        tabs.setObjectName("farmTabs")
        for model, name, title in (
            (self.machines, "farmMachines", "Machines"),
            (self.pools, "farmPools", "Pools"),
            (self.placements, "farmPlacements", "Placements"),
        ):
            tabs.addTab(Table(model, name, title, theme), title)
        box = QVBoxLayout(self)
        box.setContentsMargins(8, 8, 8, 4)
        box.setSpacing(6)
        box.addWidget(self.summary)
        box.addWidget(self.error)
        box.addWidget(tabs, 1)
        farm.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show what the farm said last, and what went wrong."""
        farm, status = self._farm, self._farm.status
        if not farm.address:
            self.summary.setText(words.NO_FARM)
        elif status is None:
            self.summary.setText(words.asking_the_farm(farm.address))
        else:
            self.summary.setText(farm_sentence(status))
        error = farm.error or (status.last_error if status is not None else "")
        # Why a farm does not answer names it already.
        self.summary.setHidden(bool(farm.error) and status is None)
        self.error.setText(error)
        self.error.setVisible(bool(error))
        self.machines.renew(status.machines if status is not None else (), lambda m: m.name)
        self.pools.renew(status.pools if status is not None else (), lambda p: p.name)
        self.placements.renew(status.placements if status is not None else (), lambda p: p.model)
