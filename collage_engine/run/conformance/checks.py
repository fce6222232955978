"""The checks themselves: a list of plain functions, each of which examines one promise.

A check returns a sentence that says what it found in order. It raises ``Nonconformance`` with the
sentence to act on, and ``NotApplicable`` where it says nothing about this toolchain or machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.candidates.catalog import checked_instances
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.reference import original_outputs
from collage_engine.lowering.tensors import empty, from_numpy, to_numpy
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.run.conformance.subject import (
    TOLERANCE,
    Case,
    NotApplicable,
    Subject,
    demand,
    described,
)
from collage_engine.run.conformance.values import exact_values_are_exact, nan_is_handed_on
from collage_engine.support.errors import MOST_CHARACTERS
from collage_engine.support.text import counted
from collage_engine.toolchains import capabilities, registry
from collage_engine.toolchains.base import Function, Toolchain
from collage_engine.toolchains.capabilities import LowersToTir
from collage_engine.wording.titles import PATTERNS

KINDS = ("cpu", "cuda")
"""Kinds of devices that a toolchain can compile for."""
NEARLY = 0.75
"""Similarity (``difflib``'s ratio) from which on a method's name counts as that of a capability,
misspelt: right names of our own toolchains come up to 0.60 near (``library`` to
``libraries_for``)."""
CAPABILITIES = {
    method: owner
    for owner in (Toolchain, *vars(capabilities).values())
    if owner is Toolchain or getattr(owner, "_is_runtime_protocol", False)
    for method in vars(owner).keys() - Toolchain.__abstractmethods__
    if not method.startswith("_") and callable(getattr(owner, method))
}
"""Method → the protocol of ``toolchains.capabilities`` that it is of; ``Toolchain``, where all
toolchains have it."""
CALLERS = 4
"""Threads that call one module at once; chosen."""
TURNS = 20
"""Calls that each of them makes: twice as many as a module without turns gave wrong values in."""
BATCHES = (500, 3000, 3000, 3000)
"""Calls of a module before its memory is looked at again, the first ones to warm it; chosen."""
LEAK_BYTES = 170 * BATCHES[-1]
"""Growth of the process in every batch from which calls leave something behind: so many bytes a
call are less than any object that a runtime makes for a call."""

Call = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def about_is_complete(subject: Subject) -> str:
    """``about`` says everything that documents, licences and pictures need."""
    about = subject.toolchain.about
    demand(registry.NAME.fullmatch(about.name), f"about.name {about.name!r} is no plain name")
    demand(about.title.strip(), "about.title is empty: it is what people read")
    demand(about.licence.strip(), "about.licence is empty: it is an SPDX expression")
    demand(about.targets, "about.targets is empty: it compiles for nothing")
    strange = sorted(set(about.targets) - set(KINDS))
    demand(not strange, f"about.targets has {strange}; known are {', '.join(KINDS)}")
    colour = re.fullmatch(r"#[0-9a-f]{6}", about.colour) or not about.colour
    demand(colour, f"about.colour {about.colour!r} is not of the form #rrggbb")
    demand(len(about.letters) in (0, 2), f"about.letters {about.letters!r} are not two")
    demand(
        about.pattern in ("", *PATTERNS),
        f"about.pattern {about.pattern!r} is none of {', '.join(PATTERNS)}",
    )
    return f"{about.title} ({about.name}), {about.licence}, for {' and '.join(about.targets)}"


def probe_answers(subject: Subject) -> str:
    """``probe`` answers in a child process, with a version or with a reason."""
    state = subject.state
    if state.available:
        demand(state.version, "it is available and says no version: measurements depend on it")
        demand(state.devices, "it is available and names no device")
        return f"version {state.version}, devices {', '.join(state.devices)}"
    demand(state.reason, "it is not available and gives no reason")
    demand(
        state.install,
        f"it is not available ({state.reason}) and says nothing of how to install it",
    )
    raise NotApplicable(f"it is not available here: {state.reason}")


def capabilities_are_named_right(subject: Subject) -> str:
    """No method is nearly one of a capability."""
    cls, *bases = type(subject.toolchain).__mro__
    lacking = {
        name: owner
        for name, owner in CAPABILITIES.items()
        if getattr(cls, name, None) is getattr(Toolchain, name, None)
    }
    for name in vars(cls).keys() - CAPABILITIES.keys() - {n for base in bases for n in vars(base)}:
        if callable(getattr(cls, name)) and not name.startswith("_"):
            for near in get_close_matches(name, lacking, 1, NEARLY):
                demand(
                    False,
                    f"it has {name}, which is nearly {near} of {lacking[near].__name__}: call it "
                    "that, or, if it is no part of that capability, something else or with a "
                    "leading underscore",
                )
    return ", ".join(sorted(CAPABILITIES.keys() - lacking)) or "it has no optional capability"


def instances_are_distinct(subject: Subject) -> str:
    """``instances`` gives float32 configurations, the default first, with the run's threads."""
    toolchain, listed = subject.toolchain, ""
    cpu = subject.target.kind == "cpu"
    for target in [Target(), Target(threads=2)] if cpu else [subject.target]:
        instances = checked_instances(toolchain.name, toolchain.instances(target, "float32"))
        demand(instances, f"it has no instance for {target.kind}")
        for instance in instances:
            demand(
                instance.precision == "float32",
                f"{instance.id} computes in {instance.precision} where float32 was asked for",
            )
            demand(
                instance.threads == target.threads or not cpu,
                f"{instance.id} has {instance.threads} threads, the run {target.threads}",
            )
        listed = ", ".join(instance.id for instance in instances)
    return listed


def supports_gives_reasons(subject: Subject) -> str:
    """``supports`` gives None or a short reason for every operator, the same every time."""
    taken = refused = 0
    for case in subject.cases:
        graph = case.model.graph
        for instance in subject.instances():
            for index in graph.operators:
                reason = subject.toolchain.supports(graph, index, instance)
                again = subject.toolchain.supports(graph, index, instance)
                op = graph.nodes[index].op
                demand(reason == again, f"{op}: asked twice, it says {reason!r} and {again!r}")
                taken += reason is None
                refused += reason is not None
                said = isinstance(reason, str) and reason.strip() and "\n" not in reason
                demand(
                    reason is None or (said and len(reason) <= MOST_CHARACTERS),
                    f"{op}: supports() says {reason!r:.40}, which is neither None (it takes the "
                    "operator) nor one short line (why it does not)",
                )
    demand(taken, "it supports no operator of any model")
    return f"{counted(taken, 'operator')} supported, {refused} refused with a reason"


def candidates_are_there(subject: Subject) -> str:
    """``partition_spec`` and ``supports`` give candidates."""
    total = sum(
        len(subject.candidates(case, instance))
        for case in subject.cases
        for instance in subject.instances()
    )
    demand(total, "it proposes no candidate for any model")
    return counted(total, "candidate")


def results_are_right(subject: Subject) -> str:
    """What it compiles computes the true values, and the same when it is called again."""
    subject.needs_to_run()
    total = 0
    for case in subject.cases:
        for instance in subject.instances():
            for function in subject.functions(case, instance):
                first, *others = subject.run(case, function, calls=3)
                subject.compare(case, function, first)
                same = all(all(map(np.array_equal, first, other)) for other in others)
                demand(same, f"{described(case, function)}: three calls with one input differ")
                total += 1
    return f"{counted(total, 'candidate')} compiled and run, within {TOLERANCE:g}"


def threads_are_kept(subject: Subject) -> str:
    """With two threads it computes the same as with one."""
    subject.needs_to_run()
    case = next(c for c in subject.cases if subject.candidates(c, subject.instances()[0]))
    for instance in subject.instances(threads=2):
        for function in subject.functions(case, instance)[-2:]:
            subject.compare(case, function, subject.run(case, function)[0])
    return "right with two threads too"


def libraries_are_there(subject: Subject) -> str:
    """``runtime_libraries`` names files that exist, each with a version and a licence."""
    libraries = subject.toolchain.runtime_libraries()
    names = [library.name for library in libraries]
    demand(len(set(names)) == len(names), f"two libraries have one name: {sorted(names)}")
    for library in libraries:
        demand(Path(library.file).is_file(), f"there is no file {library.file}")
        demand(library.licence.strip(), f"{library.name} has no licence")
        demand(library.version.strip(), f"{library.name} has no version")
        demand("/" not in library.name, f"the name {library.name} has a folder in it")
    return ", ".join(names) or "none: what it compiles needs no library of its own"


def artifacts_move(subject: Subject) -> str:
    """An artifact in which it shares a process with another toolchain runs from another folder."""
    subject.needs_to_run()
    instance, other = subject.instances()[0], _other(subject.toolchain)
    pairs = [
        (case, candidate.nodes)
        for case in subject.cases
        for candidate in subject.candidates(case, instance)
        if not (candidate.takes or candidate.gives)
        and len(candidate.nodes) < len(case.model.graph.operators)
    ]
    demand(pairs, "none of its candidates leaves another toolchain anything of a model")
    case, nodes = max(pairs, key=lambda pair: len(pair[1]))
    parts = [(instance, nodes)]
    parts += [(other, (rest,)) for rest in case.model.graph.operators if rest not in nodes]
    cover = [make_candidate(case.model.graph, *part, rule="conformance") for part in parts]
    built = build_cover(case.model, cover)
    folder = subject.folder / "artifact"
    write_module(built, folder / "built", link=True)
    truth = original_outputs(case.model, case.inputs)
    contents = ArtifactContents(inputs=case.inputs, outputs=truth, tolerance=TOLERANCE)
    made = write_artifact(case.model, folder / "built", folder / "made", contents)
    moved = made.rename(folder / "moved")
    report = run_artifact(moved)
    files = {library.name for library in built.about.libraries}
    lacking = sorted(name for name in files if not (moved / name).is_file())
    demand(not lacking, f"the artifact lacks {', '.join(lacking)}")
    return f"beside {other.toolchain}, wrong by {report['max_rel_error']:.2g} at most"


def _other(toolchain: Toolchain) -> ToolchainInstance:
    """Return an instance of another toolchain that takes every operator: one that lowers to TIR."""
    for each in registry.having(LowersToTir):  # type: ignore[type-abstract]
        if isinstance(each, Toolchain) and each.name != toolchain.name:
            return each.instances(Target(), "float32")[0]
    for name in registry.all_names():
        if name != toolchain.name and registry.probe(name).available:
            other = registry.get(name)
            if "cpu" in other.about.targets and other.about.whole_model:
                return other.instances(Target(), "float32")[0]
    raise NotApplicable("there is no other toolchain here")


def threads_take_turns(subject: Subject) -> str:
    """Call of one module from several threads at once give what calls one by one give."""
    case, function, module = _compiled(subject)
    call = _call(module, function)
    first = case.truth.inputs_of(function)
    given = [[_scaled(a, 1.0 + 0.1 * k) for a in first] for k in range(CALLERS)]
    alone = [call(inputs) for inputs in given]

    def repeat(k: int) -> bool:
        results = (call(given[k]) for _ in range(TURNS))
        return all(all(map(np.array_equal, outputs, alone[k])) for outputs in results)

    with ThreadPoolExecutor(CALLERS) as pool:
        right = list(pool.map(repeat, range(CALLERS)))
    demand(all(right), f"{described(case, function)}: results differ when {CALLERS} threads call")
    return f"{CALLERS} threads"


def calls_leave_nothing(subject: Subject) -> str:
    """Memory stands still over thousands of calls, and arguments may lie elsewhere each time.

    Something else in the process may grow meanwhile, but what every call leaves behind grows in
    every batch.
    """
    case, function, module = _compiled(subject)
    call = _call(module, function)
    given = case.truth.inputs_of(function)
    for _ in range(3):  # other addresses, while the earlier arguments are held
        subject.compare(case, function, call(given))
    arguments = _arguments(function, given)
    plain = module.get_function(function.symbol)
    grown = []
    for calls in BATCHES:
        before = psutil.Process().memory_info().rss
        for _ in range(calls):
            plain(*arguments)
        grown.append(psutil.Process().memory_info().rss - before)
    least = min(grown[1:])
    demand(
        least < LEAK_BYTES,
        f"{described(case, function)}: {BATCHES[-1]} calls leave {least} bytes behind every time",
    )
    return f"{sum(BATCHES)} calls"


def _compiled(subject: Subject) -> tuple[Case, Function, Any]:
    """Return the largest of its candidates, and the runtime module that it compiles for it."""
    subject.needs_to_run()
    if isinstance(subject.toolchain, LowersToTir):
        raise NotApplicable("it has no runtime module of its own")
    instance = subject.instances()[0]
    pairs = [(c, f) for c in subject.cases for f in subject.functions(c, instance)]
    case, function = max(pairs, key=lambda each: len(each[1].members))
    return case, function, subject.toolchain.compile(function)


def _arguments(function: Function, inputs: Sequence[np.ndarray]) -> list[Any]:
    given = [
        from_numpy(array, function.input_type(index))
        for array, index in zip(inputs, function.inputs, strict=True)
    ]
    return given + [empty(function.output_type(index)) for index in function.outputs]


def _call(module: Any, function: Function) -> Call:
    """Return a call with tensors of its own each time."""

    def call(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments = _arguments(function, inputs)
        module.get_function(function.symbol)(*arguments)
        results = zip(arguments[len(inputs) :], function.outputs, strict=True)
        return [to_numpy(tensor, function.output_type(index)).copy() for tensor, index in results]

    return call


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return (array * factor).astype(array.dtype) if array.dtype.kind == "f" else array


Check = Callable[[Subject], str]

CHECKS: dict[str, Check] = {
    "about is complete": about_is_complete,
    "probe answers": probe_answers,
    "capabilities are named right": capabilities_are_named_right,
    "instances are distinct": instances_are_distinct,
    "libraries are there": libraries_are_there,
    "supports gives reasons": supports_gives_reasons,
    "candidates are there": candidates_are_there,
    "results are right": results_are_right,
    "NaN is handed on": nan_is_handed_on,
    "exact values are exact": exact_values_are_exact,
    "threads are kept": threads_are_kept,
    "threads take turns": threads_take_turns,
    "calls leave nothing": calls_leave_nothing,
    "artifacts move": artifacts_move,
}
"""Name, as it is printed → the check, in the order in which they run."""

FOUNDATIONS = (
    "probe answers",
    "instances are distinct",
    "supports gives reasons",
    "candidates are there",
    "results are right",
)
"""Checks on which all after them rest: where one fails, the others would fail for its cause."""
