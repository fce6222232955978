"""Keeps the graph on the screen in step with the document: layout, colours, marks, groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QFont, QGuiApplication

from collage_engine.drawing.box_styles import (
    Colouring,
    LegendEntry,
    Mode,
    OperatorRounding,
    operator_roundings,
    style_boxes,
)
from collage_engine.drawing.groups import (
    Group,
    display_graph,
    partition_groups,
    partitions_help,
)
from collage_engine.drawing.layout import lay_out
from collage_engine.drawing.scene import Scene, outlines, transitions
from collage_gui.document.document import Document
from collage_gui.document.pin_set import MARKS
from collage_gui.document.runs import Reference
from collage_gui.document.shown import Shown
from collage_gui.graph_view.painter import PaintTheme
from collage_gui.graph_view.picture import Marks, Picture
from collage_gui.graph_view.view import GraphView, boxes_outside
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme


def expand(collapsed: frozenset[str], group: str, groups: Mapping[str, Group]) -> frozenset[str]:
    """Open a collapsed group; the groups directly inside it stay collapsed.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        group: Id of the group to open.
        groups: Every group by its id.
    """
    return (collapsed - {group}) | _inside({group}, groups)


def expand_around(
    collapsed: frozenset[str], operators: Iterable[int], groups: Mapping[str, Group]
) -> frozenset[str]:
    """Open the groups that hide operators, and only those.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        operators: The operators that must have boxes of their own.
        groups: Every group by its id.
    """
    wanted = set(operators)

    def hiding(ids: Iterable[str]) -> set[str]:
        return {g for g in ids if g in groups and not wanted.isdisjoint(groups[g].members)}

    closed = hiding(collapsed)
    while closed:
        collapsed = (collapsed - closed) | _inside(closed, groups)
        closed = hiding(collapsed)
    return collapsed


def innermost_open_group(
    collapsed: frozenset[str], operator: int, groups: Mapping[str, Group]
) -> Group | None:
    """Return the smallest name scope around an operator that is not collapsed.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        operator: An operator number.
        groups: Every group by its id.
    """
    around = [group for group in groups.values() if operator in group.members]
    hidden = max((len(group.members) for group in around if group.id in collapsed), default=0)
    return min(
        (g for g in around if g.kind != "partition" and len(g.members) > hidden),
        key=lambda group: len(group.members),
        default=None,
    )


def collapse(
    collapsed: frozenset[str], chosen: Group, groups: Mapping[str, Group]
) -> frozenset[str]:
    """Collapses a group; the collapsed groups inside it need no box of their own any more.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        chosen: The group to collapse.
        groups: Every group by its id.
    """
    members = set(chosen.members)
    inside = {g for g in collapsed if g in groups and members.issuperset(groups[g].members)}
    return (collapsed - inside) | {chosen.id}


def _inside(opened: set[str], groups: Mapping[str, Group]) -> frozenset[str]:
    return frozenset(group.id for group in groups.values() if group.parent in opened)


class PictureController(QObject):
    """Draws a document in a view, and selects in the document what is selected in the view."""

    mode_changed = Signal()
    groups_changed = Signal()
    """Partitions are drawn as one box each from now on, or no more."""
    picture_changed = Signal()
    """A signal that there is another layout."""
    colours_changed = Signal()
    marks_changed = Signal()

    def __init__(
        self,
        document: Document,
        view: GraphView,
        theme: Theme,
        preferences: Preferences,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._document, self._view = document, view
        self._theme, self._preferences = theme, preferences
        self.mode: Mode = "toolchain"
        self.collapsed: frozenset[str] = frozenset()
        """Ids of the groups that are drawn as one box."""
        self.opened: frozenset[int] = frozenset()
        """Places of the nodes that are drawn as the operators that they were lowered to."""
        self._collapse_decided = False
        """Whether the user has decided what is collapsed; before, the size of the graph decides."""
        self._isolated: LegendEntry | None = None
        self._dimmed: frozenset[int] = frozenset()
        self._highlighted: list[int] = []
        """Operators that a search found, or that are of the same operator."""
        self._measured_now: tuple[int, ...] = ()
        """Operators of the candidate that the run under way measures."""
        self._connect()
        self.restyle()

    def _connect(self) -> None:
        document, view = self._document, self._view
        document.graph_changed.connect(self._graph_changed)
        document.placement.changed.connect(self._placement_changed)
        document.execution.progress_changed.connect(self._progress_changed)
        document.execution.running_changed.connect(self._progress_changed)
        document.comparison.reference_changed.connect(self._comparison_changed)
        document.pins.changed.connect(self.update_marks)
        document.selection.changed.connect(self._selection_changed)
        document.selection.candidate_changed.connect(self.update_marks)
        view.boxes_selected.connect(self.select_boxes)
        view.box_opened.connect(self.open_box)
        view.left_group.connect(self.leave_group)
        view.legend.isolated.connect(self._isolate)
        self._theme.changed.connect(self.restyle)
        self._preferences.changed.connect(self._preference_changed)

    @property
    def drawn(self) -> Picture:
        """Return the picture in the view."""
        return self._view.picture

    def close(self) -> None:
        """Stop listening to what outlives the document."""
        self._theme.changed.disconnect(self.restyle)
        self._preferences.changed.disconnect(self._preference_changed)

    # -- layout ------------------------------------------------------------------------

    def groups(self) -> dict[str, Group]:
        """Return every group that can be drawn as one box: name scopes and shown partitions."""
        groups = dict(self._document.scopes)
        graph, shown = self._document.operators, self._document.placement.shown
        if shown is not None:
            groups.update({g.id: g for g in partition_groups(graph, shown.placement)})
        return groups

    def lay_out(self, focus: Iterable[int] = ()) -> None:
        """Lay out what is visible now.

        Args:
            focus: Operators to bring into view afterwards; without any, the view fits the graph.
        """
        operators = self._document.operators
        groups = self.groups()
        display = display_graph(operators, groups, self.collapsed, self.opened)
        upright, size = self._preferences.get("orientation") != "horizontal", self._view.size()
        aspect = size.width() / size.height()
        layout = lay_out(len(display.boxes), display.edges, upright=upright, aspect=aspect)
        focused = frozenset(focus)
        keep_view = bool(focused)
        laid_out = Scene(operators, groups, display, layout, upright)
        picture = Picture(laid_out)
        self.colour(picture, self._document.placement.shown)
        self._view.show_picture(picture, keep_view=keep_view)
        self.picture_changed.emit()
        self.update_marks()
        if keep_view:
            self._view.zoom_to_boxes(laid_out.boxes_of(focused))
        elif self._view.isVisible():
            self._view.setFocus()

    def _graph_changed(self) -> None:
        self.opened = frozenset()
        self._collapse(self._document.first_collapsed, decided=False)

    def _preference_changed(self, key: str) -> None:
        if key == "orientation":
            self.lay_out()

    # -- groups ------------------------------------------------------------------------

    @property
    def partitions_collapsed(self) -> bool:
        """Tell whether partitions of the shown placement are drawn as one box each."""
        return any(group.startswith("partition:") for group in self.collapsed)

    def _collapse(self, groups: Iterable[str], *, decided: bool = True) -> None:
        """Draw groups as one box each, and everything else open.

        Args:
            groups: Their ids.
            decided: Whether the user wants it so.
        """
        self._collapse_decided = decided
        self.collapsed = frozenset(groups)
        self.lay_out()
        self.groups_changed.emit()

    def collapse_scopes(self) -> None:
        """Draw every outermost name scope as one box."""
        self._collapse(g.id for g in self._document.scopes.values() if g.parent is None)

    def collapse_partitions(self) -> None:
        """Draw every partition of the shown placement as one box, or its nodes again."""
        if self.partitions_collapsed:
            self._collapse(self._document.first_collapsed)
        else:
            self._collapse(self._partition_ids())

    def show_operators(self) -> None:
        """Draw nodes, not partitions: two placements have different ones."""
        if self.partitions_collapsed:
            self.collapse_partitions()

    def expand_all(self) -> None:
        """Draw every node as a box of its own."""
        self._collapse(())

    def enter_group(self) -> None:
        """Open the collapsed group, or the node, that is selected."""
        if self._view.marks.primary is not None:
            self.open_box(self._view.marks.primary)

    def leave_group(self) -> None:
        """Collapses the open node or the innermost open group around the primary operator."""
        graph, primary = self._document.operators, self._document.selection.primary
        if primary is None:
            return
        node = graph.node_of[primary]
        if node in self.opened:
            self.opened -= {node}
            self.lay_out(focus=graph.nodes[node])
            return
        groups = self.groups()
        group = innermost_open_group(self.collapsed, primary, groups)
        if group is not None:
            self.collapsed = collapse(self.collapsed, group, groups)
            self.lay_out(focus=group.members)

    def open_box(self, box: int) -> None:
        """Open a group, or a node of several operators; or select the partition of another node."""
        item = self.drawn.scene.display.boxes[box]
        if item.kind == "group" and item.group is not None:
            groups = self.groups()
            self.collapsed = expand(self.collapsed, item.group, groups)
            self.lay_out(focus=groups[item.group].members)
        elif self.opens(box):
            self.opened |= {self.drawn.scene.graph.node_of[item.members[0]]}
            self.lay_out(focus=item.members)
        elif item.is_work:
            operator = item.members[0]
            partition = self._document.placement.partition_of(operator)
            self._document.selection.select(partition.nodes if partition else [operator], operator)

    def opens(self, box: int) -> bool:
        """Tell whether there are further boxes inside a box."""
        item = self.drawn.scene.display.boxes[box]
        return item.kind == "group" or (item.kind == "node" and len(item.members) > 1)

    def go_to(self, operator: int) -> None:
        """Select an operator and bring it into view, opening the groups that hide it."""
        self._document.selection.select([operator], operator)
        self.show_operator(operator)

    def show_operator(self, operator: int) -> None:
        """Bring an operator into view, opening the groups that hide it."""
        opened = expand_around(self.collapsed, [operator], self.groups())
        if opened != self.collapsed:
            self.collapsed = opened
            self.lay_out(focus=[operator])
        self._view.ensure_visible(self.drawn.scene.display.box_of[operator])

    def _partition_ids(self) -> frozenset[str]:
        return frozenset(g for g in self.groups() if g.startswith("partition:"))

    # -- colours -----------------------------------------------------------------------

    def paint_theme(self) -> PaintTheme:
        """Return the colours and fonts that the graph is painted with now."""
        bold = self._theme.font(13, QFont.Weight.DemiBold)
        return PaintTheme(self._theme.colours, self._theme.font(), bold)

    def restyle(self) -> None:
        """Take the colours and fonts of the theme."""
        self._view.set_theme(self.paint_theme())
        self._view.legend.setFont(self._theme.font(12))
        self.recolour()

    def set_mode(self, mode: Mode) -> None:
        """Colours by another quantity; nothing moves.

        Changes need a reference run, or a baseline whose layers were timed. Where neither is
        chosen, it is the run before the shown one.
        """
        comparison, runs = self._document.comparison, self._document.runs
        is_run = comparison.reference.kind == "run"
        if mode == "changes" and not is_run and not self._layer_changes():
            shown = runs.shown_or_last()
            others = [run for run in runs.visible if run is not shown]
            if others:
                comparison.set_reference(Reference("run", others[-1].id))
        self.mode = mode
        self._isolated = None
        self.recolour()
        self.mode_changed.emit()

    def recolour(self) -> None:
        """Colours the picture anew; places and view stay."""
        self.colour(self.drawn, self._document.placement.shown)
        self._view.colours_changed()
        self.update_marks()
        self.colours_changed.emit()

    def colour(self, picture: Picture, shown: Shown | None) -> None:
        """Colours a picture of the graph by a placement.

        Args:
            picture: A picture of this document's graph.
            shown: The placement: the shown one, or another that is compared with it.
        """
        placement = shown.placement if shown is not None else None
        colouring = Colouring(
            placement,
            estimated=shown is None or shown.estimated,
            dark=self._theme.colours.dark,
            changes=self._changes(),
            roundings=self._roundings(shown) if self.mode == "precision" else {},
        )
        styles, legend = style_boxes(picture.scene, self.mode, colouring)
        total_us = sum(colouring.costs_us)
        costs = zip(colouring.partitions, colouring.costs_us, strict=False)
        shares = {p.id: us / (total_us or 1.0) for p, us in costs}
        parts, crossing = outlines(picture.scene, placement), transitions(picture.scene, placement)
        picture.set_colours(styles, legend, parts, shares, crossing)

    def _roundings(self, shown: Shown | None) -> dict[int, OperatorRounding]:
        """Return what reduced precision does to each operator."""
        graph, run = self._document.operators, self._document.runs.shown_or_last()
        if shown is None:
            return {}
        about = run.accuracy if run is not None else None
        return operator_roundings(graph, about, shown.placement)

    def _changes(self) -> dict[int, str] | None:
        """Return, by operator, what became of it since the reference run; None without one.

        Where the runs differ by less than the noise, nothing is said to be gained or lost.
        """
        graph, result = self._document.operators, self._document.comparison.result
        if self._document.comparison.reference.kind != "run":
            return self._layer_changes() or None
        if result is None:
            return None
        decided = self._document.comparison.is_decided()
        changes: dict[int, str] = {}
        for node in result.nodes:
            change: str = node.change
            if decided and change == "moved" and node.delta_us:
                change = "gained" if node.delta_us < 0 else "lost"
            changes.update(dict.fromkeys(graph.whole_nodes([node.node]), change))
        return changes

    def _layer_changes(self) -> dict[int, str]:
        """Return, by operator, what is faster or slower than in the baseline compared with."""
        parts = self._document.layer_differences()
        return {operator: part.change for part in parts for operator in part.operators}

    def _progress_changed(self) -> None:
        """Mark the operators that are measured now; where they are the same, nothing is done."""
        progress, stages = self._document.execution.progress, self._document.execution.stages
        operators: tuple[int, ...] = ()
        if progress is not None and progress.stage in stages and not stages[progress.stage].done:
            operators = progress.nodes
        if operators != self._measured_now:
            self._measured_now = operators
            self.update_marks()

    def _placement_changed(self) -> None:
        graph, shown = self._document.operators, self._document.placement.shown
        helps = shown is not None and partitions_help(len(graph.nodes), shown.placement)
        if not self._collapse_decided and (helps or self.partitions_collapsed):
            # A run may show a mix first, and then one toolchain, which would be a single box.
            groups = self._partition_ids() if helps else self._document.first_collapsed
            self._collapse(groups, decided=False)
        elif self.partitions_collapsed:
            self.collapsed = self._partition_ids()
            self.lay_out()
        self.recolour()

    def _comparison_changed(self) -> None:
        if self.mode == "changes":
            self.recolour()

    # -- marks and selection -----------------------------------------------------------

    def highlight(self, operators: list[int]) -> None:
        """Mark operators, e.g. those that a search found; none takes the marks away."""
        self._highlighted = operators
        self.update_marks()

    def update_marks(self) -> None:
        """Draw selection, picked candidate, pins and highlights anew."""
        display, document = self.drawn.scene.display, self._document
        selection = document.selection

        def boxes(operators: Iterable[int]) -> frozenset[int]:
            return frozenset(display.box_of[o] for o in operators if o < len(display.box_of))

        candidate = document.costs.candidates.get(selection.candidate or "")
        pinned = {box: MARKS[pin.kind] for pin in document.pins.current for box in boxes(pin.nodes)}
        primary = selection.primary
        self._view.legend.show_marks(self._marks_in_use(bool(pinned)))
        self._view.set_marks(
            Marks(
                selected=boxes(selection.operators),
                primary=display.box_of[primary] if primary is not None else None,
                candidate=boxes(candidate.nodes) if candidate is not None else frozenset(),
                highlighted=boxes(self._highlighted),
                measured_now=boxes(self._measured_now),
                pinned=pinned,
                dimmed=boxes_outside(self.drawn, self._isolated) | self._dimmed,
                stale=document.stale,
            )
        )
        self.marks_changed.emit()

    def dim(self, boxes: frozenset[int]) -> None:
        """Dims boxes beside those that the legend dims, e.g. what two placements have in common."""
        if boxes != self._dimmed:
            self._dimmed = boxes
            self.update_marks()

    def _marks_in_use(self, pinned: bool) -> list[str]:
        """Says which marks the legend must explain now."""
        styles = self.drawn.styles
        use = {
            "transition": bool(self.drawn.crossings),
            "expected": any(style.dashed for style in styles),
            "pin": pinned,
            "measured now": bool(self._measured_now),
        }
        return [mark for mark, used in use.items() if used]

    def _isolate(self, entry: LegendEntry | None) -> None:
        self._isolated = entry
        self.update_marks()

    def select_boxes(self, boxes: set[int], primary: int | None) -> None:
        """Select the operators of boxes.

        Args:
            boxes: Numbers of the scene.
            primary: The box whose operator is to be explained, if any.
        """
        items = self.drawn.scene.display.boxes
        chosen = [items[box] for box in boxes if items[box].is_work]
        first = None
        if primary is not None and items[primary].is_work:
            first = items[primary].members[0]
        self._document.selection.select([m for item in chosen for m in item.members], first)

    def select_partition(self) -> None:
        """Select the partition that holds the primary operator."""
        primary = self._document.selection.primary
        partition = self._document.placement.partition_of(primary)
        if partition is not None:
            self._document.selection.select(partition.nodes, primary)

    def copy_names(self) -> None:
        """Copy the names of the selected nodes, one a line."""
        operators = sorted(self._document.selection.operators)
        names = map(self._document.operators.names.__getitem__, operators)
        QGuiApplication.clipboard().setText("\n".join(names))

    def zoom_to_selection(self) -> None:
        """Show the selected operators as large as they fit."""
        operators = self._document.selection.operators
        self._view.zoom_to_boxes(self.drawn.scene.boxes_of(operators))

    def _selection_changed(self) -> None:
        self.update_marks()
        primary = self._document.selection.primary
        if primary is not None and not self._view.hasFocus():
            self._view.ensure_visible(self.drawn.scene.display.box_of[primary])
