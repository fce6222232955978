"""A model that is open in the process of the run, with its catalogs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from collage_engine.candidates.catalog import (
    CandidateCatalog,
    Probing,
    make_catalog,
    threads_of,
)
from collage_engine.lowering.reference import run_onnx
from collage_engine.machine.cuda import choose_target
from collage_engine.machine.faults import FaultTracker
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.records.candidate import Candidate, CostTable
from collage_engine.records.precision import (
    BFLOAT16,
    DEVICE_ONLY,
    FLOAT32,
    INT8,
    is_reduced,
    short,
)
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import Store
from collage_engine.support.errors import UsageError
from collage_engine.toolchains.registry import check_names

QUANTISED = {"quantize", "dequantize"}
"""Operators of which a model has some if it was quantised."""


def check_precision(model: ImportedModel, precision: str, target: str = "cpu") -> None:
    """Check that the precision of a run exists and changes something.

    Args:
        model: The model, which must be quantised for int8.
        precision: The precision.
        target: What the run places on.

    Raises:
        UsageError: There is no such precision, or it would change nothing here.
    """
    precisions = (FLOAT32, BFLOAT16, INT8, *DEVICE_ONLY)
    if precision not in precisions:
        said = ", ".join(map(short, precisions))
        raise UsageError(f"--precision {precision}: known are {said}")
    if precision in DEVICE_ONLY and not target.startswith("cuda"):
        raise UsageError(
            f"--precision {short(precision)} is for NVIDIA devices (--target cuda): no toolchain "
            "computes in it on a processor; use --precision bf16"
        )
    if precision == INT8 and not any(node.op in QUANTISED for node in model.graph.nodes):
        raise UsageError(
            "--precision int8: the model has no QuantizeLinear or DequantizeLinear nodes, so "
            "nothing says how to round to 8 bits: quantise it first (for example with "
            "onnxruntime.quantization), or use --precision bf16"
        )


def missing_precision(precision: str, instances: Sequence[ToolchainInstance]) -> str | None:
    """Return a warning where no toolchain instance computes in the precision; else None."""
    reduces = (BFLOAT16, *DEVICE_ONLY)
    if precision not in reduces or any(map(is_reduced, instances)):
        return None
    if any(instance.architecture for instance in instances):
        return (
            f"no chosen toolchain computes in {short(precision)} on this device: everything "
            "stays float32"
        )
    return (
        "no toolchain computes in bf16 on this processor (AVX512_BF16 or AMX is needed): "
        "everything stays float32"
    )


CatalogKey = tuple[tuple[str, ...], int, str, str, tuple[int, ...], frozenset[str]]
"""Toolchains, threads, precision, target, operators that have candidates on the host, too, and the
toolchains that are out of the run."""


class OpenModel:
    """An open model is an imported model with its catalogs and a folder for the files of one job.

    Attributes:
        path: The model's file.
        shapes: The input shapes that the user chose, by input name.
        model: The imported model.
        import_s: Seconds that the import took.
        store: The measurements of this machine.
        folder: Recorded activations and built modules of the current job, each as large as the
            model.
    """

    def __init__(self, path: str, shapes: dict[str, tuple[int, ...]]) -> None:
        self.path = path
        self.shapes = dict(shapes)
        began = time.perf_counter()
        self.model: ImportedModel = import_model(path, self.shapes, evaluate=run_onnx)
        self.import_s = time.perf_counter() - began
        self.store = Store()
        self.folder = Path(tempfile.mkdtemp(prefix="collage-"))
        self._stamp = self._file_stamp()
        self._last: tuple[CatalogKey, CandidateCatalog] | None = None
        """The catalog that was made last, and for what."""

    def close(self) -> None:
        """Remove the folder; the model cannot be used afterwards."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def empty(self) -> None:
        """Remove what a job left in the folder."""
        with contextlib.suppress(OSError):
            for left in self.folder.iterdir():
                shutil.rmtree(left, ignore_errors=True)

    def is_current(self) -> bool:
        """Tell whether the file is still the one that was imported."""
        return self._file_stamp() == self._stamp

    def _file_stamp(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns

    def catalog(
        self,
        settings: RunSettings,
        on_host: tuple[int, ...] = (),
        probing: Probing | None = None,
        faults: FaultTracker | None = None,
    ) -> CandidateCatalog:
        """Return the catalog for these settings, with the costs that the store holds now.

        Args:
            settings: Toolchains, threads, precision and target.
            on_host: Operator numbers that get candidates on the host too, in a run on a device.
            probing: How toolchains are looked for; those that are not ready are asked again when
                the next catalog is wanted.
            faults: Which toolchains are out of the run; takes those that fail when they are asked.

        Raises:
            UsageError: The target, the precision or a toolchain does not exist; or a toolchain has
                no such target.
            ToolchainError: No chosen toolchain is available here.
        """
        check_names(settings)
        target = choose_target(settings.target)
        check_precision(self.model, settings.precision, settings.target)
        faults = faults or FaultTracker()
        if self._last is not None and self._last[0] == _catalog_key(settings, on_host, faults):
            catalog = self._last[1]
        else:
            catalog = make_catalog(self.model, settings, target, on_host, probing, faults)
        if not catalog.not_ready:  # who is left out while it is asked belongs to the key
            self._last = _catalog_key(settings, on_host, faults), catalog
        return replace(catalog, costs=self.with_stored_costs(catalog.candidates, catalog.costs))

    def extend_catalog(
        self, settings: RunSettings, candidates: Iterable[Candidate], faults: FaultTracker
    ) -> None:
        """Keep further candidates for later runs with these settings."""
        if self._last is not None and self._last[0] == _catalog_key(settings, (), faults):
            key, catalog = self._last
            known = {candidate.id for candidate in catalog.candidates}
            new = tuple(c for c in candidates if c.id not in known)
            self._last = key, replace(catalog, candidates=(*catalog.candidates, *new))

    def with_stored_costs(self, candidates: Sequence[Candidate], costs: CostTable) -> CostTable:
        """Return a table with the isolated costs that the store holds for the candidates' keys."""
        keys = {candidate.key for candidate in candidates if candidate.key}
        return costs.with_measured(candidates, self.store.get_many(keys, self.model.record.sha256))


def _catalog_key(
    settings: RunSettings, on_host: tuple[int, ...], faults: FaultTracker
) -> CatalogKey:
    return (
        settings.toolchains,
        threads_of(settings),
        settings.precision,
        settings.target,
        on_host,
        frozenset(faults.left_out),
    )
