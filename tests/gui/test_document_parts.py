"""Parts of a document and controllers of its window, each without the window around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QUndoStack

from collage_engine.drawing.groups import Group
from collage_engine.records import protocol
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Partition, Placement
from collage_gui.document.pin_set import PinSet
from collage_gui.document.shown import Shown, ShownPlacement
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


def partition(name: str, nodes: tuple[int, ...], us: float | None) -> Partition:
    return Partition(
        id=name,
        candidate=name,
        toolchain="tvm",
        config={},
        nodes=nodes,
        onnx_nodes=(),
        estimated_us=us,
    )


def placement(*partitions: Partition) -> Placement:
    return Placement(partitions=partitions, estimated_us=None)


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


def test_a_failed_request_is_announced_unless_it_is_handled(qtbot) -> None:
    client = RecordingClient()
    requests = EngineRequests(client)
    announced: list[str] = []
    handled: list[str] = []
    requests.failed.connect(announced.append)
    requests.send(EXPLAIN)
    requests.send(EXPLAIN, failed=handled.append)
    client.sent[0][2]("one")
    client.sent[1][2]("two")
    assert (announced, handled) == (["one"], ["two"])


def test_undoing_a_pin_brings_back_what_was_shown(qtbot) -> None:
    requests, undo, shown = EngineRequests(RecordingClient()), QUndoStack(), ShownPlacement()
    pins = PinSet(requests, undo, shown)
    before = Shown(placement(partition("a", (0, 1), 7.7)), "Run 2", "r2", False)
    after = Shown(placement(partition("b", (0, 1), 32.7)), "Search")
    shown.show(before)
    pins.edit((Pin(kind="on", nodes=(1,), toolchain="openvino"),), "Pin to OpenVINO")
    assert shown.shown is before and not pins.restored
    shown.show(after)
    undo.undo()
    assert shown.shown is before and pins.restored and pins.current == ()
    undo.redo()
    assert shown.shown is after and len(pins.current) == 1
    assert shown.named == protocol.ShownCover(candidates=("b",))
    shown.show(before)
    assert shown.named == protocol.ShownCover(run="r2")


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
