"""Looking at one document: finding, zooming, collapsing, walking."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication

from collage_gui.document_picture import DocumentPicture


class LookActions(DocumentPicture):
    """Actions that change what is seen, and nothing else."""

    def find_in_graph(self) -> None:
        self.find_bar.open()

    def find_next(self) -> None:
        self.find_bar.step(1)

    def find_previous(self) -> None:
        self.find_bar.step(-1)

    def highlight_operator(self) -> None:
        """Mark all nodes of the selected node's operator."""
        graph, at = self.document.operators, self.document.primary
        if graph is not None and at is not None:
            op = graph.calls[at].op
            self._found([n for n, call in enumerate(graph.calls) if call.op == op])

    def select_partition(self) -> None:
        partition = self.document.partition_of(self.document.primary)
        if partition is not None:
            self.document.select(partition.nodes, self.document.primary)

    def select_none(self) -> None:
        self._found([])
        self.document.select(())

    def copy_names(self) -> None:
        graph = self.document.operators
        if graph is not None:
            names = [graph.name(n) for n in sorted(self.document.selection)]
            QGuiApplication.clipboard().setText("\n".join(names))

    def fit(self) -> None:
        self.view.fit()

    def zoom_selection(self) -> None:
        if self.picture is not None:
            self.view.zoom_to_boxes(self.picture.scene.boxes_of(self.document.selection))

    def zoom_in(self) -> None:
        self.view.zoom(1.25)

    def zoom_out(self) -> None:
        self.view.zoom(0.8)

    def zoom_actual(self) -> None:
        self.view.zoom(1.0 / self.view.scale)

    # -- groups ------------------------------------------------------------------------

    def _box_opened(self, box: int) -> None:
        assert self.picture is not None
        item = self.picture.scene.display.boxes[box]
        if item.kind == "group" and item.group is not None:
            self._expand(item.group)
        elif item.kind == "operator":
            self.document.select(item.members, item.members[0])
            self.select_partition()

    def _expand(self, group: str) -> None:
        groups = self.groups()
        inner = self._opened_groups({group}, groups)
        self.collapsed = (self.collapsed - {group}) | frozenset(inner)
        self.lay_out(focus=groups[group].members)

    def enter_group(self) -> None:
        if self.picture is not None and self.view.marks.primary is not None:
            self._box_opened(self.view.marks.primary)

    def leave_group(self) -> None:
        """Collapse the innermost open group around the primary node."""
        at = self.document.primary
        if at is None:
            return
        groups = self.groups()
        around = [
            g
            for g in groups.values()
            if at in g.members
            and g.id not in self.collapsed
            and g.kind != "partition"
            and not any(
                at in groups[c].members and len(groups[c].members) >= len(g.members)
                for c in self.collapsed
                if c in groups
            )
        ]
        if around:
            chosen = min(around, key=lambda g: len(g.members))
            inner = {
                g
                for g in self.collapsed
                if g in groups and set(groups[g].members) <= set(chosen.members)
            }
            self.collapsed = (self.collapsed - inner) | {chosen.id}
            self.lay_out(focus=chosen.members)

    def collapse_scopes(self) -> None:
        self.partitions_collapsed = False
        self.collapsed = frozenset(g.id for g in self.document.scopes.values() if g.parent is None)
        self.lay_out()

    def collapse_partitions(self) -> None:
        self.partitions_collapsed = True
        self.collapsed = frozenset(g for g in self.groups() if g.startswith("partition:"))
        self.lay_out()

    def expand_all(self) -> None:
        self.partitions_collapsed = False
        self.collapsed = frozenset()
        self.lay_out()

    def to_producer(self) -> None:
        self.view.walk("back")

    def to_consumer(self) -> None:
        self.view.walk("forward")
