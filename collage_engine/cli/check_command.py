"""``collage check``: is a model slower, less exact or larger than a baseline? Exit status 0, 1, 2.

It is the status of ``diff``: 0 where nothing is worse than is allowed (a tie included), 1 where
something is, 2 where that could not be found out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from collage_engine.api import Session, run_artifact
from collage_engine.artifact.manifest import is_artifact, read_manifest, timed_manifest
from collage_engine.artifact.paired_times import compare_artifacts
from collage_engine.cli import output
from collage_engine.cli.screen import ERR, complain, say
from collage_engine.drawing.progress import ProgressReport
from collage_engine.lowering.built import MODULE_FILE
from collage_engine.machine.cuda import cuda_probe
from collage_engine.machine.device import busy, device
from collage_engine.machine.loader.run_artifact import sha256
from collage_engine.records.answers import CheckName, Gate, GateCheck
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.service.engine import Engine, interruptible_engine
from collage_engine.support.errors import Cancelled, CollageError, UsageError
from collage_engine.support.files import check_writable, write_atomically
from collage_engine.support.text import counted
from collage_engine.support.typed import convert
from collage_engine.wording.amounts import bytes_text, duration_text, gain_text, time_text

NOT_COMPARED = 2
"""Exit status where no comparison was possible."""


def check(options: argparse.Namespace) -> int:
    """Compare a model with a baseline; returns the exit status."""
    try:
        for path in filter(None, (options.junit, options.markdown)):
            check_writable(path)
        gate = _gate(options)
    except Cancelled:
        raise
    except CollageError as error:
        output.report_error(error, options)
        return NOT_COMPARED
    for path, content in ((options.junit, junit(gate)), (options.markdown, markdown(gate))):
        if path is not None:
            write_atomically(path, content)
    if options.json:
        output.print_json(gate)
    else:
        say(markdown(gate))
    return int(gate.outcome == "failed")


def _gate(options: argparse.Namespace) -> Gate:
    """Make both artifacts, compare them, and return what was found out."""
    against, model = Path(options.against), Path(options.model)
    with tempfile.TemporaryDirectory(prefix="collage-check-") as scratch:
        before, after = Path(scratch, "baseline"), Path(scratch, "today")
        with (
            ProgressReport(ERR) as progress,
            interruptible_engine(progress, keeps=False) as engine,
        ):
            if is_artifact(against):
                manifest, before = timed_manifest(against), against
                settings = RunSettings(threads=manifest["threads"], target=manifest["target"])
            else:
                reference_session = Session.of_file(engine, against)
                if reference_session.shapes:
                    raise UsageError(f"{against} is for several shapes: give an artifact of one")
                run = reference_session.run()
                settings = convert(run.settings, RunSettings)
                _baseline_again(engine, against, run, model, before)
            if is_artifact(model):
                after = model
            else:
                within = duration_text(options.budget)
                complain(f"placing {model} within {within} (--budget), then comparing")
                session = Session.of_model(engine, model, settings.shapes)
                again = {"budget_s": options.budget, "confirmation": "full"}
                session.place(msgspec.structs.replace(settings, **again), out=after)
        with ERR.status("timing both in common rounds"):
            return gate_outcome(options, before, after)


def _baseline_again(engine: Engine, path: Path, run: Run, model: Path, out: Path) -> None:
    """Build a session's newest placement again from its model file.

    Where the model that is checked is the very file that was placed, that is taken.

    Raises:
        UsageError: The file is gone.
    """
    for file in (Path(run.model["path"]), model):
        if not file.is_file() or sha256(file) != run.model["sha256"]:
            continue
        session = Session.of_model(engine, file, convert(run.settings, RunSettings).shapes)
        session.continue_from(path)
        session.export(out, run.id)
        return
    raise UsageError(
        f"{path}: the model file that was placed, {run.model['path']}, is gone or has changed, so "
        "that its placement cannot be built again: check against an artifact instead"
    )


def gate_outcome(options: argparse.Namespace, before: Path, after: Path) -> Gate:
    """Return what a comparison says.

    Args:
        options: The limits.
        before: The artifact of the baseline.
        after: The artifact that is judged.
    """
    others = None
    if same_module(read_manifest(after), read_manifest(before)):
        latency = GateCheck(
            name="latency", outcome="passed", value=1.0, limit=1 + options.max_slower
        )
        opened = run_artifact(after) | {"wrong": None}  # a wrong one would have raised
    else:
        others = busy()
        latency, opened = compare_artifacts(after, before, options.max_slower)
    error, memory = opened["max_rel_error"], opened["memory_bytes"]
    is_wrong = opened["wrong"] is not None
    too_far = is_wrong if options.max_error is None else error > options.max_error
    checks = [
        latency,
        _bounded("error", error, options.max_error or read_manifest(after)["tolerance"], too_far),
    ]
    if options.max_memory is not None:
        too_much = memory > options.max_memory
        checks.append(_bounded("memory", memory, options.max_memory, too_much))
    failed = any(one.outcome == "failed" for one in checks)
    return Gate(
        model=options.model,
        against=options.against,
        outcome="failed" if failed else checks[0].outcome,
        machine=_device_of(after),
        busy=others or "",
        checks=tuple(checks),
    )


def same_module(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell by two manifests whether two artifacts run the same code: their times are equal, then.

    What an export writes depends on the placement alone, so that its files have the same hashes.
    The loaders may differ, and one may also be an operator of ONNX Runtime.
    """
    files, others = one["files"], other["files"]
    common = [name for name in files if name in others and not name.startswith("loader/")]
    return (
        MODULE_FILE in common
        and all(files[name]["sha256"] == others[name]["sha256"] for name in common)
        and all(one[key] == other[key] for key in ("environment", "requires"))
    )


def _bounded(name: CheckName, value: float, limit: float, failed: bool) -> GateCheck:
    return GateCheck(name=name, outcome="failed" if failed else "passed", value=value, limit=limit)


def _device_of(artifact: Path) -> str:
    """Return the device of this machine on which an artifact runs, as a person reads it."""
    if read_manifest(artifact).get("device", "cpu") == "cpu":
        return device().description
    devices = cuda_probe().devices
    return devices[0].record().description if devices else ""


# -- what is written -------------------------------------------------------------------


def sentence(check: GateCheck) -> str:
    """Say what a check found, for a reader who knows the baseline."""
    if check.name == "error":
        return f"largest error {check.value:.1e} (relative), allowed {check.limit:.1e}"
    if check.name == "memory":
        return f"loading adds {bytes_text(check.value)}, allowed {bytes_text(check.limit)}"
    if check.us is None:
        return "equal: both are the same module, byte for byte"
    return (
        f"{time_text(check.us)}, the baseline {time_text(check.baseline_us)}: "
        f"{gain_text(check.value, 1.0)}, allowed {gain_text(check.limit, 1.0)}"
        f" (99 % interval {gain_text(check.low, 1.0)} to {gain_text(check.high, 1.0)}, "
        f"{counted(check.pairs, 'pair')} of processes in common rounds)"
    )


def markdown(gate: Gate) -> str:
    """Return the page of a gate, a table with a row for each check."""
    noisy = ", the machine is too noisy to say" if gate.outcome == "tie" else ""
    lines = (
        f"{gate.model} against {gate.against}: **{gate.outcome}**{noisy}",
        "",
        "| check | outcome | |",
        "|---|---|---|",
        *(f"| {one.name} | {one.outcome} | {sentence(one)} |" for one in gate.checks),
        "",
        f"Machine: {gate.machine}" + (f" ({gate.busy})." if gate.busy else "."),
    )
    return "\n".join(lines) + "\n"


def junit(gate: Gate) -> bytes:
    """Return the gate as a JUnit file: a test for each check; what says nothing is skipped."""
    kinds = {"failed": "failure", "tie": "skipped"}
    tags = [kinds.get(one.outcome) for one in gate.checks]
    suite = ElementTree.Element(
        "testsuite",
        name="collage check",
        tests=str(len(tags)),
        failures=str(tags.count("failure")),
        skipped=str(tags.count("skipped")),
        errors="0",
    )
    for one, tag in zip(gate.checks, tags, strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname=gate.model, name=one.name)
        if tag is not None:
            ElementTree.SubElement(case, tag, message=f"{one.outcome}: {sentence(one)}")
        else:
            ElementTree.SubElement(case, "system-out").text = sentence(one)
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text
