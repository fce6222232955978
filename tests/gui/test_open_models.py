"""Open: dialog, drop, recent, sample, several documents, F5, cancel, clear failures."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog

from collage_engine.records import protocol
from collage_gui.app import start_with_files
from tests.support.recorded import recorded


def test_a_model_opens_by_dialog_and_is_drawn(drive, monkeypatch) -> None:
    d = drive()
    path = d.model()
    monkeypatch.setattr(QFileDialog, "getOpenFileNames", lambda *a, **k: ([path], ""))
    d.trigger("open")
    page = d.window.documents.current
    d.until(lambda: page.picture.drawn.rectangles)
    assert len(page.picture.drawn.rectangles) == 14 + 2, "nodes, and the input and the output"
    assert d.window.documents.tabs.tabText(0) == "small.onnx"
    assert "14 nodes" in d.window.selection_text.text()


def test_a_dropped_file_opens_and_another_kind_is_refused(drive) -> None:
    d = drive()
    d.drop(d.model("dropped-small.onnx"), d.model("broken.txt"))
    d.until(lambda: d.window.messages.text("open").startswith("broken.txt is not an ONNX file"))
    d.until(lambda: d.window.documents.current.picture.drawn.rectangles)
    assert d.window.documents.tabs.count() == 1


def test_the_same_file_opens_once_and_others_beside_it(drive) -> None:
    d = drive()
    first = d.open()
    d.window.documents.open_path(d.model())
    assert d.window.documents.pages == [first]
    second = d.open("resnet50.onnx")
    assert d.window.documents.pages == [first, second]
    assert first.document.operators.count == 19
    assert second.document.operators.count == len(recorded("resnet").graph.nodes)


def test_a_changed_file_is_noticed_and_f5_reloads_it(opened) -> None:
    d, page = opened
    handle = page.document.handle
    with open(page.document.path, "ab") as file:
        file.write(b"more")
    d.until(lambda: d.banner.topic == "changed" and d.banner.isVisible())
    d.trigger("reload")
    d.until(lambda: page.document.handle != handle)
    d.until(lambda: page.document.is_open)


def test_an_engine_that_answers_late_does_not_block_the_window(drive) -> None:
    d = drive("--late", "model.open:1.0")
    page = d.window.documents.open_path(d.model())
    assert not page.picture.drawn.rectangles and page.view.message.startswith("Reading")
    d.window.documents.close(0)
    # The answer arrives when nobody waits for it any more.
    d.qtbot.wait(1300)
    assert d.window.documents.pages == [] and not d.banner.isVisible()


def test_the_sample_on_the_welcome_page_opens(drive, monkeypatch) -> None:
    d = drive()
    from collage_gui.main_window import documents

    sample = d.folder / "models" / "mnist.onnx"
    sample.parent.mkdir()
    sample.write_bytes(b"")
    monkeypatch.setattr(documents, "resource", lambda name: d.folder / name)
    d.qtbot.mouseClick(d.window.welcome.sample, Qt.MouseButton.LeftButton)
    assert d.window.documents.tabs.tabText(0) == "mnist.onnx"


def test_files_of_the_command_line_wait_for_the_engine(drive) -> None:
    """They are opened while the engine starts; none is refused because it is not running."""
    d = drive(start=False)
    start_with_files(d.window, [d.model(), d.model("second-small.onnx")])
    assert d.window.documents.tabs.count() == 2
    d.until(lambda: all(page.document.is_open for page in d.window.documents.pages))
    assert not d.banner.isVisible() and d.window.documents.tabs.count() == 2


def test_closing_a_page_lets_the_engine_free_its_document(drive, monkeypatch) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    handle, client, sent = page.document.handle, page.document.client, []
    send = client.request

    def request(request, *answers) -> None:
        sent.append(request)
        send(request, *answers)

    monkeypatch.setattr(client, "request", request)
    d.window.documents.close(0)
    assert protocol.DocumentClose(document=handle) in sent


def test_each_of_several_files_that_cannot_be_opened_has_its_line(drive) -> None:
    d = drive()
    first, front = d.open(), d.open("resnet50.onnx")
    d.window.documents.tabs.setCurrentWidget(first)
    d.drop(*(d.model(f"broken-{n}-broken.onnx") for n in "ab"))
    d.until(lambda: d.window.documents.pages == [first, front])
    lines = sorted(d.banner.label.text().splitlines())  # in the order of the answers
    assert [line.split()[0] for line in lines] == ["broken-a-broken.onnx", "broken-b-broken.onnx"]
    assert all("is not an ONNX file" in line for line in lines)
    assert d.window.documents.current is first
