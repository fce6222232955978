"""Deployment constraints of a run: what the user said and what runtimes bring → the search's.

What runtimes bring (bytes, licences) is found where toolchains are at hand and kept
among the document's constants, so that the process that answers requests can search under the
constraints as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.counted import counted
from collage_engine.records.limit import LimitVerdict
from collage_engine.records.runtime_facts import BYTES, LICENCE, WEIGHTS
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.limits import (
    ConstraintName,
    Constraints,
    Runtime,
    broken,
    in_words,
)

if TYPE_CHECKING:
    from collage_engine.records.candidate import CoverPart
    from collage_engine.search.problem import Answer


def constraints_of(
    settings: RunSettings,
    constants: Mapping[str, float],
    instances: Iterable[ToolchainInstance] = (),
) -> Constraints | None:
    """The search's constraints; None where nothing is limited.

    ``instances``: whose partitions may be chosen; some need a second runtime's library.
    """
    runtimes: dict[str, tuple[int, list[str]]] = {}
    for key, value in constants.items():
        if key.startswith(BYTES):
            name = key.removeprefix(BYTES)
            runtimes[name] = int(value), runtimes.get(name, (0, []))[1]
        elif key.startswith(LICENCE):
            name, _, licence = key.removeprefix(LICENCE).partition(":")
            runtimes.setdefault(name, (0, []))[1].append(licence)
    licences = None
    if settings.licences:
        known = {licence for _, found in runtimes.values() for licence in found}
        meant = {k for k in known if _is_meant(k, settings.licences)}
        licences = (*settings.licences, *sorted(meant - set(settings.licences)))
    constraints = Constraints(
        allow=settings.allow_runtimes or None,
        max_runtimes=settings.max_runtimes or None,
        max_bytes=settings.max_artifact_bytes or None,
        licences=licences,
        runtimes={
            name: Runtime(bytes=size, licences=tuple(sorted(found)))
            for name, (size, found) in sorted(runtimes.items())
        },
        base_bytes=int(constants.get(WEIGHTS, 0.0)),
        needs={i.id: i.runtimes for i in instances if i.runtimes != (i.toolchain,)},
    )
    return constraints if in_words(constraints) else None


def size_warning(artifact_bytes: int | None, settings: RunSettings) -> list[str]:
    """Said when code, samples and licences made the artifact larger than the search's estimate."""
    most = settings.max_artifact_bytes
    if artifact_bytes is None or not most or artifact_bytes <= most:
        return []
    return [
        f"the artifact has {artifact_bytes / 1e6:.4g} MB, more than the {most / 1e6:.4g} MB asked "
        "for: its weights and runtime libraries fit, its code, samples and licences come on top"
    ]


def _is_meant(licence: str, wanted: Sequence[str]) -> bool:
    """``BSD`` means every BSD licence, ``Apache-2.0`` that one; without regard to case."""
    lowered = licence.lower()
    return any(lowered == w.lower() or lowered.startswith(w.lower() + "-") for w in wanted)


def limit_verdicts(answer: Answer) -> list[LimitVerdict]:
    """The search's verdicts on limits, as records."""
    return [LimitVerdict(**msgspec.structs.asdict(verdict)) for verdict in answer.constraints]


def barred(cover: Sequence[CoverPart], constraints: Constraints | None) -> str | None:
    """Why a baseline's cover may not be exported under the constraints; None when it may."""
    if constraints is None:
        return None
    used = {runtime for part in cover for runtime in part.instance.runtimes}
    said = {kind: _beyond(kind, constraints, used) for kind in broken(constraints, used)}
    if "allow" in said:
        said.pop("licences", None)  # what is not wanted at all need not say its licences
    return f"beyond the limits: {'; '.join(said.values())}" if said else None


def _beyond(kind: ConstraintName, limits: Constraints, used: set[str]) -> str:
    """How a cover that uses these runtimes breaks a limit."""
    if kind == "allow":
        return f"{', '.join(sorted(used - set(limits.allow or ())))} is not among the runtimes"
    if kind == "max_runtimes":
        return counted(len(used), "runtime")
    if kind == "max_bytes":
        return f"{limits.bytes_of(used) / 1e6:.4g} MB"
    if kind == "licences":
        allowed = set(limits.licences or ())
        others = {name: sorted(set(limits.licences_of(name)) - allowed) for name in sorted(used)}
        return "; ".join(f"{name} brings {', '.join(of)}" for name, of in others.items() if of)
    pairs = [pair for pair in limits.conflicts if set(pair) <= used]
    return "; ".join(f"{one} and {other} cannot share a process" for one, other in pairs)
