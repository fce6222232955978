"""Shows the shown placement over time, and beside it the parts that cost most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QAction, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QToolTip, QVBoxLayout, QWidget

from collage_engine.drawing.groups import equal_blocks
from collage_engine.drawing.timeline import TimeBar, Timeline, against, timeline
from collage_engine.records.placement import Placement
from collage_engine.support.text import counted
from collage_engine.wording.amounts import time_text
from collage_engine.wording.layers import MOST_PARTS, Winnable, folded, outside_us
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.document.shown import Shown
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme
from collage_gui.widgets import (
    ElidedLabel,
    Panel,
    action_button,
    lay_out,
    named,
    plain_tip,
    split_up,
    tool_button,
)

NOTHING = Timeline(rows=(), bars=(), transitions=(), end_us=0.0)
EMPTY = "No placement has been timed yet: a run shows here what each layer takes."
NOT_PROFILED = "The layers of this placement were not timed: its partitions are shown."
NEAREST = 2e-3
"""Share of the run that the widest zoom shows; chosen."""
ABOUT_COMPARE = "Show below it the placement that numbers are compared with"
ABOUT_FOLD = "Draw equal blocks as one: their sum, and what each takes"
ABOUT_WIN = (
    "What another toolchain is known to take less for just these nodes, in its own run of the "
    "whole model or as a candidate; conversions that it needs are not counted"
)


class TimelinePanel(Panel):
    """The run over time, with a ruler; wheel zooms, dragging pans, a click selects."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme, "timelinePanel")
        self.shown = NOTHING
        self.plot: Any = None
        """The ``PlotWidget``, from the first time on that it can be seen."""
        self.bars: Any = None
        self._is_stale = True
        self.summary = named(ElidedLabel("quiet"), "timelineSummary", "Summary")
        fit = tool_button("⤢", "timelineFit", self.fit, "Fit the run", "Show the whole run")
        self.fold = tool_button("≣", "timelineFold", None, "Fold equal blocks", ABOUT_FOLD)
        self.compare = tool_button("⇅", "timelineCompare", None, "Compare", ABOUT_COMPARE)
        for button in (self.fold, self.compare):
            button.setCheckable(True)
            button.toggled.connect(self.refresh)
        attempt = action_button(actions["try_here"], name="tryRival")
        self.parts = RowsModel(
            [
                Column("Costs most", self._label, width=120, stretches=True),
                Column("Time", lambda row: row.us, "time"),
                Column("To win", lambda row: row.won_us, "time", ABOUT_WIN),
                Column("With", _rival, toolchain=_rival_id, optional=True),
            ]
        )
        self.table = Table(self.parts, "leftToWin", "Parts that cost most", theme)
        self.table.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.table.select_nodes(lambda row: row.layer.nodes, self._picked)
        self._stage = QWidget()
        lay_out(QVBoxLayout(self._stage), edge=0, gap=0)
        head = lay_out(QHBoxLayout(), (self.summary, 1), self.fold, self.compare, fit)
        left, right = QWidget(), QWidget()
        lay_out(QVBoxLayout(left), head, (self._stage, 1), edge=0.5, gap=0.5)
        buttons = lay_out(QHBoxLayout(), None, attempt)
        lay_out(QVBoxLayout(right), (self.table, 1), buttons, edge=0.5, gap=0.5)
        split = split_up(Qt.Orientation.Horizontal, left, right, shares=(3, 2))
        lay_out(QVBoxLayout(self), split, edge=0)
        document.placement.changed.connect(self.refresh)
        document.graph_changed.connect(self.refresh)
        document.costs.changed.connect(self.refresh)
        document.comparison.reference_changed.connect(self.refresh)
        document.selection.changed.connect(self._show_selection)
        theme.changed.connect(self.refresh)

    def showEvent(self, event: QShowEvent) -> None:
        """Draw what has changed meanwhile."""
        super().showEvent(event)
        if self._is_stale:
            self.refresh()

    def refresh(self) -> None:
        """Show the shown placement, unless nobody can see it."""
        self._is_stale = not self.isVisible()
        if self._is_stale:
            return
        document, now = self.document, self.document.placement.shown
        placement = now.placement if now is not None else None
        self.shown, parts = NOTHING, []
        compared = document.compared
        self.compare.setVisible(compared is not None and bool(compared.placement.layers))
        if placement is not None:
            placement = self._as_wanted(placement)
            parts = document.left_to_win(placement)[:MOST_PARTS]
            self._arrange(placement, compared)
        else:
            self.summary.setText(EMPTY)
        self.parts.set_rows(parts)
        self._draw()

    def _as_wanted(self, placement: Placement) -> Placement:
        """Return a placement with its equal blocks as one layer, where that is wanted."""
        if not self.fold.isChecked():
            return placement
        return folded(
            placement, equal_blocks(self.document.operators, self.document.scopes.values())
        )

    def _arrange(self, placement: Placement, compared: Shown | None) -> None:
        """Arrange the placement, over the one that it is compared with where that is wanted."""
        graph, rest_us = self.document.operators, outside_us(placement)
        texts = [time_text(placement.measured_us), counted(len(placement.layers), "layer")]
        if rest_us:
            texts.append(f"{time_text(rest_us)} outside of partitions")
        if not placement.layers:
            texts = [NOT_PROFILED]
        if compared is None or self.compare.isHidden() or not self.compare.isChecked():
            self.shown = timeline(graph, placement)
        else:
            self.shown = against(graph, placement, self._as_wanted(compared.placement))
            below = f"below {compared.title}, {time_text(compared.placement.measured_us)}"
            texts = [texts[0], below, "blue is faster than the other, orange slower"]
        self.summary.setText(" · ".join(texts))

    def fit(self) -> None:
        """Show the whole run."""
        if self.plot is not None:
            self.plot.setXRange(0, self.shown.end_us, padding=0.01)

    def mark(self, operators: Iterable[int]) -> None:
        """Mark the bars of what a search found."""
        if self.bars is not None:
            self.bars.mark(found=frozenset(operators))

    def go_to(self, operator: int) -> None:
        """Show the layer of an operator in the middle."""
        bar = self._bar_of(operator)
        if bar is not None and self.plot is not None:
            (low, high), _ = self.plot.viewRange()
            middle, half = (bar.begin_us + bar.end_us) / 2, max(high - low, 2 * bar.us) / 2
            self.plot.setXRange(middle - half, middle + half, padding=0)

    def _bar_of(self, operator: int) -> TimeBar | None:
        """Return the shortest bar that holds an operator."""
        held = [bar for bar in self.shown.bars if operator in bar.operators]
        return min(held, key=lambda bar: bar.us, default=None)

    # -- drawing -----------------------------------------------------------------------

    def _draw(self) -> None:
        if self.plot is None and not self.shown.rows:
            return
        if self.plot is None:
            self.plot = self._new_plot()
            layout = self._stage.layout()
            assert layout is not None
            layout.addWidget(self.plot)
        colours, shown = self.theme.colours, self.shown
        self.plot.setBackground(colours.canvas)
        self.plot.setVisible(bool(shown.rows))
        if not shown.rows:
            return
        before_us = self.bars.shown.end_us
        for axis in map(self.plot.getAxis, ("left", "bottom")):
            axis.setPen(colours.line)
            axis.setTextPen(colours.quiet)
            axis.setTickFont(self.theme.font(12))
        self.plot.getAxis("left").setTicks([[(n + 0.5, name) for n, name in enumerate(shown.rows)]])
        self.bars.show_bars(shown, self.theme)
        self.plot.setLimits(xMin=-0.02 * shown.end_us, xMax=1.02 * shown.end_us)
        self.plot.setLimits(minXRange=NEAREST * shown.end_us, yMin=0, yMax=len(shown.rows))
        self.plot.setYRange(0, len(shown.rows), padding=0)
        if before_us != shown.end_us:
            self.fit()
        self._show_selection()

    def _new_plot(self) -> Any:
        import pyqtgraph as pg

        from collage_gui.panels.time_bars import Bars, Ruler

        plot = pg.PlotWidget(axisItems={"top": Ruler("top")})
        named(plot, "timeline", "The run over time")
        plot.setMouseEnabled(x=True, y=False)
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.invertY(True)
        plot.hideAxis("bottom")
        plot.getAxis("left").setStyle(tickLength=0)
        self.bars = Bars()
        plot.addItem(self.bars)
        plot.scene().sigMouseClicked.connect(self._clicked)
        plot.scene().sigMouseMoved.connect(self._hovered)
        return plot

    def _at(self, position: QPointF) -> TimeBar | None:
        box = self.plot.getViewBox()
        at, pixel = box.mapSceneToView(position), box.viewPixelSize()[0]
        found: TimeBar | None = self.bars.at(at.x(), at.y(), 2 * pixel)
        return found

    def _hovered(self, position: QPointF) -> None:
        bar = self._at(position)
        text = plain_tip(bar.tip(self.shown.end_us)) if bar is not None else ""
        QToolTip.showText(self.plot.mapToGlobal(self.plot.mapFromScene(position)), text, self.plot)

    def _clicked(self, event: Any) -> None:
        bar = self._at(event.scenePos())
        if event.button() == Qt.MouseButton.LeftButton:
            self.document.selection.select(bar.operators if bar is not None else ())

    # -- selection ---------------------------------------------------------------------

    def _label(self, row: Winnable) -> str:
        for bar in self.shown.bars:
            if bar.blocks > 1 and row.layer.nodes[0] in bar.operators:
                return bar.title
        return self.document.operators.label_with_name(row.layer.nodes)

    def _picked(self, nodes: list[int]) -> None:
        self.document.selection.select(nodes)
        self.go_to(nodes[0])

    def _show_selection(self) -> None:
        selected = self.document.selection.operators
        if self.bars is not None:
            self.bars.mark(selected=selected)
        chosen = {n for row in self.table.chosen() for n in row.layer.nodes}
        if chosen and not chosen & selected:
            self.table.show_rows(lambda row: False)


def _rival_id(row: Winnable) -> str | None:
    """Return the toolchain instance that is known to be faster; None: none is."""
    return row.rival if row.won_us else None


def _rival(row: Winnable) -> str | None:
    name = _rival_id(row)
    return None if name is None else toolchain_title(name)
