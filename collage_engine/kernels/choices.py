"""Hands what tuning found out to the lowering, as tables from workloads to choices.

An *anchor*'s workload is a line of text: a convolution or product with its sizes. Its choice is
the plan its schedule follows instead of its own estimate (block, chunk, tile, …). A table
is kept as a JSON file named by its own hash in the cache folder, so that every process that lowers
an instance which names the hash writes the same code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from collage_engine.machine.folders import cache_folder
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.support.files import write_atomically

Choice = Mapping[str, Any]


@dataclass
class Choices:
    """A tuned table in use, with a record of the workloads that were asked for meanwhile."""

    table: Mapping[str, Choice] = field(default_factory=dict)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The record of each problem that was asked for, by its workload; the tuner reads it."""

    def plan(self, workload: str, description: dict[str, Any]) -> dict[str, Any]:
        """Return the plan chosen for an anchor; empty when its schedule shall decide itself."""
        self.asked[workload] = description
        return dict(self.table.get(workload, {}))


_current: ContextVar[Choices | None] = ContextVar("choices", default=None)


@contextmanager
def using(choices: Choices) -> Iterator[Choices]:
    """Has kernels lowered within this context follow a table's choices.

    Yields:
        The same choices, whose ``asked`` fills while kernels are lowered.
    """
    token = _current.set(choices)
    try:
        yield choices
    finally:
        _current.reset(token)


def plan_for(workload: str, description: dict[str, Any]) -> dict[str, Any]:
    """Return what the table in use says of an anchor's workload."""
    current = _current.get()
    return current.plan(workload, description) if current is not None else {}


TUNED = ("tuned", "yes")
"""The option of an instance that is lowered with a tuned table; the untuned one lacks it."""


def choices_of(instance: ToolchainInstance) -> Choices:
    """Return the table that an instance is lowered with, an empty one without tuning.

    Raises:
        ToolchainError: The table's file is gone.
    """
    return Choices(read_table(instance.tuning)) if TUNED in instance.config else Choices()


# Tables in files ---------------------------------------------------------------------------


def digest_of(table: Mapping[str, Choice]) -> str:
    """Return sixteen hexadecimal digits that equal tables share; "" for an empty table."""
    if not table:
        return ""
    return hashlib.sha256(_text(table).encode()).hexdigest()[:16]


def write_table(table: Mapping[str, Choice]) -> str:
    """Write a table to the cache folder and return the hash by which an instance names it.

    Returns:
        The hash (see ``digest_of``); an empty text for an empty table, which is not written.
    """
    digest = digest_of(table)
    if not digest:
        return ""
    folder = cache_folder() / "tuned"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.json"
    if not path.exists():
        write_atomically(path, _text(table))
    return digest


def read_table(digest: str) -> dict[str, Choice]:
    """Return the table that a hash names; an empty one for an empty hash.

    Raises:
        ToolchainError: The table's file is gone, or cannot be read.
    """
    if not digest:
        return {}
    folder = cache_folder() / "tuned"
    try:
        table = json.loads((folder / f"{digest}.json").read_text())
    except (OSError, ValueError) as error:
        raise ToolchainError(
            f"the tuned kernels {digest} are no longer in {folder}: place the model again"
        ) from error
    return dict(table)


def _text(table: Mapping[str, Choice]) -> str:
    return json.dumps(table, sort_keys=True, separators=(",", ":"))
