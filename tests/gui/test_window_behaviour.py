"""How the window behaves: its size, its panels, closing, the wheel, the keyboard."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMessageBox, QSpinBox

from collage_engine.records.event import Progress, Stage
from collage_gui.document_window.window import PANELS_KEY
from collage_gui.main_window.documents import closing_sentence
from collage_gui.widgets import show_words
from tests.gui.conftest import turn_wheel


def test_the_panels_take_their_share_or_what_the_user_gives_them(drive) -> None:
    d = drive()
    d.window.resize(1280, 800)
    page = d.open()
    for title, panel in page.panels.tabs.items():
        page.tabs.setCurrentWidget(panel)
        d.qtbot.wait(20)
        assert panel.isVisible(), f"{title} is behind a tab"
        share = page.view.width() * page.view.height() / (1280 * 800)
        assert share > 0.5, f"{title} takes its room from the graph"
    first = page.tabs.width()
    d.window.resize(1700, 1000)
    d.until(lambda: page.tabs.width() > first)
    d.preferences.store.setValue(PANELS_KEY, 350)
    d.window.resize(1500, 1000)
    d.until(lambda: abs(page.tabs.width() - 350) < 10)
    d.trigger("panels")
    assert not page.tabs.isVisible()
    d.trigger("panels")
    assert page.tabs.isVisible()


def test_a_long_message_is_whole_in_a_small_window(drive) -> None:
    d = drive()
    page = d.open()
    d.window.resize(500, 500)
    text = "Of 2,923 candidates that the best placement could consist of, 3 were measured. " * 3
    page.messages.show_message(text, "warning", "Run for 3 min 40 s")
    d.until(page.banner.isVisible)
    assert page.banner.y() > 0 and page.banner.rect().contains(page.banner.action.geometry())
    assert page.banner.action.width() >= page.banner.action.sizeHint().width()


def test_long_texts_of_a_run_never_change_the_windows_size(drive) -> None:
    d = drive()
    d.window.resize(1024, 700)
    page = d.open()
    execution = page.document.execution
    toolbar = d.window.toolbar
    beside = toolbar.reference.mapTo(d.window, QPoint(0, 0))
    execution.running = True
    execution.running_changed.emit()
    execution.show_stage(Stage(stage="calibrate"))
    d.qtbot.wait(20)
    assert toolbar.reference.mapTo(d.window, QPoint(0, 0)) == beside, "nor does the toolbar"
    cancel = page.strip.cancel.mapTo(d.window, QPoint(0, 0))
    for number in (1, 10_000, 123_456_789):
        now = "oneDNN on " + "conv2d+add+relu+" * number if number < 1000 else "x" * 400
        execution.show_progress(
            Progress(
                stage="calibrate", done=number, total=10 * number, rate=2.9, left_s=142.0, now=now
            )
        )
        page.messages.show_message("A sentence that goes on and on. " * 20, "warning", "Do it")
        d.qtbot.wait(20)
        assert (d.window.width(), d.window.height()) == (1024, 700)
        assert page.strip.cancel.mapTo(d.window, QPoint(0, 0)) == cancel, "Cancel never moves"
    legend, below = page.view.legend, page.banner.mapTo(page, page.banner.rect().bottomLeft())
    assert legend.isVisible() and below.y() < legend.mapTo(page, QPoint(0, 0)).y()
    execution.running = False
    execution.progress = None
    execution.running_changed.emit()


def test_closing_offers_to_save_and_saves(placed, monkeypatch) -> None:
    d, page = placed
    page.document.session_path = str(d.folder / "kept.collage")
    answers = iter(("cancel", "save"))
    asked = []

    def ask(names: str, running: bool) -> str:
        asked.append((names, running))
        return next(answers)

    monkeypatch.setattr(d.window.documents, "ask_save", ask)
    d.window.close()
    assert d.window.isVisible() and page.document.unsaved
    d.window.close()
    d.until(lambda: not d.window.isVisible())
    assert asked == [("kept.collage", False)] * 2
    assert (d.folder / "kept.collage").exists()


def test_a_run_goes_on_where_no_path_is_given_for_saving(opened, monkeypatch) -> None:
    d, page = opened
    monkeypatch.setattr(d.window.documents, "ask_save", lambda names, running: "save")
    monkeypatch.setattr(d.window.documents, "_ask_session_path", lambda page: "")
    cancelled = []
    monkeypatch.setattr(page.runs, "cancel", lambda: cancelled.append(page))
    page.document.session_path = ""
    page.document.mark_unsaved()
    d.window.close()
    assert d.window.isVisible() and not cancelled
    page.document.unsaved = False


def test_the_question_names_save_first_and_a_run_that_will_stop(drive, monkeypatch) -> None:
    d = drive()
    d.open()
    seen = {}

    def look(box: QMessageBox) -> int:
        seen["text"] = box.informativeText()
        seen["default"] = box.defaultButton().text()
        seen["buttons"] = {button.text().replace("&", "") for button in box.buttons()}
        return 0

    monkeypatch.setattr(QMessageBox, "exec", look)
    assert d.window.documents.ask_save("a.onnx", running=True) == "cancel"
    assert seen["default"] == "Save" and seen["buttons"] == {"Save", "Discard", "Cancel"}
    assert seen["text"].startswith("A run is under way: it will be cancelled.")
    assert "under way" not in closing_sentence(running=False)


def test_the_wheel_changes_no_setting_that_has_no_focus(opened) -> None:
    _, page = opened
    page.show_settings()
    panel = page.panels.run_settings
    fields = (panel.tolerance, panel.most, panel.threads)
    page.view.setFocus()
    before = [field.value() for field in fields]
    choice = panel.precision.currentIndex()
    for field in (*fields, panel.precision):
        turn_wheel(field)
    assert [field.value() for field in fields] == before
    assert panel.precision.currentIndex() == choice


def test_budgets_take_seconds(opened) -> None:
    _, page = opened
    budget = page.panels.run_settings.budget
    texts = {"30 s": 30, "25s": 25, "0.5m": 30, "2 min 30 s": 150, "1h": 3600}
    for text, seconds in texts.items():
        budget.selectAll()
        QTest.keyClicks(budget, text)
        assert page.panels.run_settings.settings().budget_s == seconds


@pytest.mark.parametrize("ends", ["return", "run"])
def test_what_is_no_duration_changes_nothing_and_says_why(opened, ends) -> None:
    _, page = opened
    page.show_settings()
    budget, error = page.panels.run_settings.budget, page.panels.run_settings.error
    for text in ("", "soon", "2", "0", "0 s", "-3", "3 weeks"):
        budget.setFocus()
        budget.selectAll()
        QTest.keyClick(budget, Qt.Key.Key_Delete)
        QTest.keyClicks(budget, text)
        if ends == "return":
            QTest.keyClick(budget, Qt.Key.Key_Return)
        assert page.panels.run_settings.settings().budget_s == 600
        assert budget.text() == "10 min"
        assert ("write 2s or 2m" if text in ("2", "0") else "write 90s") in error.text()
        QTest.keyClicks(budget, "3")
        assert not error.isVisible()


def test_every_menu_has_a_letter_of_its_own(drive) -> None:
    d = drive()
    titles = [action.text() for action in d.window.menuBar().actions()]
    letters = [title[title.index("&") + 1].lower() for title in titles]
    assert len(set(letters)) == len(letters)


def test_f6_steps_through_the_panes_and_keys_open_the_context_menu(opened, monkeypatch) -> None:
    d, page = opened
    d.window.activateWindow()
    page.view.setFocus()
    visited = []
    for _ in range(2):
        d.trigger("other_pane")
        visited.append(QApplication.focusWidget())
    assert page.tabs.isAncestorOf(visited[0]) and visited[1] is page.view
    page.document.selection.select([1])
    wanted = []
    page.view.menu_wanted.disconnect()
    page.view.menu_wanted.connect(lambda _, box: wanted.append(box))
    event = QContextMenuEvent(QContextMenuEvent.Reason.Keyboard, QPoint(5, 5), QPoint(5, 5))
    QApplication.sendEvent(page.view, event)
    box = page.picture.drawn.scene.display.box_of[1]
    assert wanted == [box]
    page.view.setFocus()
    d.qtbot.keyClick(page.view, Qt.Key.Key_F10, Qt.KeyboardModifier.ShiftModifier)
    assert wanted == [box, box]


def test_a_rubber_band_replaces_the_selection(opened) -> None:
    d, page = opened
    page.document.selection.select([0])
    last = page.document.operators.count - 1
    box = page.picture.drawn.rectangles[page.picture.drawn.scene.display.box_of[last]]
    view = page.view

    def drag(modifier) -> None:
        one, two = view.to_view(box.topLeft()).toPoint(), view.to_view(box.bottomRight()).toPoint()
        port, left = view, Qt.MouseButton.LeftButton
        d.qtbot.mousePress(port, left, modifier, one - QPoint(2, 2))
        d.qtbot.mouseMove(port, two + QPoint(1, 1))
        d.qtbot.mouseRelease(port, left, modifier, two + QPoint(1, 1))

    drag(Qt.KeyboardModifier.ShiftModifier)
    assert 0 not in page.document.selection.operators
    assert last in page.document.selection.operators
    page.document.selection.select([0])
    drag(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.ControlModifier)
    assert {0, last} <= page.document.selection.operators


def test_a_click_into_words_selects_them_so_that_a_number_replaces_them(qtbot) -> None:
    field = QSpinBox(maximum=256)
    show_words(field, "auto")
    qtbot.addWidget(field)
    field.show()
    QTest.mouseClick(field.lineEdit(), Qt.MouseButton.LeftButton)
    QTest.keyClicks(field.lineEdit(), "12")
    assert field.value() == 12


def test_keys_go_to_the_graph_of_the_tab_in_front_and_never_into_a_filter(drive) -> None:
    d = drive()
    first = d.open()
    d.run(first)
    second = d.open("resnet50.onnx")
    d.window.activateWindow()
    d.qtbot.keyClick(second.view, Qt.Key.Key_Tab, Qt.KeyboardModifier.ControlModifier)
    d.until(lambda: d.window.documents.current is first)
    assert d.window.focusWidget() is first.view, "not the button Save"
    for tab in range(first.tabs.count()):
        first.tabs.setCurrentIndex(tab)
        first.view.setFocus()
        d.qtbot.keyClick(first.view, Qt.Key.Key_F6)
        assert not isinstance(d.window.focusWidget(), QLineEdit), first.tabs.tabText(tab)


def test_the_log_goes_on_after_its_window_was_closed(opened) -> None:
    _, page = opened
    page.show_log()
    page.log_window.close()
    page.document.requests.logged.emit("info", "a later line")
    page.show_log()
    assert "a later line" in page.panels.log.toPlainText()
