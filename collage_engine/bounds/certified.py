"""Certified lower bounds: how long a sub-graph takes at least, whoever runs it.

A bound is what must be computed or moved (``bounds.work``), at this machine's measured peaks.
Memory and arithmetic overlap: it is the larger of their times.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence

import msgspec

from collage_engine.bounds.work import Work, WorkCounter
from collage_engine.machine.cuda import CudaDevice
from collage_engine.machine.cuda_peaks import device_peaks
from collage_engine.machine.device import fingerprint
from collage_engine.machine.peaks import CONSTANT, Peaks, measure_peaks
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import MeasureError
from collage_engine.records.typed import convert
from collage_engine.store.store import Store, remembered

_LOG = logging.getLogger(__name__)

LEAST_CLOCK_RATIO = 0.6
"""The clock while peaks were measured, as a share of the clock at another moment, at least; chosen:
servers run between their base clock and 1.6 times as much."""


def lower_bound_us(work: Work, peaks: Peaks, threads: int) -> float:
    """Return the microseconds that the work takes at least on so many threads."""
    compute = sum(peaks.compute_s(n, dtype, threads) for dtype, n in work.operations.items())
    memory = max(peaks.read_s(work.read_bytes, threads), peaks.read_s(work.write_bytes, threads))
    return max(compute, memory) * 1e6


def certified_bounds(
    graph: DataflowGraph,
    candidates: Iterable[Candidate],
    peaks: Peaks,
    direct: Container[str] = (),
) -> dict[str, float]:
    """Return certified lower bounds of candidates, in microseconds, by id.

    Args:
        graph: The model that the candidates are of.
        candidates: The candidates; one of which nothing can be counted gets no bound.
        peaks: What the machine does at most.
        direct: Toolchains that never convolve by Winograd's method or a transform.
    """
    counters: dict[tuple[bool, str], WorkCounter] = {}
    known: dict[tuple[tuple[int, ...], bool, str, int], float] = {}
    found: dict[str, float] = {}
    for candidate in candidates:
        kind = (candidate.instance.toolchain in direct, candidate.instance.precision)
        at = (candidate.nodes, *kind, candidate.instance.threads)
        if at not in known:
            if kind not in counters:
                counters[kind] = WorkCounter(graph, *kind)
            work = counters[kind].of(graph.to_indices(candidate.nodes))
            known[at] = lower_bound_us(work, peaks, candidate.instance.threads)
        if known[at]:
            found[candidate.id] = known[at]
    return found


def machine_bounds(
    graph: DataflowGraph,
    candidates: Sequence[Candidate],
    store: Store | None,
    device: CudaDevice | None,
    direct: Container[str] = (),
) -> dict[str, float]:
    """Return certified lower bounds by the peaks of what each candidate runs on.

    Args:
        graph: The model that the candidates are of.
        candidates: The candidates, on the processor and on the device.
        store: Where the processor's peaks are kept; None: they are measured.
        device: The device; None: candidates on a device get no bounds.
        direct: Toolchains that never convolve by Winograd's method or a transform.

    Returns:
        Microseconds by candidate id.
    """
    on_device = {bool(candidate.instance.architecture) for candidate in candidates}
    peaks = {
        False: machine_peaks(store) if False in on_device else None,
        True: None if device is None else device_peaks(device),
    }
    found: dict[str, float] = {}
    for there, known in peaks.items():
        if known is not None:
            some = [c for c in candidates if bool(c.instance.architecture) == there]
            found.update(certified_bounds(graph, some, known, direct))
    return found


def raise_peaks(store: Store, refuted: float) -> None:
    """Raise the peaks of this machine that the store keeps, because a measured time refutes them.

    Args:
        store: Where the peaks are kept; one that cannot be written stays as it is.
        refuted: The least measured time as a share of its certified bound. Below
            ``LEAST_CLOCK_RATIO`` no clock explains it, and the peaks stay.
    """
    known = machine_peaks(store)
    if known is None or not LEAST_CLOCK_RATIO <= refuted < 1.0:
        return
    name = f"{CONSTANT}:{fingerprint()}"
    try:
        store.put_constant(name, msgspec.to_builtins(known.raised(1.0 / refuted)))
    except MeasureError as error:
        _LOG.warning("the raised peaks are not kept: %s", error)


def machine_peaks(store: Store | None) -> Peaks | None:
    """Return this machine's peaks, which are measured once and kept in the store.

    They are None where they cannot be measured.
    """
    try:
        known = remembered(
            store,
            f"{CONSTANT}:{fingerprint()}",
            lambda: msgspec.to_builtins(measure_peaks()),
        )
    except MeasureError:
        return None
    return convert(known, Peaks)
