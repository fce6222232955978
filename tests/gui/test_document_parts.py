"""Parts of a document and controllers of its window, each without the window around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Signal

from collage_engine.drawing.groups import Group
from collage_engine.records import protocol
from collage_gui.document_window import picture_controller
from collage_gui.engine_client import Connection, EngineRequests


class RecordingClient(QObject):
    """Records requests; a test answers them when it wants."""

    notified = Signal(str, object)

    def __init__(self) -> None:
        super().__init__()
        self.connection = Connection()
        self.sent: list[tuple[Any, Callable[[Any], None], Callable[[str], None]]] = []

    def request(self, request, on_result, on_error) -> None:
        self.sent.append((request, on_result, on_error))

    @property
    def methods(self) -> list[str]:
        return [request.method for request, *_ in self.sent]


EXPLAIN = protocol.Explain(document="d", node=0)


def test_an_outdated_answer_is_dropped(qtbot) -> None:
    client = RecordingClient()
    requests = EngineRequests(client)
    answers: list[str] = []
    requests.send(EXPLAIN, answers.append, topic="explain")
    requests.send(EXPLAIN, answers.append, topic="explain")
    requests.send(protocol.RunsList(document="d"), answers.append)
    for (_, on_result, _), answer in zip(client.sent, ("old", "new", "any"), strict=True):
        on_result(answer)
    assert answers == ["new", "any"]
    requests.drop_all()
    client.sent[1][1]("late")
    assert answers == ["new", "any"]


def test_groups_expand_one_level_and_collapse_around_an_operator() -> None:
    groups = {
        g.id: g
        for g in (
            Group("outer", "outer", "scope", (0, 1, 2, 3)),
            Group("inner", "inner", "scope", (0, 1), "outer"),
            Group("deep", "deep", "scope", (0,), "inner"),
        )
    }
    closed = frozenset({"outer"})
    assert picture_controller.expand(closed, "outer", groups) == {"inner"}
    assert picture_controller.expand_around(closed, [0], groups) == frozenset()
    assert picture_controller.expand_around(closed, [3], groups) == {"inner"}
    around = picture_controller.innermost_open_group(frozenset({"deep"}), 0, groups)
    assert around is not None and around.id == "inner"
    assert picture_controller.collapse(frozenset({"deep"}), around, groups) == {"inner"}
    assert picture_controller.innermost_open_group(closed, 0, groups) is None
