"""Memory and size of the winner of a confirmation, as a record."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.memory import MemorySeen, MemoryUse
from collage_engine.trials.contender import ContenderResult


def memory_use(outcome: ContenderResult, weights_bytes: int, artifact: str | None) -> MemoryUse:
    """The memory that a placement's process took, and the sizes of its files.

    Args:
        outcome: The placement's confirmation.
        weights_bytes: Size of the model's own weights.
        artifact: The folder it was exported to; None: it was not.
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
    )


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
