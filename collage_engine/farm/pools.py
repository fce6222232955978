"""Decides which machines' measurements are comparable, and whether a machine fits a pool."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from collage_engine.farm.messages import PROTOCOL, Hello

LONGEST_SLUG = 28
"""Characters of a processor's name in a pool's name at most; chosen: it is typed."""
LEAST_COMPARED = 3
"""Candidates that must be comparable before a machine is judged by them; chosen."""


def identity(hello: Hello) -> str:
    """Returns what makes machines equal: all that a measurement's key holds of the machine."""
    parts = [hello.fingerprint, hello.compiler, hello.toolchains, hello.adapters]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _processor_name(hello: Hello) -> str:
    """Returns a processor's name, without its cores and caches."""
    return hello.processor.partition(",")[0]


def pool_name(hello: Hello) -> str:
    """Returns a name that a person can type: the processor, its cores, and letters of the hash."""
    words = re.sub(r"[^a-z0-9]+", "-", _processor_name(hello).lower()).strip("-")
    cores = f"{hello.cores}c"
    return f"{words[:LONGEST_SLUG].strip('-') or 'machine'}-{cores}-{identity(hello)[:6]}"


def why_refused(theirs: Hello, engine: str, libraries: Mapping[str, str]) -> str:
    """Returns why a machine cannot work for this coordinator, as a sentence; empty: it can.

    Args:
        theirs: What the machine says.
        engine: Hash of this engine's sources.
        libraries: Versions of the libraries that carry the messages here.
    """
    if theirs.protocol != PROTOCOL or theirs.engine != engine:
        return (
            f"{theirs.name} has another version of Collage Explorer: install the same one there "
            "as here"
        )
    other = [
        f"{name} {theirs.libraries.get(name, '(none)')} there and {version} here"
        for name, version in sorted(libraries.items())
        if theirs.libraries.get(name) != version
    ]
    if other:
        return (
            f"{theirs.name} has other versions of the libraries that carry the work "
            f"({'; '.join(other)}): install the same ones there as here"
        )
    return ""


def differences(ours: Hello, theirs: Hello) -> str:
    """Returns in what two machines of equal processors differ, as a sentence; empty: in nothing."""
    found = []
    if ours.cores != theirs.cores:
        found.append(f"it may use {theirs.cores} cores instead of {ours.cores}")
    for name in sorted(ours.toolchains.keys() | theirs.toolchains.keys()):
        here, there = ours.toolchains.get(name), theirs.toolchains.get(name)
        if here != there:
            found.append(f"{name} is {there or 'missing'} instead of {here or 'missing'}")
        elif ours.adapters.get(name) != theirs.adapters.get(name):
            found.append(f"its adapter of {name} has other sources")
    if ours.compiler != theirs.compiler:
        found.append("its compiler is another one, or compiles for another target")
    if not found and ours.fingerprint != theirs.fingerprint:
        found.append("its processor or kernel is another one")
    return "; ".join(found)


def why_cannot_build(pool: Hello, here: Hello, toolchains: Iterable[str]) -> str:
    """Returns why this machine cannot build what a pool's would, as a sentence; empty: it can.

    Args:
        pool: What the pool's first machine said.
        here: What this machine says.
        toolchains: Those that are to be built with.
    """
    if _processor_name(pool) != _processor_name(here):
        return f"this machine has another processor, {_processor_name(here)}"
    if pool.compiler != here.compiler:
        return "this machine's compiler is another one, or compiles for another target"
    for name in sorted(toolchains):
        there, version = pool.toolchains.get(name), here.toolchains.get(name)
        if there != version:
            return f"{name} is {version or 'missing'} here instead of {there or 'missing'}"
        if pool.adapters.get(name) != here.adapters.get(name):
            return f"this machine's adapter of {name} has other sources"
    return ""


def why_not_alike(known: Sequence[float], found: Sequence[float], drift: float) -> str:
    """Returns why re-measured candidates show a machine of another speed; empty: they do not.

    Args:
        known: Medians in the pool, in µs.
        found: Medians of the same candidates on the machine.
        drift: Share by which medians of one machine differ from one time to another.
    """
    ratios = [b / a for a, b in zip(known, found, strict=True) if a > 0 and b > 0]
    if len(ratios) < LEAST_COMPARED:
        return ""
    middle = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    if 1 / (1 + drift) <= middle <= 1 + drift:
        return ""
    word = "slower" if middle > 1 else "faster"
    factor = max(middle, 1 / middle)
    return (
        f"{len(ratios)} known candidates were {factor:.2f} times {word} here than in the pool, "
        f"whose drift is {100 * drift:.0f} %"
    )
