"""What each command does: a few calls of the public interface and a print."""

from __future__ import annotations

import argparse
import json
import keyword
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from collage_engine.api import Session, run_artifact
from collage_engine.artifact.artifact import check_target_folder
from collage_engine.cli import output
from collage_engine.cli.check_command import check
from collage_engine.cli.farm_command import farm, place_on_farm
from collage_engine.cli.options import settings_from, shape_choices
from collage_engine.cli.print_run import print_run, print_shapes, run_document
from collage_engine.cli.screen import ERR, complain, say
from collage_engine.cli.search_command import search
from collage_engine.drawing.progress import ProgressReport
from collage_engine.machine.folders import replace_atomically
from collage_engine.machine.loader.run_artifact import sha256
from collage_engine.machine.worker import call_in_child
from collage_engine.records import protocol as p
from collage_engine.records.operators import NodeTitles
from collage_engine.records.settings import ReportFormat, RunSettings
from collage_engine.records.shapes import ShapeChoice
from collage_engine.records.versions import __version__
from collage_engine.service import server
from collage_engine.service.engine import Engine, interruptible_engine
from collage_engine.store.profiles import diagnosis
from collage_engine.store.session_file import earlier_session
from collage_engine.support.errors import (
    ArtifactError,
    Cancelled,
    CollageError,
    SessionError,
    UsageError,
)
from collage_engine.support.files import check_writable, resource, write_atomically
from collage_engine.support.text import counted
from collage_engine.support.time_limits import WORK_S
from collage_engine.toolchains.registry import all_names, title_of
from collage_engine.wording.titles import register_toolchains

REPORTS: dict[str, ReportFormat] = {
    ".html": "html",
    ".shapes.csv": "shapes",
    ".csv": "csv",
    ".explorer.json": "explorer",
    ".trace.json": "trace",
    ".json": "json",
    ".timeline.svg": "timeline",
    ".svg": "svg",
    ".graphml": "graphml",
}
"""The formats of reports, by how the name of the file ends, the longest ends first."""


def _tell(options: argparse.Namespace, document: Any, in_words: Callable[[], None]) -> None:
    """Print a document as JSON where that was asked for, else in words."""
    if options.json:
        output.print_json(document)
    else:
        in_words()


def _place(options: argparse.Namespace) -> int:
    began = time.monotonic()
    settings = settings_from(options)
    choices = shape_choices(options)
    if options.farm:
        return place_on_farm(options, settings, choices)
    if options.kind:
        raise UsageError("--kind is a kind of machines of a farm: name the farm with --farm")
    if len(options.model) > 1:
        raise UsageError("several models are placed over a farm only: name it with --farm")
    (model,) = options.model
    check_target_folder(Path(options.output))
    if len(choices) > 1 or options.others or options.calls:
        return _place_shapes(options, model, settings, choices, began)
    if options.session:
        earlier_session(options.session)  # what is no session is found before the model is opened
    not_saved: SessionError | None = None
    with ProgressReport(ERR) as progress, interruptible_engine(progress) as engine:
        shapes = settings.shapes
        if choices:
            request = p.ShapesResolve(path=model, choices=choices, inputs_npz=settings.inputs_npz)
            (shapes,) = engine.request(request)
        session = Session.of_model(engine, model, shapes, settings.inputs_npz)
        settings = msgspec.structs.replace(settings, shapes=session.model.shapes)
        if options.session:
            session.continue_from(options.session, choices[0] if choices else None)
        session.pin(*options.pin)
        try:
            # The budget is that of the command: opening the model is part of it.
            spent_s = time.monotonic() - began
            run = session.place(settings, out=options.output, spent_s=spent_s)
        except ArtifactError as error:
            if not options.session:
                raise
            raise ArtifactError(
                f"{error}; the run is kept in {options.session}, and 'collage export "
                f"{options.session} -o FOLDER' writes its artifact"
            ) from error
        finally:
            # Also when interrupted: the session then holds what was measured so far.
            not_saved = _save(session, options.session)
    _tell(options, run_document(run), lambda: print_run(run, progress.warned))
    if not_saved is not None:
        return not_saved.exit_status
    return Cancelled.exit_status if run.ended == "stopped" else 0


def _place_shapes(
    options: argparse.Namespace,
    model: str,
    settings: RunSettings,
    choices: Sequence[ShapeChoice],
    began: float,
) -> int:
    """Place a model for several shapes, for one artifact."""
    from collage_engine.farm.several_runs import place_shapes

    session = None if options.session is None else Path(options.session)
    with ProgressReport(ERR) as progress, interruptible_engine(progress) as engine:
        if options.calls:
            choices = _from_calls(engine, model, options.calls)
        placed = place_shapes(
            engine,
            model,
            choices,
            settings,
            out=options.output,
            others=options.others,
            pins=options.pin,
            session=session,
            spent_s=time.monotonic() - began,
        )
    runs = [run_document(run) for run in placed.runs]
    document = {**placed.document(), "runs": runs}
    _tell(options, document, lambda: print_shapes(placed, progress.warned))
    if placed.not_saved is not None:
        complain(f"collage: {placed.not_saved}")
        return placed.not_saved.exit_status
    return Cancelled.exit_status if any(run.ended == "stopped" for run in placed.runs) else 0


def _from_calls(engine: Engine, model: str, path: str) -> tuple[ShapeChoice, ...]:
    """Return the shapes that a log of calls chooses, and say which."""
    from collage_engine.farm.calls import choose, read_calls, what_is_chosen
    from collage_engine.farm.several_runs import PROOF

    named = engine.request(p.ModelDimensions(path=model)).dimensions
    logged = read_calls(path, sha256(Path(model)))
    choices = choose(logged, call_in_child(PROOF, (model, [*named]), timeout_s=WORK_S))
    complain(f"{path}: {what_is_chosen(choices, logged)}")
    return choices


def _save(session: Session, path: str | None) -> SessionError | None:
    """Save the session if the user named a file; the error, already shown, if that fails."""
    if path is None:
        return None
    try:
        session.save(path)
    except SessionError as error:
        complain(f"collage: {error}")
        return error
    return None


def _toolchains(options: argparse.Namespace) -> int:
    if options.action == "check":
        return _check_toolchains(options)
    if options.action == "new":
        return _new_toolchain(options)
    # The first time on a machine this builds the toolchains' runtimes: most of a minute.
    with ERR.status("looking at what is on this machine"), interruptible_engine() as engine:
        states = engine.request(p.ToolchainsList(anew=True))
    _tell(options, {"toolchains": states}, lambda: output.print_toolchains(states))
    return 0


PACKAGE = "package"
"""Folder of the template that becomes the Python package."""


def _new_toolchain(options: argparse.Namespace) -> int:
    """Write a package with a toolchain in Python alone, which keeps what the engine expects of it.

    Raises:
        UsageError: The name can be no toolchain's, or is one's already; or the folder is there.
        CollageError: The folder cannot be written.
    """
    name: str = options.name
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"{name!r} can be no toolchain's name: take small letters and digits")
    if name in all_names():
        raise UsageError(f"there is a toolchain {name!r} already")
    folder = Path(f"collage-{name}")
    if folder.exists():
        raise UsageError(f"{folder} is there already")
    template = resource("toolchain")
    values = {"name": name, "title": name.capitalize(), "version": __version__}

    def fill(new: Path) -> None:
        (new / f"collage_{name}").mkdir()
        for file in template.rglob("*.*"):
            if file.suffix == ".pyc":  # pip compiles what it installs
                continue
            relative = file.relative_to(template).as_posix().replace(PACKAGE, f"collage_{name}")
            (new / relative).write_text(Template(file.read_text()).substitute(values))

    try:
        replace_atomically(folder, fill)
    except OSError as error:
        raise CollageError(f"{folder} cannot be written: {error.strerror or error}") from error
    say(f"{folder}: pip install ./{folder}, then: collage toolchains check {name}")
    return 0


def _check_toolchains(options: argparse.Namespace) -> int:
    """Exit status 0 where every check passed or says nothing here, 1 where one failed."""
    from collage_engine.run.conformance.checks import CHECKS
    from collage_engine.run.conformance.run import Finding, check_toolchain

    names = all_names() if options.all else options.names
    if not names:
        raise UsageError("toolchains check: name the toolchains to check, or give --all")

    def show(finding: Finding) -> None:
        if not options.json:
            say(f"{finding.outcome}  {finding.check}: {finding.text}")

    documents: list[dict[str, Any]] = []
    for name in names:
        findings = check_toolchain(name, show)
        made = {finding.check for finding in findings}
        outcomes = [finding.outcome for finding in findings]
        not_made = [check for check in CHECKS if check not in made]
        documents.append({"toolchain": name, "findings": findings, "not_made": not_made})
        if not options.json:
            if not_made:
                say(f"not made, since they rest on what failed: {', '.join(not_made)}")
            passed, failed = outcomes.count("passed"), outcomes.count("failed")
            say(f"{name}: {passed} of {len(findings)} checks passed, {failed} failed")
    if options.json:
        output.print_json(documents[0] if len(documents) == 1 else {"checked": documents})
    every = [finding for document in documents for finding in document["findings"]]
    return 1 if any(finding.outcome == "failed" for finding in every) else 0


def _candidates(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    with ProgressReport(ERR) as progress, interruptible_engine(progress) as engine:
        session = Session.of_model(engine, options.model, settings.shapes)
        candidates, titles = session.candidates(settings), NodeTitles(session.graph.nodes)
        register_toolchains(session.document.toolchains)
    document = {"model": session.model, "candidates": candidates}
    _tell(options, document, lambda: output.print_candidates(candidates, titles))
    return 0


def _open_session(engine: Engine, options: argparse.Namespace) -> Session:
    """Open a session, for the shape that was asked for."""
    session = Session.of_file(engine, options.session)
    return session.of_shape(dict(options.dim)) if options.dim else session


def _explain(options: argparse.Namespace) -> int:
    with interruptible_engine() as engine:
        session = _open_session(engine, options)
        numbers = session.operators(options.node)
        answer = session.explain(numbers[0], options.run)
    _tell(options, answer, lambda: output.print_node(answer, session.document, numbers))
    return 0


def _diagnose(options: argparse.Namespace) -> int:
    if not options.runtime and not options.profile:
        raise UsageError("diagnose: name a runtime with --runtime, or its file with --profile")
    settings, began = settings_from(options), time.monotonic()
    if options.session:
        earlier_session(options.session)
    with ProgressReport(ERR) as progress, interruptible_engine(progress) as engine:
        session = Session.of_model(engine, options.model, settings.shapes, settings.inputs_npz)
        settings = msgspec.structs.replace(settings, shapes=session.model.shapes)
        if options.session:
            session.continue_from(options.session)
        placed = next((run for run in reversed(session.runs) if not run.of_profile), None)
        if options.profile:
            profiled = session.read_profile(options.profile)
        else:
            profiled = session.profile(options.runtime, settings)
        if options.place:
            placed = session.place(settings, spent_s=time.monotonic() - began)
        result = diagnosis(session.graph, profiled, placed)
        not_saved = _save(session, options.session)
    states = (*session.document.toolchains, *profiled.toolchains)
    _tell(options, result, lambda: output.print_diagnosis(result, states))
    return 0 if not_saved is None else not_saved.exit_status


def _compare(options: argparse.Namespace) -> int:
    with interruptible_engine() as engine:
        session = _open_session(engine, options)
        one, other = (_run_or_profile(session, side) for side in (options.run, options.other))
        comparison = session.compare(one, other)
        before, after = session.run(comparison.a), session.run(comparison.b)
    document = session.document
    _tell(options, comparison, lambda: output.print_comparison(comparison, before, after, document))
    return 0


def _run_or_profile(session: Session, name: str) -> str:
    """Return what names a run; of a profile's file, which becomes one of the runs, its id."""
    run = session.document.run(name)
    if run is None and Path(name).is_file():
        run = session.read_profile(name)
    return name if run is None else run.id


def _export(options: argparse.Namespace) -> int:
    out, run = options.output, options.run or "last"
    if options.operator and not options.operator.endswith(".onnx"):
        raise UsageError(f"--onnxruntime writes an ONNX file: {options.operator} must end in .onnx")
    if options.operator and not out:
        out = options.operator.removesuffix(".onnx")
    if not out:
        raise UsageError("export: name a folder with -o, or an ONNX file with --onnxruntime")
    library = None
    check_target_folder(Path(out))
    if options.operator:
        check_writable(options.operator)
    with ProgressReport(ERR) as progress, interruptible_engine(progress) as engine:
        session = _open_session(engine, options)
        is_one = not session.shapes or options.dim
        if options.others and is_one:
            raise UsageError("--others is of several shapes: one is exported")
        if not is_one and options.run:
            raise UsageError("--run is of one shape: say with --dim of which one")
        if options.operator:
            others = None if is_one else options.others
            library = session.export_operator(options.operator, out, run, others=others)
        elif is_one:
            session.export(out, run)
        else:
            session.export_shapes(out, others=options.others)
    say(f"artifact: {out}")
    if library is not None:
        say(f"model for ONNX Runtime: {options.operator}")
        say(f"library for ONNX Runtime's register_custom_ops_library: {library}")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.trace:
        check_writable(options.trace)
    result = run_artifact(options.artifact, benchmark=options.benchmark)
    if options.trace:
        from collage_engine.artifact.artifact_run import traced_artifact
        from collage_engine.drawing.timeline import trace_of

        traced = traced_artifact(Path(options.artifact).absolute())
        _write(options.trace, json.dumps(trace_of(*traced, title_of)))
    if options.json:
        output.print_json(result)
        return 0
    if options.trace:
        say(f"trace: {options.trace} (opens in https://ui.perfetto.dev and chrome://tracing)")
    for entry in result.get("entries", [result]):
        output.print_result(entry)
    return 0


def _report(options: argparse.Namespace) -> int:
    path, name = Path(options.output), Path(options.output).name.lower()
    kind = next((kind for end, kind in REPORTS.items() if name.endswith(end)), None)
    if kind is None:
        raise UsageError(f"-o {path}: the name must end in {', '.join(REPORTS)}")
    check_writable(path)
    with interruptible_engine() as engine:
        session = _open_session(engine, options)
        content = session.report(kind, options.run)
    _write(path, content)
    say(f"report: {path}")
    return 0


def _write(path: str | Path, content: bytes | str) -> None:
    """Write a whole file; what the system says of a full disk does not name it."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise CollageError(f"cannot write {path}: {error.strerror}") from error


def _store(options: argparse.Namespace) -> int:
    from collage_engine.store.store import Store
    from collage_engine.toolchains.runtime.kept_files import kernel_files, remove_least_used

    if options.action == "info":
        sizes = [file.stat().st_size for file in kernel_files()]
        info = msgspec.structs.replace(Store().info(), kernels=len(sizes), kernel_bytes=sum(sizes))
        _tell(options, info, lambda: output.print_store(info))
    elif options.action == "export":
        count = Store().export(Path(options.file))
        say(f"{counted(count, 'measurement')} written to {options.file}")
    elif options.action == "import":
        count = Store().import_(Path(options.file))
        say(f"{counted(count, 'new measurement')} taken from {options.file}")
    else:
        say(f"{counted(Store().clear(), 'measurement')} forgotten")
        count = len(list(kernel_files()))
        remove_least_used(0)
        say(f"{counted(count, 'compiled kernel')} removed")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "place": _place,
    "toolchains": _toolchains,
    "candidates": _candidates,
    "explain": _explain,
    "compare": _compare,
    "diagnose": _diagnose,
    "export": _export,
    "run": _run,
    "check": check,
    "report": _report,
    "search": search,
    "store": _store,
    "farm": farm,
    "serve": lambda options: server.main(getattr(options, "verbose", 0)),
}
"""What each command does; it returns the exit status."""
