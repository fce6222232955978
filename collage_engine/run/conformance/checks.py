"""The checks themselves: a list of plain functions, each of which examines one promise.

A check returns a sentence that says what it found in order. It raises ``Nonconformance`` with the
sentence to act on, and ``NotApplicable`` where it says nothing about this toolchain or machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.candidates.catalog import checked_instances
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import original_outputs
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.greedy import greedy
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.run.conformance.exact import exact_values_are_exact
from collage_engine.run.conformance.module_checks import (
    calls_leave_nothing,
    modules_are_saved_whole,
    threads_take_turns,
)
from collage_engine.run.conformance.nan import nan_is_handed_on
from collage_engine.run.conformance.subject import (
    TOLERANCE,
    NotApplicable,
    Subject,
    demand,
    described,
)
from collage_engine.support.errors import MOST_CHARACTERS, ToolchainError
from collage_engine.support.text import counted
from collage_engine.toolchains import capabilities, registry, runtime
from collage_engine.toolchains.base import Toolchain
from collage_engine.toolchains.capabilities import LowersToTir
from collage_engine.wording.titles import PATTERNS

KINDS = ("cpu", "cuda")
"""Kinds of devices that a toolchain can compile for."""
NEARLY = 0.75
"""Similarity (``difflib``'s ratio) from which on a method's name counts as that of a capability,
misspelt: right names of our own toolchains come up to 0.74 near (``library`` to
``library_table``)."""
CAPABILITIES = tuple(
    var
    for var in vars(capabilities).values()
    if isinstance(var, type) and getattr(var, "_is_runtime_protocol", False)
)
"""The protocols of ``toolchains.capabilities`` that are found by ``isinstance``."""
CORE = frozenset(dir(Toolchain))
"""Names that every toolchain has."""


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
    cls = type(subject.toolchain)
    named = {name for name in dir(cls) if not name.startswith("_")}
    names: list[str] = []
    missing: dict[str, str] = {}
    for protocol in CAPABILITIES:
        methods = {name for name in vars(protocol) if not name.startswith("_")} - CORE
        if methods <= named:
            names.append(protocol.__name__)
        else:
            missing |= {_squeezed(name): f"{name} of {protocol.__name__}" for name in methods}
    bases = [base for base in cls.__mro__ if base.__module__.startswith(f"{runtime.__name__}.")]
    ours = CORE.union(*map(vars, bases))
    for name in sorted(n for n in named - ours if callable(getattr(cls, n))):
        for near in get_close_matches(_squeezed(name), missing, 1, NEARLY):
            demand(
                False,
                f"it has {name}, which is nearly {missing[near]}: call it that, or, if it is no "
                "part of that capability, something else or with a leading underscore",
            )
    return ", ".join(sorted(names)) or "it has no optional capability"


def _squeezed(name: str) -> str:
    """Return a method's name without what spellings differ in most."""
    return name.replace("_", "").lower()


def instances_are_distinct(subject: Subject) -> str:
    """``instances`` gives float32 configurations, the default first, with the run's threads."""
    toolchain, listed = subject.toolchain, ""
    cpu = subject.target.kind == "cpu"
    for target in [Target.cpu(1), Target.cpu(2)] if cpu else [subject.target]:
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
    for case in subject.cases():
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


def candidates_are_valid(subject: Subject) -> str:
    """``partition_spec`` proposes sub-graphs whose operators it all supports."""
    total = 0
    for case in subject.cases():
        graph = case.model.graph
        for instance in subject.instances():
            for record in subject.candidates(case, instance):
                total += 1
                for operator in record.nodes:
                    index = operator
                    reason = subject.toolchain.supports(graph, index, instance)
                    demand(
                        reason is None,
                        f"model {case.name}: a candidate of rule {record.rule} holds "
                        f"{graph.nodes[index].op}, which supports() refuses: {reason}",
                    )
    demand(total, "it proposes no candidate for any model")
    return counted(total, "candidate")


def results_are_right(subject: Subject) -> str:
    """What it compiles computes the true values, and the same when it is called again."""
    subject.needs_to_run()
    total = 0
    for case in subject.cases():
        for instance in subject.instances():
            for function in subject.functions(case, instance):
                first, *others = subject.run(case, function, calls=3)
                subject.compare(case, function, first)
                same = all(
                    np.array_equal(a, b)
                    for other in others
                    for a, b in zip(first, other, strict=True)
                )
                demand(same, f"{described(case, function)}: three calls with one input differ")
                total += 1
    return f"{counted(total, 'candidate')} compiled and run, within {TOLERANCE:g}"


def threads_are_kept(subject: Subject) -> str:
    """With two threads it computes the same as with one."""
    subject.needs_to_run()
    case = next(c for c in subject.cases() if subject.candidates(c, subject.instances()[0]))
    for instance in subject.instances(threads=2):
        for function in subject.functions(case, instance)[-2:]:
            subject.compare(case, function, subject.run(case, function)[0])
    return "right with two threads too"


def refusals_are_sentences(subject: Subject) -> str:
    """Asked to compile a node that it does not support, it raises a ToolchainError of one line."""
    subject.needs_to_run()
    for case in subject.cases():
        graph = case.model.graph
        instance = subject.instances()[0]
        for number, index in enumerate(graph.operators):
            if subject.toolchain.supports(graph, index, instance) is None:
                continue
            node = graph.record.whole_nodes([number])
            function = function_of(case.model, instance, node, "refused")
            try:
                compile_function(function).close()
            except ToolchainError as error:
                demand(
                    str(error).strip() and "\n" not in str(error).strip(),
                    f"{graph.nodes[index].op}: the refusal {str(error)!r} is not one line",
                )
                return f"it says: {error}"
            # It can do more than it promises, which harms nobody.
    raise NotApplicable("it supports every operator of the models, or compiles it all the same")


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


def shares_a_process(subject: Subject) -> str:
    """It computes the same in a process in which another toolchain computes too."""
    subject.needs_to_run()
    other = _other(subject.toolchain)
    case = next(c for c in subject.cases() if subject.candidates(c, subject.instances()[0]))
    function = subject.functions(case, subject.instances()[0])[-1]
    given = case.truth.inputs_of(function)
    theirs = function_of(case.model, other, range(len(case.model.graph.operators)), "other")
    inputs = case.truth.inputs_of(theirs)
    with compile_function(function) as mine, compile_function(theirs) as second:
        for _ in range(2):
            subject.compare(case, function, mine.run(given))
            subject.compare(case, theirs, second.run(inputs))
    return f"beside {other.toolchain}"


def artifacts_move(subject: Subject) -> str:
    """An artifact with its partitions runs by itself, also from another folder."""
    subject.needs_to_run()
    instance, other = subject.instances()[0], _other(subject.toolchain)
    covers = [(c, greedy(c.model.graph, [subject.source(c, instance)])) for c in subject.cases()]
    mixed = [each for each in covers if each[1].partitions and each[1].uncovered]
    whole = [each for each in covers if each[1].partitions]
    demand(whole, "nothing of any model can be covered with its candidates")
    case, best = (mixed or whole)[0]
    parts = [(instance, part.operators) for part in best.partitions]
    parts += [(other, (operator,)) for operator in best.uncovered]
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
    return f"{counted(len(cover), 'partition')}, wrong by {report['max_rel_error']:.2g} at most"


def _other(toolchain: Toolchain) -> ToolchainInstance:
    """Return an instance of another toolchain that takes every operator: one that lowers to TIR."""
    for each in registry.having(LowersToTir):  # type: ignore[type-abstract]
        if isinstance(each, Toolchain) and each.name != toolchain.name:
            return each.instances(Target.cpu(1), "float32")[0]
    for name in registry.all_names():
        if name != toolchain.name and registry.probe(name).available:
            other = registry.get(name)
            if "cpu" in other.about.targets and other.about.whole_model:
                return other.instances(Target.cpu(1), "float32")[0]
    raise NotApplicable("there is no other toolchain here")


Check = Callable[[Subject], str]

CHECKS: dict[str, Check] = {
    "about is complete": about_is_complete,
    "probe answers": probe_answers,
    "capabilities are named right": capabilities_are_named_right,
    "instances are distinct": instances_are_distinct,
    "libraries are there": libraries_are_there,
    "supports gives reasons": supports_gives_reasons,
    "candidates are valid": candidates_are_valid,
    "results are right": results_are_right,
    "NaN is handed on": nan_is_handed_on,
    "exact values are exact": exact_values_are_exact,
    "threads are kept": threads_are_kept,
    "threads take turns": threads_take_turns,
    "calls leave nothing": calls_leave_nothing,
    "modules are saved whole": modules_are_saved_whole,
    "refusals are sentences": refusals_are_sentences,
    "shares a process": shares_a_process,
    "artifacts move": artifacts_move,
}
"""Name, as it is printed → the check, in the order in which they run."""

FOUNDATIONS = (
    "probe answers",
    "instances are distinct",
    "supports gives reasons",
    "candidates are valid",
    "results are right",
)
"""Checks on which all after them rest: where one fails, the others would fail for its cause."""
