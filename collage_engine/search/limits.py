"""Limits on the runtimes of a cover: their public format and exact meaning.

A *runtime* is what a candidate needs to run: its toolchain without the configuration in brackets
(``onnxruntime[level=basic]`` needs ``onnxruntime``), or what ``needs`` lists for the toolchain as
written, then instead. A cover *uses* the runtimes of its candidates, and it must keep to every
limit that is given:

* ``allow``: it uses none but these;
* ``max_runtimes``: it uses at most so many;
* ``max_bytes``: ``base_bytes`` and the ``bytes`` of the runtimes it uses are at most so many;
* ``licences``: every licence of every runtime it uses is among these;
* ``conflicts``: it does not use both runtimes of a pair (they cannot share a process).

``runtimes`` says what each brings; one that is not listed brings no bytes and no licence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from collage_engine.records.counted import counted
from collage_engine.records.errors import UsageError

ConstraintName = Literal["allow", "max_runtimes", "max_bytes", "licences", "conflicts"]


class Runtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a runtime brings into an artifact."""

    bytes: int = 0
    licences: tuple[str, ...] = ()


class Constraints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the set of runtimes that a cover uses."""

    allow: tuple[str, ...] | None = None
    max_runtimes: int | None = None
    max_bytes: int | None = None
    licences: tuple[str, ...] | None = None
    conflicts: tuple[tuple[str, str], ...] = ()
    runtimes: dict[str, Runtime] = {}
    base_bytes: int = 0
    """What an artifact holds whatever the cover: its weights."""
    needs: dict[str, tuple[str, ...]] = {}
    """Toolchain as candidates write it → runtimes, where not just itself."""

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self, order="deterministic"))

    def runtimes_of(self, toolchain: str) -> tuple[str, ...]:
        known = self.needs.get(toolchain)
        return (toolchain.partition("[")[0],) if known is None else known

    def bytes_of(self, runtimes: Iterable[str]) -> int:
        return self.base_bytes + sum(self.runtimes.get(r, Runtime()).bytes for r in runtimes)

    def licences_of(self, runtime: str) -> tuple[str, ...]:
        return self.runtimes.get(runtime, Runtime()).licences


class ConstraintVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a limit."""

    constraint: ConstraintName
    text: str
    """In words: ``at most 1 runtime``."""
    state: Literal["honoured", "infeasible", "pending"]
    price_us: float | None = None
    """Least cost with it less least cost without it, pins and other limits kept."""
    reason: str | None = None


def broken(constraints: Constraints, used: Iterable[str]) -> list[ConstraintName]:
    """Which limits a cover that uses these runtimes breaks."""
    names = set(used)
    found: list[ConstraintName] = []
    if constraints.allow is not None and not names <= set(constraints.allow):
        found.append("allow")
    if constraints.max_runtimes is not None and len(names) > constraints.max_runtimes:
        found.append("max_runtimes")
    if constraints.max_bytes is not None and constraints.bytes_of(names) > constraints.max_bytes:
        found.append("max_bytes")
    if constraints.licences is not None and any(
        set(constraints.licences_of(name)) - set(constraints.licences) for name in names
    ):
        found.append("licences")
    if any(set(pair) <= names for pair in constraints.conflicts):
        found.append("conflicts")
    return found


def in_words(constraints: Constraints) -> dict[ConstraintName, str]:
    """The limits that are given, each in words."""
    found: dict[ConstraintName, str] = {}
    if constraints.allow is not None:
        found["allow"] = f"only the runtimes {', '.join(constraints.allow) or '(none)'}"
    if constraints.max_runtimes is not None:
        most = constraints.max_runtimes
        found["max_runtimes"] = f"at most {counted(most, 'runtime')}"
    if constraints.max_bytes is not None:
        found["max_bytes"] = f"at most {constraints.max_bytes / 1e6:.4g} MB"
    if constraints.licences is not None:
        found["licences"] = f"only the licences {', '.join(constraints.licences) or '(none)'}"
    if constraints.conflicts:
        pairs = "; ".join(f"{a} and {b}" for a, b in constraints.conflicts)
        found["conflicts"] = f"not in one process: {pairs}"
    return found


def check_constraints(constraints: Constraints) -> None:
    """Raise UsageError where the limits make no sense."""
    for name in ("max_runtimes", "max_bytes", "base_bytes"):
        value = getattr(constraints, name)
        if value is not None and value < 0:
            raise UsageError(f"constraints.{name}: {value} is negative")
    for name, runtime in constraints.runtimes.items():
        if runtime.bytes < 0:
            raise UsageError(f"constraints.runtimes.{name}.bytes: {runtime.bytes} is negative")
    for index, (one, other) in enumerate(constraints.conflicts):
        if one == other:
            raise UsageError(f"constraints.conflicts[{index}]: {one} conflicts with itself")
