"""What each command does: a few calls of the service and a print."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collage_engine.cli import output
from collage_engine.cli.options import file_bytes, settings_from
from collage_engine.cli.progress import ProgressReport
from collage_engine.cli.screen import ERR, say
from collage_engine.records.errors import (
    Cancelled,
    CollageError,
    InfeasibleError,
    SessionError,
    UsageError,
)
from collage_engine.records.event import SHOWN
from collage_engine.records.files import write_atomically
from collage_engine.report.numbers import counted, time_text
from collage_engine.service import answers
from collage_engine.service import protocol as p
from collage_engine.service.engine import Engine, Listener
from collage_engine.service.open_document import OpenDocument
from collage_engine.session.document import Document
from collage_engine.session.file import load_session
from collage_engine.session.pins import close_names

_LOG = logging.getLogger(__name__)


def dispatch(options: argparse.Namespace) -> int:
    """Run the command the user chose; returns the exit status."""
    return _COMMANDS[options.command](options)


def report_error(error: CollageError, options: argparse.Namespace) -> int:
    """One line on standard error (and, asked for JSON, what forbids a placement)."""
    if isinstance(error, InfeasibleError) and getattr(options, "json", False):
        output.print_json({"infeasible": {"reason": str(error), **error.details}})
    if isinstance(error, Cancelled):
        error = Cancelled("cancelled; what was measured is kept")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    _LOG.error("%s: %s", type(error).__name__, error, extra=SHOWN)
    print(f"collage: {'; '.join(lines)}", file=sys.stderr)
    if os.environ.get("COLLAGE_TRACE") and getattr(error, "traceback", ""):
        print(error.traceback, file=sys.stderr)  # type: ignore[attr-defined]
    return error.exit_status


@contextmanager
def _engine(listener: Listener | None = None) -> Iterator[Engine]:
    """An engine whose work Ctrl-C stops in order: cancel first, leave at the second. A batch
    system's SIGTERM and a closed terminal's SIGHUP do the same (not under ``nohup``)."""
    engine = Engine(listener)
    before: dict[int, Any] = {}

    def interrupt(*_: object) -> None:
        for number in before:  # the next one ends the process
            at_once = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, at_once)
        if not engine.cancel():
            raise KeyboardInterrupt

    for number in (int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)):
        handler = signal.getsignal(number)
        # Shells without job control ignore Ctrl-C for what they start beside them; who sends it to
        # this process means it.
        if number == signal.SIGINT or handler == signal.SIG_DFL:
            try:
                signal.signal(number, interrupt)
            except ValueError:
                break  # not the main thread (an embedding program): it handles signals itself
            before[number] = handler
    try:
        yield engine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        engine.close()


def _place(options: argparse.Namespace) -> int:
    from collage_engine.artifact.artifact import check_target_folder
    from collage_engine.session.pins import parse_pin
    from collage_engine.toolchains.registry import all_names

    settings = settings_from(options)
    out = Path(options.output)
    check_target_folder(out)
    earlier = _earlier_session(options.session)
    not_saved: SessionError | None = None
    with ProgressReport(ERR) as progress, _engine(progress) as engine:
        handle = engine.model_open(p.ModelOpen(path=options.model, shapes=settings.shapes)).document
        opened = engine.document(handle)
        _go_on(opened, earlier, options.session)
        graph, model = opened.document.graph, opened.document.model
        pins = tuple(parse_pin(text, graph, model, all_names()) for text in options.pin)
        answers.pins_set(opened, p.PinsSet(document=handle, pins=pins))
        try:
            run = engine.run(handle, settings, out=str(out))
        finally:
            # Also when interrupted: the session then holds what was measured so far.
            if options.session:
                try:
                    engine.session_save(p.SessionSave(document=handle, path=options.session))
                except SessionError as error:
                    not_saved = error
                    print(f"collage: {error}", file=sys.stderr)
    if options.json:
        output.print_json(output.run_document(run))
    else:
        output.print_run(run)
    return 0 if not_saved is None else not_saved.exit_status


def _earlier_session(path: str | None) -> Document | None:
    """What ``--session`` already holds. Raises UsageError rather than lose what is no session."""
    if path is None:
        return None
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"--session {path} is a folder")
    if not target.parent.is_dir():
        raise UsageError(f"--session {path}: there is no folder {target.parent}")
    if not target.exists() or not target.stat().st_size:
        return None
    try:
        earlier, note = load_session(target)
    except SessionError as error:
        raise UsageError(f"--session would overwrite a file: {error}") from error
    if note is not None:
        raise UsageError(f"--session {path} cannot be continued: {note}")
    return earlier


def _go_on(opened: OpenDocument, earlier: Document | None, path: str | None) -> None:
    """Keep the runs of the session that this run will be written to."""
    if earlier is None:
        return
    if not opened.document.continues(earlier):
        raise UsageError(
            f"--session {path} is of another model ({earlier.model.path}) or of other input "
            "sizes: name another file"
        )
    opened.take_over(earlier)


def _toolchains(options: argparse.Namespace) -> int:
    # The first time on a machine this builds the toolchains' runtimes: most of a minute.
    with ERR.status("looking at what is on this machine"), _engine() as engine:
        found = engine.toolchains(anew=True)
    if options.json:
        output.print_json({"toolchains": found.toolchains})
    else:
        output.print_toolchains(found.toolchains)
    return 0


def _candidates(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    with ProgressReport(ERR) as progress, _engine(progress) as engine:
        opened = engine.model_open(p.ModelOpen(path=options.model, shapes=settings.shapes))
        candidates = engine.enumerate(opened.document, settings)
    if options.json:
        output.print_json({"model": opened.model, "candidates": candidates})
        return 0
    output.print_candidates(candidates)
    return 0


def _open_session(engine: Engine, path: str) -> OpenDocument:
    """Open a session; a note (written by another version) goes to standard error."""
    answer = engine.session_open(p.SessionOpen(path=path))
    if answer.note:
        print(f"note: {answer.note}", file=sys.stderr)
    return engine.document(answer.document)


def _explain(options: argparse.Namespace) -> int:
    with _engine() as engine:
        opened = _open_session(engine, options.session)
        document = opened.document
        numbers = _node_numbers(document, options.node)
        answer = answers.explain(opened, p.Explain(document=opened.handle, node=numbers[0]))
    if options.json:
        output.print_json(answer)
    else:
        output.print_node(document, numbers)
        output.print_explanation(answer, _exported(document, numbers[0]))
    return 0


def _exported(document: Document, node: int) -> str | None:
    """The candidate that holds the node in the last run's placement."""
    placement = document.runs[-1].placement if document.runs else None
    parts = placement.partitions if placement is not None else ()
    return next((part.candidate for part in parts if node in part.nodes), None)


def _node_numbers(document: Document, text: str) -> list[int]:
    """Operators meant by a number, or by the name of an ONNX node, without regard to case."""
    calls = [node for node in document.graph.nodes if node.form == "call"]
    if text.isdigit() and int(text) < len(calls):
        return [int(text)]
    wanted = text.lower()
    found = [
        number
        for number, node in enumerate(calls)
        if wanted in (name.lower() for name in node.onnx_nodes)
    ]
    if found:
        return found
    if text.isdigit():
        raise UsageError(f"there is no node {text}: operators are 0…{len(calls) - 1}")
    if wanted in (name.lower() for name in document.model.folded):
        raise UsageError(
            f"clean-up removed the node {text!r}: it is computed once, when the model is read, "
            "and no toolchain runs it"
        )
    near = close_names(text, [name for node in calls for name in node.onnx_nodes])
    hint = f"; near are {', '.join(near)}" if near else ""
    raise UsageError(f"the model has no node {text!r}{hint}")


def _compare(options: argparse.Namespace) -> int:
    with _engine() as engine:
        opened = _open_session(engine, options.session)
        found = answers.runs_compare(
            opened, p.RunsCompare(document=opened.handle, a=options.run, b=options.other)
        )
        before, after = opened.run(found.a), opened.run(found.b)
        names = opened.document.title(before), opened.document.title(after)
    if options.json:
        output.print_json(found)
        return 0
    output.print_comparison(found, names)
    output.print_changed_facts(before, after)
    return 0


def _export(options: argparse.Namespace) -> int:
    from collage_engine.artifact.artifact import check_target_folder

    check_target_folder(Path(options.output))
    with ProgressReport(ERR) as progress, _engine(progress) as engine:
        opened = _open_session(engine, options.session)
        engine.export_artifact(
            p.ExportArtifact(
                document=opened.handle, run=options.run, path=str(Path(options.output).resolve())
            )
        )
    say(f"artifact: {options.output}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from collage_engine.artifact.artifact_run import run_artifact

    result: dict[str, Any] = run_artifact(Path(options.artifact), benchmark=options.benchmark)
    if options.json:
        output.print_json(result)
        return 0
    say(f"largest error against the sample: {result['max_rel_error']:.1e} (relative)")
    if options.benchmark:
        say(
            f"latency: {time_text(result['median_us'])} "
            f"({time_text(result['low_us'])} – {time_text(result['high_us'])}, "
            f"{counted(result['repeats'], 'run')}, {counted(result['threads'], 'thread')})"
        )
        expected = result.get("expected_us")
        if expected:
            say(f"expected:  {time_text(expected)} when it was exported")
    return 0


def _report(options: argparse.Namespace) -> int:
    path = Path(options.output)
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("html", "csv", "json", "svg"):
        raise UsageError(f"-o {path}: the name must end in .html, .csv, .json or .svg")
    peers = None
    if options.peers is not None:
        if kind != "html":
            raise UsageError("--peers is shown in .html reports only")
        peers = file_bytes("--peers", options.peers)
    with _engine() as engine:
        opened = _open_session(engine, options.session)
        wanted = p.ExportReport(
            document=opened.handle,
            run=options.run,
            format=kind,  # type: ignore[arg-type]
            peers=peers,
        )
        done = answers.export_report(opened, wanted)
    try:
        write_atomically(path, done.content or b"")
    except OSError as error:
        raise CollageError(f"cannot write {path}: {error.strerror}") from error
    say(f"report: {path}")
    return 0


def _search(options: argparse.Namespace) -> int:
    from collage_engine.search.command import main_search

    try:
        text = Path(options.problem).read_text()
    except OSError as error:
        raise UsageError(f"{options.problem}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{options.problem} is no text file") from error
    try:
        answer = main_search(text)
    except UsageError as error:
        raise UsageError(f"{options.problem}: {error}") from error
    if options.json:
        output.print_json(answer)
    elif "infeasible" in answer:
        say(f"no placement exists: {answer['infeasible']['reason']}")
    else:
        proven = "proven least" if answer["optimal"] else f"at least {answer['lower_bound_us']}"
        say(f"cost: {answer['cost_us']} µs ({proven})")
        say(f"cover: {', '.join(map(str, answer['cover']))}")
    return 0


def _store(options: argparse.Namespace) -> int:
    import msgspec

    from collage_engine.store.store import Store, StoreReader

    if options.action == "info":
        info = msgspec.to_builtins(StoreReader().info())
        if options.json:
            output.print_json(info)
        else:
            output.print_store(info)
    elif options.action == "export":
        count = StoreReader().export(Path(options.file))
        say(f"{counted(count, 'measurement')} written to {options.file}")
    elif options.action == "import":
        count = Store().import_(Path(options.file))
        say(f"{counted(count, 'new measurement')} taken from {options.file}")
    else:
        say(f"{counted(Store().clear(), 'measurement')} forgotten")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from collage_engine.service.server import main

    return main(getattr(options, "verbose", 0))


_COMMANDS = {
    "place": _place,
    "toolchains": _toolchains,
    "candidates": _candidates,
    "explain": _explain,
    "compare": _compare,
    "export": _export,
    "run": _run,
    "report": _report,
    "search": _search,
    "store": _store,
    "serve": _serve,
}
