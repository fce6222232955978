"""Limits on the runtimes of a cover: their public format and exact meaning.

A *runtime* is what a candidate needs to run: its toolchain without the configuration in brackets
(``tvm[precision=bf16]`` needs ``tvm``). A cover *uses* the runtimes of its candidates, and it must
keep to every limit that is given:

* ``allow``: it uses none but these;
* ``max_runtimes``: it uses at most so many;
* ``max_bytes``: ``base_bytes`` and the ``bytes`` of the runtimes it uses are at most so many;
* ``licences``: every licence of every runtime it uses is among these.

``runtimes`` says what each brings; one that is not listed brings no bytes and no licence. In JSON
documents the limits of a problem stand under the name ``constraints``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from collage_engine.support.text import counted
from collage_engine.support.typed import Count

LimitName = Literal["allow", "max_runtimes", "max_bytes", "licences"]


class Runtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a runtime brings into an artifact."""

    bytes: Count = 0
    licences: tuple[str, ...] = ()


class RuntimeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the set of runtimes that a cover uses."""

    allow: tuple[str, ...] | None = None
    max_runtimes: Count | None = None
    max_bytes: Count | None = None
    licences: tuple[str, ...] | None = None
    runtimes: dict[str, Runtime] = {}
    base_bytes: Count = 0
    """What an artifact holds whatever the cover: its weights."""

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self, order="deterministic"))

    def bytes_of(self, runtimes: Iterable[str]) -> int:
        """Return the size in bytes of an artifact with these runtimes."""
        return self.base_bytes + sum(self.runtimes.get(r, Runtime()).bytes for r in runtimes)

    def licences_of(self, runtime: str) -> tuple[str, ...]:
        """Return the licences of a runtime."""
        return self.runtimes.get(runtime, Runtime()).licences


def runtime_of(toolchain: str) -> str:
    """Return the runtime that a candidate of this toolchain needs."""
    return toolchain.partition("[")[0]


def violated_limits(limits: RuntimeLimits, used: Iterable[str]) -> dict[LimitName, str]:
    """Return the limits that a cover with these runtimes violates, each with how it does."""
    names = set(used)
    violated: dict[LimitName, str] = {}
    if limits.allow is not None and not names <= set(limits.allow):
        others = ", ".join(sorted(names.difference(limits.allow)))
        violated["allow"] = f"it uses {others}, which is not allowed"
    if limits.max_runtimes is not None and len(names) > limits.max_runtimes:
        runtimes = counted(len(names), "runtime")
        violated["max_runtimes"] = f"it uses {runtimes}; at most {limits.max_runtimes} are allowed"
    size = limits.bytes_of(names)
    if limits.max_bytes is not None and size > limits.max_bytes:
        most = f"at most {limits.max_bytes / 1e6:.4g} MB are allowed"
        violated["max_bytes"] = f"it takes {size / 1e6:.4g} MB; {most}"
    if limits.licences is not None:
        others = "; ".join(
            f"{name} is under {licence}, which is not allowed"
            for name in sorted(names)
            for licence in limits.licences_of(name)
            if licence not in limits.licences
        )
        if others:
            violated["licences"] = others
    return violated


def limits_in_words(limits: RuntimeLimits) -> dict[LimitName, str]:
    """Return the limits that are given, each in words."""
    texts: dict[LimitName, str] = {}
    if limits.allow is not None:
        texts["allow"] = f"only the runtimes {', '.join(limits.allow) or '(none)'}"
    if limits.max_runtimes is not None:
        texts["max_runtimes"] = f"at most {counted(limits.max_runtimes, 'runtime')}"
    if limits.max_bytes is not None:
        texts["max_bytes"] = f"at most {limits.max_bytes / 1e6:.4g} MB"
    if limits.licences is not None:
        texts["licences"] = f"only the licences {', '.join(limits.licences) or '(none)'}"
    return texts


def only_limits(limits: RuntimeLimits, kept: Iterable[LimitName]) -> RuntimeLimits:
    """Return the same limits with these ones alone."""
    dropped = limits_in_words(limits).keys() - set(kept)
    return msgspec.structs.replace(limits, **dict.fromkeys(dropped))
