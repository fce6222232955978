"""What the window knows of one open document, and the requests that change it. No widgets.

Everything shown comes from here and everything done goes through here: panels listen to the
signals and call the methods. Answers that arrive after their question lost its meaning (another
selection, a newer search) are told apart by a ticket and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from PySide6.QtCore import QObject, QTimer

from collage_engine.drawing.groups import Group, first_view, name_scopes, partition_groups, sections
from collage_engine.drawing.operators import operator_graph
from collage_engine.records.event import Event, Log, Progress, Stage
from collage_engine.records.typed import convert
from collage_engine.service import protocol
from collage_gui.engine_client import EngineClient, model_by_value
from collage_gui.session_ask import Asking
from collage_gui.session_state import Reference, Shown, registered


class Document(Asking):
    """One model or session, opened in one engine."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(client, parent)
        self._ask.timeout.connect(self._explain)
        self._repaint.timeout.connect(self._costs_arrived)
        client.notified.connect(self._notified)

    # -- opening -----------------------------------------------------------------------

    def open_model(self, path: str, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
        self.path = path
        sizes = shapes if shapes is not None else dict(self.settings.shapes)
        if self.client.connection.is_remote:
            try:
                params = model_by_value(path)
            except OSError as error:
                reason = f"{path}: {error.strerror}"
                QTimer.singleShot(0, self, lambda: self.failed.emit(reason))
                return
            params = msgspec.structs.replace(params, shapes=sizes)
        else:
            params = protocol.ModelOpen(path=path, shapes=sizes)
        self.settings = msgspec.structs.replace(self.settings, shapes=sizes)
        self._request("model.open", params, self._admitted, ticket="open")

    def open_session(self, path: str, recovered: bool = False) -> None:
        self.path = self.path or path
        if not recovered:
            self.session_path = path
        # An engine that was started anew opens it again: what was chosen since then stays.
        self._restore_settings = self.graph is None
        self._request(
            "session.open", protocol.SessionOpen(path=path), self._admitted, ticket="open"
        )

    def _admitted(self, answer: protocol.ModelAnswer) -> None:
        self.handle = answer.document
        self.model = answer.model
        self.read_only = answer.read_only
        self.note = answer.note
        self.title_changed.emit()
        self._request("graph.get", protocol.Document(document=self.handle), self._graph_arrived)

    def _graph_arrived(self, answer: protocol.GraphAnswer) -> None:
        self.graph = answer.graph
        self.operators = operator_graph(answer.graph)
        self.scopes = {g.id: g for g in sections(self.operators, name_scopes(self.operators))}
        self.collapsed = first_view(self.operators, self.scopes.values())
        self.selection, self.primary, self.candidate = frozenset(), None, None
        if self.pins and not answer.pins and not self.read_only:
            self._send_pins()
        else:
            self.pins = answer.pins
        self.opened.emit()
        self.graph_changed.emit()
        self.pins_changed.emit()
        self._refresh_candidates()
        self._refresh_runs(show_last=True)

    @property
    def title(self) -> str:
        path = self.session_path or self.path or (self.model.path if self.model else "")
        name = path.replace("\\", "/").rsplit("/", 1)[-1] or "untitled"
        return name + (" •" if self.unsaved else "")

    # -- saving ------------------------------------------------------------------------

    def save(self, path: str, then: Callable[[], None] | None = None) -> None:
        def saved(_: protocol.Exported) -> None:
            self.session_path = path
            self.unsaved = False
            self.undo.setClean()
            self.title_changed.emit()
            if then is not None:
                then()

        for run in sorted(self.hidden_runs):
            self._request("runs.edit", protocol.RunEdit(document=self.handle, run=run, delete=True))
        self._request("session.save", protocol.SessionSave(document=self.handle, path=path), saved)

    def autosave(self, path: str, then: Callable[[], None]) -> None:
        """A recovery copy; a failure is a line in the log, not a banner."""
        self._request(
            "session.save",
            protocol.SessionSave(document=self.handle, path=path),
            lambda _: then(),
            lambda reason: self.add_log("warning", f"no recovery copy: {reason}"),
        )

    def close(self) -> None:
        self.client.notified.disconnect(self._notified)
        self._ask.stop()
        self._repaint.stop()
        for ticket in self._tickets:
            self._tickets[ticket] += 1

    # -- the engine's news -------------------------------------------------------------

    def _notified(self, method: str, params: Any) -> None:
        if params.document != self.handle or not self.handle:
            return
        if method == "measured":
            self.costs.update(params.costs)
            if not self._repaint.isActive():
                self._repaint.start()
            if any(id_ not in self.candidates for id_ in params.costs):
                self._refresh_candidates()
            return
        event = convert(params.event, Event)
        if isinstance(event, Stage):
            self.stages[event.stage] = event
            if event.stage == "enumerate" and event.done:
                self._refresh_candidates()
            self.progress_changed.emit()
        elif isinstance(event, Progress):
            self.progress = event
            self.progress_changed.emit()
        elif isinstance(event, Log):
            self.add_log(event.level, event.text)
        else:
            self._done(event)

    def _done(self, event: Any) -> None:
        self.running = self.cancelling = False
        self.progress = None
        self.mark_unsaved()
        self.costs_changed.emit()
        self._refresh_candidates()
        if event.state == "finished" and event.run is not None:
            self._run_pins[event.run] = getattr(self, "_starting_pins", self.pins)
            wanted = event.run

            def arrived(answer: protocol.RunsAnswer) -> None:
                self.runs = list(answer.runs)
                self.runs_changed.emit()
                self.show_run(wanted)
                self.running_changed.emit()
                self.run_finished.emit("finished", "")
                self._learn_regrets()

            self._request("runs.list", protocol.Document(document=self.handle), arrived)
            return
        self.running_changed.emit()
        reason = event.reason or ("cancelled" if event.state == "cancelled" else "the run failed")
        if event.state == "failed":
            self.failed.emit(reason)
        self.run_finished.emit(event.state, reason)

    def engine_lost(self) -> None:
        """The engine is gone: nothing runs, what is known stays on the screen."""
        self.handle = ""
        if self.running or self.progress is not None:
            self.running = self.cancelling = False
            self.progress = None
            self.running_changed.emit()
            self.progress_changed.emit()

    def groups(self, partitions: bool) -> dict[str, Group]:
        """Groups that may be collapsed: the scopes, or the shown placement's partitions."""
        if partitions and self.shown is not None:
            return {g.id: g for g in partition_groups(self.shown.placement)}
        return self.scopes


def find_document(key: str) -> Document | None:
    """The open document of that key; None when it has been closed."""
    found = registered(key)
    return found if isinstance(found, Document) else None


__all__ = ["Document", "Reference", "Shown", "find_document"]
