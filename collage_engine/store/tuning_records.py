"""Tuning records in the measurement store: found once, used by every later run and model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.support.typed import decode


def context_hash(context: KeyContext, toolchain: str) -> str:
    """Return a hash of all that a record holds for: versions, sources, target and device."""
    parts = (
        toolchain,
        context.versions.get(toolchain, ""),
        context.sources.get(toolchain, ""),
        context.tvm_version,
        context.target,
        context.fingerprint,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class TuningRecords:
    """Records and task lists of one toolchain on this device, versions as they are.

    Raises ``MeasureError`` as the store does.
    """

    def __init__(self, store: Store, context: KeyContext, toolchain: str) -> None:
        self._store = store
        self._context = context_hash(context, toolchain)

    def records(self, workloads: Iterable[str]) -> dict[str, TuneRecord]:
        """Return what is known of these workloads."""
        found = self._read({self._key("record", w): w for w in workloads})
        return {w: decode(text, TuneRecord) for w, text in found.items()}

    def put(self, record: TuneRecord) -> None:
        """Keep a record, replacing an older one of the same workload."""
        self._write(
            self._key("record", record.workload),
            record.workload,
            msgspec.json.encode(record).decode(),
        )

    def any(self) -> bool:
        """Return whether anything was ever tuned under these versions, on this device."""
        return self._store.has_tuning(self._context)

    def tasks(self, candidate_keys: Iterable[str]) -> dict[str, list[TuneTask]]:
        """Return what candidates have to tune, by measurement key, where it was listed before."""
        found = self._read({self._key("tasks", k): k for k in candidate_keys})
        return {k: decode(text, list[TuneTask]) for k, text in found.items()}

    def put_tasks(self, candidate_key: str, tasks: Sequence[TuneTask]) -> None:
        """Keep what a candidate has to tune."""
        self._write(self._key("tasks", candidate_key), "", msgspec.json.encode(tasks).decode())

    def _key(self, kind: str, name: str) -> str:
        return hashlib.sha256(f"{self._context}\0{kind}\0{name}".encode()).hexdigest()

    def _read(self, names: dict[str, str]) -> dict[str, str]:
        found = self._store.tuning_values(names)
        return {names[key]: value for key, value in found.items()}

    def _write(self, key: str, workload: str, value: str) -> None:
        context = self._context if workload else ""
        self._store.put_tuning(key, value, context=context, workload=workload)
