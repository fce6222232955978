"""What each command does: a few calls of the service and a print."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from collage_engine.cli import output
from collage_engine.cli.options import settings_from
from collage_engine.cli.progress import ProgressReport
from collage_engine.records.errors import CollageError, InfeasibleError, UsageError
from collage_engine.report.numbers import time_text
from collage_engine.service import protocol as p
from collage_engine.service.engine import Engine, Listener

OUT = Console(
    highlight=False,
    # Into a file or a pipe, lines are not wrapped to a terminal nobody looks at.
    width=None if sys.stdout.isatty() else 160,
)
ERR = Console(stderr=True, highlight=False)


def dispatch(options: argparse.Namespace) -> int:
    """Run the command the user chose; returns the exit status."""
    return _COMMANDS[options.command](options)


def report_error(error: CollageError, options: argparse.Namespace) -> int:
    """One line on standard error (and, asked for JSON, what forbids a placement)."""
    if isinstance(error, InfeasibleError) and getattr(options, "json", False):
        output.print_json({"infeasible": {"reason": str(error), **error.details}})
    print(f"collage: {error}", file=sys.stderr)
    return error.exit_status


@contextmanager
def _engine(listener: Listener | None = None) -> Iterator[Engine]:
    """An engine whose work Ctrl-C stops in order: cancel first, leave at the second."""
    engine = Engine(listener)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        engine.cancel()

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:
        # Not the main thread (a test, an embedding program): it handles signals itself.
        before = None
    try:
        yield engine
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        engine.close()


def _place(options: argparse.Namespace) -> int:
    from collage_engine.placement.artifact import check_target_folder
    from collage_engine.session.pins import parse_pin
    from collage_engine.toolchains.registry import all_names

    settings = settings_from(options)
    out = Path(options.output)
    check_target_folder(out)
    _check_writable_file(options.session)
    with ProgressReport(ERR) as progress, _engine(progress) as engine:
        try:
            opened = engine.model_open(p.ModelOpen(path=options.model, shapes=settings.shapes))
            document = engine.document(opened.document).document
            pins = [
                parse_pin(text, document.graph, document.model, all_names()) for text in options.pin
            ]
            engine.pins_set(p.PinsSet(document=opened.document, pins=tuple(pins)))
            run = engine.run(opened.document, settings, out=str(out))
        finally:
            # Also when interrupted: the session then holds what was measured so far.
            if options.session and engine.has_documents():
                engine.session_save(
                    p.SessionSave(document=engine.last_document(), path=options.session)
                )
    if options.json:
        output.print_json(output.run_document(run))
    else:
        output.print_run(run, OUT)
    return 0


def _check_writable_file(path: str | None) -> None:
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"--session {path} is a folder")
    if not target.parent.is_dir():
        raise UsageError(f"--session {path}: there is no folder {target.parent}")


def _toolchains(options: argparse.Namespace) -> int:
    with _engine() as engine:
        found = engine.toolchains()
    if options.json:
        output.print_json({"toolchains": found.toolchains})
    else:
        OUT.print(output.toolchain_table(found.toolchains))
    return 0


def _candidates(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    with ProgressReport(ERR) as progress, _engine(progress) as engine:
        opened = engine.model_open(p.ModelOpen(path=options.model, shapes=settings.shapes))
        candidates = engine.enumerate(opened.document, settings)
    if options.json:
        output.print_json({"model": opened.model, "candidates": candidates})
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("toolchain", "nodes", "operators", "cost", "rule"):
        table.add_column(title, justify="right" if title == "cost" else "left")
    for c in candidates:
        cost = time_text(c.cost.median_us) if c.cost.usable else c.cost.state
        table.add_row(c.instance.id, _ranges(c.nodes), c.label, cost, c.rule)
    OUT.print(table)
    distinct = len({c.key for c in candidates})
    OUT.print(f"{len(candidates)} candidates, {distinct} distinct")
    return 0


def _ranges(nodes: tuple[int, ...]) -> str:
    from collage_engine.model.index_set import index_set, to_text

    return to_text(index_set(nodes))


def _explain(options: argparse.Namespace) -> int:
    with _engine() as engine:
        opened = engine.session_open(p.SessionOpen(path=options.session))
        node = _node_number(engine, opened.document, options.node)
        answer = engine.explain(p.Explain(document=opened.document, node=node))
    if options.json:
        output.print_json(answer)
        return 0
    for sentence in answer.words:
        OUT.print(sentence, markup=False)
    if answer.candidates:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("", "toolchain", "operators", "cost", "20–80 %", "regret", "state"):
            right = title in ("cost", "20–80 %", "regret")
            table.add_column(title, justify="right" if right else "left")
        for c in answer.candidates:
            regret = answer.regrets.get(c.id)
            spread = ""
            if c.cost.low_us is not None and c.cost.high_us is not None:
                spread = f"{c.cost.low_us:.3g} – {c.cost.high_us:.3g}"
            state = f"invalid: {c.cost.reason}" if c.cost.state == "invalid" else c.cost.state
            chosen = "→" if c.id == answer.chosen else ("=" if c.id in answer.ties else "")
            table.add_row(
                chosen, c.instance.id, c.label, time_text(c.cost.median_us), spread,
                "–" if regret is None else time_text(regret), state,
            )  # fmt: skip
        OUT.print()
        OUT.print(table)
    for missing in answer.not_offered:
        OUT.print(f"{missing.toolchain} offers nothing: {missing.reason}", markup=False)
    return 0


def _node_number(engine: Engine, handle: str, text: str) -> int:
    document = engine.document(handle).document
    if text.isdigit():
        return int(text)
    number = 0
    for node in document.graph.nodes:
        if node.form != "call":
            continue
        if text.lower() in (name.lower() for name in node.onnx_nodes):
            return number
        number += 1
    raise UsageError(f"the model has no node {text!r}")


def _compare(options: argparse.Namespace) -> int:
    with _engine() as engine:
        opened = engine.session_open(p.SessionOpen(path=options.session))
        found = engine.runs_compare(
            p.RunsCompare(document=opened.document, a=options.run, b=options.other)
        )
    if options.json:
        output.print_json(found)
        return 0
    a, b = found.measured_us
    OUT.print(f"{found.a}: {time_text(a)}   {found.b}: {time_text(b)}")
    if found.delta_us is not None and a:
        sign = "+" if found.delta_us > 0 else "−"
        change = time_text(abs(found.delta_us))
        OUT.print(f"difference: {sign}{change} ({found.delta_us / a * 100:+.1f} %)")
    for name, (before, after) in found.by_toolchain.items():
        OUT.print(f"{name}: {before} → {after} partitions", markup=False)
    moved = [change for change in found.nodes if change.change == "moved"]
    regrouped = sum(change.change == "regrouped" for change in found.nodes)
    OUT.print(f"{len(moved)} nodes moved, {regrouped} regrouped")
    for node in moved:
        OUT.print(f"  node {node.node}: {node.before} → {node.after}", markup=False)
    return 0


def _export(options: argparse.Namespace) -> int:
    from collage_engine.placement.artifact import check_target_folder

    check_target_folder(Path(options.output))
    with ProgressReport(ERR) as progress, _engine(progress) as engine:
        opened = engine.session_open(p.SessionOpen(path=options.session))
        engine.export_artifact(
            p.ExportArtifact(
                document=opened.document, run=options.run, path=str(Path(options.output).resolve())
            )
        )
    OUT.print(f"artifact: {options.output}", markup=False)
    return 0


def _run(options: argparse.Namespace) -> int:
    from collage_engine.placement.artifact import run_artifact

    result: dict[str, Any] = run_artifact(Path(options.artifact), benchmark=options.benchmark)
    if options.json:
        output.print_json(result)
        return 0
    OUT.print(f"largest error against the sample: {result['max_rel_error']:.1e} (relative)")
    if options.benchmark:
        OUT.print(
            f"latency: {time_text(result['median_us'])} "
            f"({time_text(result['low_us'])} – {time_text(result['high_us'])}, "
            f"{result['repeats']} runs, {result['threads']} threads)"
        )
        expected = result.get("expected_us")
        if expected:
            OUT.print(f"expected:  {time_text(expected)} when it was exported")
    return 0


def _report(options: argparse.Namespace) -> int:
    path = Path(options.output)
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("html", "csv", "json", "svg"):
        raise UsageError(f"-o {path}: the name must end in .html, .csv, .json or .svg")
    with _engine() as engine:
        opened = engine.session_open(p.SessionOpen(path=options.session))
        done = engine.export_report(
            p.ExportReport(document=opened.document, run=options.run, format=kind)  # type: ignore[arg-type]
        )
    write_beside(path, done.content or b"")
    OUT.print(f"report: {path}", markup=False)
    return 0


def write_beside(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CollageError(f"cannot write {path}: {error.strerror}") from error


def _search(options: argparse.Namespace) -> int:
    from collage_engine.search.command import main_search

    try:
        text = Path(options.problem).read_text()
    except OSError as error:
        raise UsageError(f"{options.problem}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{options.problem} is no text file") from error
    answer = main_search(text)
    if options.json:
        output.print_json(answer)
    elif "infeasible" in answer:
        OUT.print(f"no placement exists: {answer['infeasible']['reason']}", markup=False)
    else:
        proven = "proven least" if answer["optimal"] else f"at least {answer['lower_bound_us']}"
        OUT.print(f"cost: {answer['cost_us']} µs ({proven})")
        OUT.print(f"cover: {', '.join(map(str, answer['cover']))}", markup=False)
    return 0


def _store(options: argparse.Namespace) -> int:
    import msgspec

    from collage_engine.measure.store import Store

    store = Store(None)
    if options.action == "info":
        info = msgspec.to_builtins(store.info())
        if options.json:
            output.print_json(info)
        else:
            for key, value in info.items():
                OUT.print(f"{key}: {value}", markup=False)
    elif options.action == "export":
        count = store.export(Path(options.file))
        OUT.print(f"{count} measurements written to {options.file}", markup=False)
    elif options.action == "import":
        count = store.import_(Path(options.file))
        OUT.print(f"{count} new measurements taken from {options.file}", markup=False)
    else:
        OUT.print(f"{store.clear()} measurements forgotten")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from collage_engine.service.server import main

    return main()


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
