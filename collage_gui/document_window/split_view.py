"""Shows two placements of one graph side by side, with linked pan, zoom and selection."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from collage_engine.wording import figures
from collage_gui.document.document import Document
from collage_gui.document.shown import Shown
from collage_gui.document_window.picture_controller import PictureController
from collage_gui.graph_view.picture import Picture
from collage_gui.graph_view.view import GraphView
from collage_gui.widgets import ElidedLabel, lay_out, named, plain_tip, tool_button


class SplitWidget(QSplitter):
    """The main view and, while the split is open, a second one, each under a line about it."""

    def __init__(self, main: GraphView) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setObjectName("splitView")
        self.setChildrenCollapsible(False)
        title = "Graph of the compared placement"
        self.other = named(GraphView(), "secondGraphView", title)
        self.other.minimap_wanted = False
        self.other.legend_wanted = False
        self.title = ElidedLabel("heading")
        self.about_main = named(ElidedLabel("quiet"), "splitMain")
        self.about_other = named(ElidedLabel("quiet"), "splitOther")
        self.other_title = ElidedLabel("heading")
        tip = "Dim the operators that both placements run in the same partition"
        self.dim = named(QCheckBox("Differences only"), "splitDim", tip=tip)
        self.dim.setChecked(True)
        tip = "Close the split view"
        self.close_button = tool_button("✕", "closeSplit", None, tip, tip)
        # The views are compared side by side: the lines above them are of one height.
        self.title.setMinimumHeight(self.close_button.sizeHint().height())
        self._main_line = self._header(self.about_main, self.title, self.dim)
        self._second = self._pane(
            self._header(self.about_other, self.other_title, self.close_button), self.other
        )
        self.addWidget(self._pane(self._main_line, main))
        self.addWidget(self._second)
        self.show_second(False)

    def show_second(self, visible: bool) -> None:
        """Show the second view and the lines above both, or only the main view."""
        self._second.setVisible(visible)
        self._main_line.setVisible(visible)
        # This is done at once: the graph is laid out for the size that the view has now.
        half = self.width() // 2
        self.setSizes([half, half] if visible else [self.width(), 0])

    def _header(self, about: ElidedLabel, title: ElidedLabel, button: QWidget) -> QWidget:
        """Return a title and what can be done, above a placement's figures."""
        header = QWidget()
        row = lay_out(QHBoxLayout(), (title, 1), button)
        about.setFixedHeight(about.sizeHint().height())
        lay_out(QVBoxLayout(header), (row, 1), about, edge=1, gap=0.5)
        return header

    def _pane(self, line: QWidget, view: GraphView) -> QWidget:
        pane = QWidget()
        lay_out(QVBoxLayout(pane), line, (view, 1), edge=0, gap=0)
        return pane


class SplitController(QObject):
    """Opens and closes the split, and keeps the second view in step with the document."""

    changed = Signal()
    """A signal that the split was opened or closed."""

    def __init__(
        self,
        document: Document,
        widget: SplitWidget,
        main: GraphView,
        picture: PictureController,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._document, self._widget, self._picture = document, widget, picture
        self._main = main
        self._following = False
        """Whether one view moves because the other one did."""
        main.moved.connect(lambda: self._follow(widget.other, main))
        widget.other.moved.connect(lambda: self._follow(main, widget.other))
        self.is_open = False
        widget.close_button.clicked.connect(self.close)
        widget.dim.toggled.connect(self._recolour)
        widget.other.boxes_selected.connect(picture.select_boxes)
        widget.other.box_opened.connect(self._open_box)
        picture.picture_changed.connect(self._show_scene)
        picture.colours_changed.connect(self._recolour)
        picture.marks_changed.connect(self._show_marks)
        document.runs.changed.connect(self._refresh)
        document.placement.changed.connect(self._refresh)
        document.comparison.reference_changed.connect(self._refresh)

    def toggle(self) -> None:
        """Open the split, or close it."""
        self.close() if self.is_open else self.open()

    def open(self) -> None:
        """Show the placement that is compared with beside the shown one."""
        if self.is_open or self._document.compared is None:
            return
        self.is_open = True
        self._widget.show_second(True)
        self._picture.show_operators()
        self._refresh()
        self._picture.lay_out()
        self.changed.emit()

    def close(self) -> None:
        """Show the shown placement only."""
        if not self.is_open:
            return
        self.is_open = False
        self._picture.dim(frozenset())
        self._widget.show_second(False)
        self._picture.lay_out()
        self.changed.emit()

    def _follow(self, view: GraphView, leader: GraphView) -> None:
        """Show the same part of the graph in one view as in the other."""
        if self.is_open and not self._following:
            self._following = True
            view.go_where(leader)
            self._following = False

    # -- showing -----------------------------------------------------------------------

    def _refresh(self) -> None:
        """Show which placements are compared; where there is none to compare with, close."""
        other = self._document.compared
        if self.is_open and other is None:
            self.close()
        elif self.is_open and other is not None:
            self._describe(other)
            self._recolour()

    def _describe(self, compared: Shown) -> None:
        """Write above each view how fast its placement is, and what the machine did meanwhile."""
        document, widget = self._document, self._widget
        now = document.placement.shown
        assert now is not None
        widget.title.setText(now.title)
        widget.other_title.setText(compared.title)
        about = f"{figures.latency_text(now.placement)} · {figures.toolchains_text(now.placement)}"
        widget.about_main.setText(about)
        run = document.runs.find(now.run or now.found_by)
        other_run = document.runs.find(compared.run)
        other = compared.placement
        texts = [figures.latency_text(other)]
        delta = document.comparison.difference()
        if delta is not None:
            back = figures.Difference(delta.other_us, delta.us, delta.state)
            texts.append(figures.speed_text(back, now.title))
        if run is not None and other_run is not None and other_run is not run:
            drift = figures.drift_text(other_run, run, "")
            texts[-1] += f" ({drift})" if drift else ""
        texts.append(figures.toolchains_text(other))
        widget.about_other.setText(" · ".join(filter(None, texts)))
        for label in (widget.about_main, widget.about_other):
            label.setToolTip(plain_tip(label.text()))

    def _show_scene(self) -> None:
        """Lay out the second view as the main one is."""
        compared = self._document.compared
        if not self.is_open or compared is None:
            return
        other = Picture(self._picture.drawn.scene)
        self._picture.colour(other, compared)
        self._widget.other.set_theme(self._picture.paint_theme())
        self._widget.other.show_picture(other, keep_view=True)
        self._follow(self._widget.other, self._main)
        self._show_marks()
        self._dim()

    def _recolour(self) -> None:
        picture, compared = self._widget.other.picture, self._document.compared
        if not self.is_open or not picture.rectangles or compared is None:
            return
        self._picture.colour(picture, compared)
        self._widget.other.set_theme(self._picture.paint_theme())
        self._dim()

    def _dim(self) -> None:
        """Dims what both placements have in the same partition, where that is wanted."""
        compared = self._document.compared
        if compared is None or not self._widget.dim.isChecked():
            self._picture.dim(frozenset())
            return
        theirs, ours = compared.partitions, self._document.placement.partitions
        same = {
            n
            for n, part in ours.items()
            if n in theirs and (theirs[n].instance, theirs[n].nodes) == (part.instance, part.nodes)
        }
        boxes = self._picture.drawn.scene.display.boxes
        self._picture.dim(
            frozenset(
                at for at, box in enumerate(boxes) if box.is_work and same.issuperset(box.members)
            )
        )

    def _show_marks(self) -> None:
        compared = self._document.compared
        if not self.is_open or compared is None:
            return
        marks = self._main.marks
        if compared.pins != self._document.pins.written:
            marks = replace(marks, pinned={})  # made without the pins, it may break them
        self._widget.other.set_marks(marks)

    def _open_box(self, box: int) -> None:
        """Select the partition that holds an operator in the compared placement."""
        compared = self._document.compared
        if compared is None:
            return
        if self._picture.opens(box):
            self._picture.open_box(box)
            return
        operator = self._picture.drawn.scene.display.boxes[box].members[0]
        owner = compared.partitions.get(operator)
        self._document.selection.select(owner.nodes if owner else [operator], operator)
