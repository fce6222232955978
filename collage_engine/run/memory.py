"""Records memory and size of the winner of a race."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.limit import LimitVerdict
from collage_engine.records.memory import MemorySeen, MemoryUse
from collage_engine.records.settings import RunSettings
from collage_engine.trials.contender import ContenderResult
from collage_engine.trials.race import RaceResult
from collage_engine.wording.amounts import time_text


def memory_use(
    outcome: ContenderResult,
    weights_bytes: int,
    artifact: str | None,
    place_peak_bytes: int | None = None,
) -> MemoryUse:
    """Return the memory that a placement's process took, and the sizes of its files.

    Args:
        outcome: The placement, as it took part in the race.
        weights_bytes: Size of the model's own weights.
        artifact: The folder it was exported to; None: it was not.
        place_peak_bytes: The largest memory of the whole run; None: nobody watched it.
    """
    built = outcome.built
    stored: dict[str, int] = {}
    if built is not None:
        for part, size in zip(built.parts, built.part_weights, strict=False):
            name = part.instance.toolchain
            stored[name] = stored.get(name, 0) + size
    return MemoryUse(
        seen=outcome.memory or MemorySeen(),
        weights_bytes=weights_bytes,
        stored=stored,
        repeated_bytes=built.repeated_bytes if built is not None else 0,
        artifact_bytes=None if artifact is None else _folder_bytes(Path(artifact)),
        library_bytes=sum(Path(library.file).stat().st_size for library in built.libraries)
        if built is not None
        else 0,
        place_peak_bytes=place_peak_bytes,
    )


def _folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def memory_verdict(settings: RunSettings, race_result: RaceResult) -> list[LimitVerdict]:
    """Return the verdict on the limit on memory; an empty list where none was asked for.

    Its price is the winner's measured time less that of the fastest contender which only this limit
    keeps from winning, in microseconds.

    Args:
        settings: The run's settings, with the limit.
        race_result: The times and the memory of the contenders.
    """
    most = settings.max_memory_bytes
    if not most:
        return []
    winner = race_result.winner
    barred = [
        one.measured_us
        for one in race_result.results
        if one.over_memory and one.measured_us is not None
    ]
    price = None
    if winner.measured_us is not None:
        price = max(0.0, winner.measured_us - min(barred, default=winner.measured_us))
    taken = winner.memory.running_bytes if winner.memory is not None else None
    text = f"at most {most / 1e6:.4g} MB of memory while running"
    reason = None
    if taken is not None:
        template = "with {megabytes} MB" if price is None else "with {megabytes} MB, price {price}"
        reason = template.format(megabytes=f"{taken / 1e6:.4g}", price=time_text(price or 0.0))
    return [
        LimitVerdict(
            constraint="max_memory",
            text=text,
            state="pending" if taken is None else "honoured",
            price_us=price,
            reason=reason,
        )
    ]
