"""Results of ``tests.benchmarks.peers``, our artifact beside other runtimes, and their table.

The results are one JSON document (:class:`PeersResult`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.drawing.formatting import counted, gain_text
from collage_engine.records.errors import UsageError
from collage_engine.records.typed import decode

OURS = "collage"
FLOAT32 = "float32"
MOST_SLOWER = 0.01
"""Median slowdown against the best other runtime, at most, for a model to pass; chosen."""
MOST_SLOWER_UPPER = 0.03
"""Upper end of the 95 % interval of that slowdown, at most; chosen."""
CLEARLY_FASTER = 0.05
"""Relative gain from which a placement is called faster; chosen."""


class PeerTime(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one runtime on one model."""

    name: str
    precision: str = FLOAT32
    version: str = ""
    us: float | None = None
    """Median of the rounds' median calls, by the entry's clock; None: see ``reason``."""
    low_us: float | None = None
    high_us: float | None = None
    """``low_us`` and ``high_us``: 20th and 80th percentile of the rounds, in µs."""
    wall_us: float | None = None
    cpu_us: float | None = None
    """Medians by the wall clock and by the process's CPU time."""
    rounds: int = 0
    max_rel_error: float | None = None
    reason: str | None = None
    """A sentence on why the runtime has no time, or takes no part in the verdict."""
    same_module: bool = False
    """Whether the peer is the very module that ours is, byte for byte. Its distance from ours is
    then the noise between two processes, and no comparison."""


class PeerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one thread count and precision."""

    model: str
    threads: int
    precision: str = FLOAT32
    """The lowest precision in which our artifact may compute."""
    tolerance: float | None = None
    clock: str = "wall"
    """The clock of the times: ``wall``, or ``cpu`` for the process's CPU time, which others' load
    does not lengthen."""
    load: float = 0.0
    """Cores that other work kept busy during the rounds, on average."""
    round_trip_ns: tuple[float, ...] = ()
    """What a cache line took between two cores and back, before the rounds and after; at several
    threads. Machines with two values are slower where it is the larger one."""
    launches: int = 1
    """How often every runtime was started anew, each time for its share of the rounds."""
    when: str = ""
    nodes: int = 0
    peers: tuple[PeerTime, ...] = ()
    best_other: str | None = None
    """The fastest of the other runtimes at a precision that ours was allowed."""
    slowdown: float | None = None
    """Ours / best other − 1: median over paired rounds; negative: ours is faster."""
    slowdown_low: float | None = None
    slowdown_high: float | None = None
    """``slowdown_low`` and ``slowdown_high``: the 95 % interval of ``slowdown`` (bootstrap)."""
    best_float32: str | None = None
    speedup: float | None = None
    """Best float32 runtime of others / ours; only where ours computes in less."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    estimated_us: float | None = None
    placed_us: float | None = None
    """Microseconds that placing measured end to end, by the wall clock."""
    toolchains: dict[str, int] = {}
    """Number of our placement's partitions, by toolchain."""
    winner: str = ""
    """The placement that was exported: ``collage``, or the baseline's name."""
    samples: dict[str, list[tuple[float, float]]] = {}
    """Wall and CPU µs of the median call, for each runtime and round; NaN is written as −1."""

    @property
    def key(self) -> tuple[str, int, str]:
        """Return what identifies a measurement among the results: model, threads, precision."""
        return self.model, self.threads, self.precision

    @property
    def ours(self) -> PeerTime | None:
        """Return the time of Collage's placement, where there is one."""
        return next((p for p in self.peers if p.name == OURS), None)


class PeersResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the benchmark, and the machine on which they were found."""

    machine: str = ""
    cores: int = 0
    versions: dict[str, str] = {}
    settings: tuple[str, ...] = ()
    """Sentences on how the runtimes were set, one for each."""
    entries: tuple[PeerEntry, ...] = ()


def decode_peers(data: bytes, name: str) -> PeersResult:
    """Decodes the content of a results file called ``name``.

    Raises:
        UsageError: It is no results file; the text says what is wrong.
    """
    try:
        return decode(data, PeersResult)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{name} is no results file of tests.benchmarks.peers: {error}") from error


def groups(result: PeersResult) -> list[tuple[str, list[PeerEntry]]]:
    """Groups the entries of one thread count and precision, with a heading."""
    found: dict[tuple[int, str], list[PeerEntry]] = {}
    for entry in result.entries:
        found.setdefault((entry.threads, entry.precision), []).append(entry)
    return [
        (f"{threads} thread{'s' if threads > 1 else ''}, {precision}", entries)
        for (threads, precision), entries in sorted(found.items())
    ]


def table(entries: Sequence[PeerEntry]) -> tuple[list[str], list[list[str]]]:
    """Returns headings and rows: all runtimes' times, ours against the best, additive error."""
    names = [OURS, *sorted({p.name for e in entries for p in e.peers} - {OURS})]
    head = ["model", *names, "ours against the best other", "additive error", "placed on", "clock"]
    return head, [[entry.model, *_times(entry, names), *_rest(entry)] for entry in entries]


def _times(entry: PeerEntry, names: Sequence[str]) -> list[str]:
    by_name = {peer.name: peer for peer in entry.peers}
    cells = []
    for name in names:
        peer = by_name.get(name)
        if peer is None or peer.us is None:
            cells.append("–")
            continue
        text = ("= " if peer.same_module else "") + milliseconds(peer.us)
        if peer.low_us is not None and peer.high_us is not None:
            text += f" ({milliseconds(peer.low_us)}–{milliseconds(peer.high_us)})"
        cells.append(text + (" *" if peer.reason else ""))
    return cells


def ratios(entry: PeerEntry) -> str:
    """Say how ours compares with the best other runtime, and with the best of float32."""
    against = "–"
    if entry.slowdown is not None:
        against = (
            f"{_signed(entry.slowdown)} [{_signed(entry.slowdown_low)}, "
            f"{_signed(entry.slowdown_high)}] {entry.best_other}"
        )
    if entry.speedup is not None:
        against += f"; ×{entry.speedup:.2f} of {entry.best_float32} float32"
    return against


def _rest(entry: PeerEntry) -> list[str]:
    error = gain_text(entry.placed_us, entry.estimated_us)
    mix = ", ".join(f"{name} {count}" for name, count in entry.toolchains.items()) or "–"
    clock = f"{entry.clock}, load {entry.load:.2f}"
    if entry.round_trip_ns:
        clock += f", round trip {' and '.join(f'{ns:.0f}' for ns in entry.round_trip_ns)} ns"
    return [ratios(entry), error, mix, clock]


def notes(entries: Sequence[PeerEntry]) -> list[str]:
    """Return why runtimes have no time or take no part, once each."""
    said = sorted(
        {
            f"{peer.name} on {entry.model}: {peer.reason}"
            for entry in entries
            for peer in entry.peers
            if peer.reason
        }
    )
    if any(peer.same_module for entry in entries for peer in entry.peers):
        said.append(
            "=: the very module that ours is; how far apart they are is the noise between "
            "two processes"
        )
    return said


def verdicts(entries: Sequence[PeerEntry]) -> list[str]:
    """Say in a sentence each whether the entries of a table meet their bars."""
    lines = []
    compared = [e for e in entries if e.slowdown is not None]
    if not compared:
        return ["nothing to compare with: no other runtime has a time"]
    behind = [
        e
        for e in compared
        if (e.slowdown or 0.0) > MOST_SLOWER or (e.slowdown_high or 0.0) > MOST_SLOWER_UPPER
    ]
    said = ", ".join(
        f"{e.model} {_signed(e.slowdown)} (up to {_signed(e.slowdown_high)})" for e in behind
    )
    lines.append(
        f"no more than {100 * MOST_SLOWER:.0f} % slower than the best other (95 % interval up to "
        f"{100 * MOST_SLOWER_UPPER:.0f} %): {len(compared) - len(behind)} of {len(compared)}"
        + (f"; not on {said}" if behind else "")
    )
    faster = [e for e in compared if (e.slowdown or 0.0) <= -CLEARLY_FASTER]
    said = ", ".join(f"{e.model} {_signed(e.slowdown)}" for e in faster)
    lines.append(
        f"faster than the best other by {100 * CLEARLY_FASTER:.0f} % or more: {len(faster)} of "
        f"{len(compared)}" + (f" ({said})" if faster else "")
    )
    lower = [e for e in compared if e.speedup is not None]
    if lower:
        said = ", ".join(f"{e.model} ×{e.speedup:.2f}" for e in lower)
        lines.append(f"against the best float32 runtime: {said}")
    return lines


def headings(result: PeersResult) -> list[str]:
    """Return lines that name the machine, the versions and the settings."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return [f"{result.machine}, {counted(result.cores, 'core')}; {versions}", *result.settings]


def milliseconds(us: float) -> str:
    """Formats a time in ms with four digits, because the times are compared to the percent."""
    ms = us / 1000
    digits = 3 if ms < 10 else 2 if ms < 100 else 1
    return f"{ms:.{digits}f}"


def _signed(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %".replace("-", "−")
