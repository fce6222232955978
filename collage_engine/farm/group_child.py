"""Runs a member's child that measures groups of candidates of one model, for runs elsewhere."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.menu import threads_of
from collage_engine.farm.messages import GroupRequest
from collage_engine.lowering.reference import TrueValues, run_onnx
from collage_engine.machine.device import device
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.store.measurement import Measurement
from collage_engine.store.store import Store
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.measurer import CandidateGroup, Measurer


class GroupChild:
    """It is the worker's target: the child that measures groups for runs on other machines.

    Keeps the model, its true values and the measuring child.
    """

    def __init__(self) -> None:
        self._model: ImportedModel | None = None
        self._truth = tempfile.TemporaryDirectory(prefix="collage-values-")
        self._measurer: Measurer | None = None
        self._store = Store()
        self._toolchains: set[str] = set()

    def __call__(
        self, payload: tuple[str, GroupRequest], send: Callable[[object], None]
    ) -> tuple[Measurement, ...]:
        """Measure the candidates of a request; those that were not reached are missing."""
        path, request = payload
        deadline = time.monotonic() + request.limit_s
        self._store.forget_measurements()
        measurer = self._measurer_of(path, request)
        found: list[Measurement] = []
        self._store.on_put = found.extend
        candidates = request.candidates
        try:
            measurer.measure([CandidateGroup(candidates[0].nodes, candidates)], deadline=deadline)
        finally:
            self._store.on_put = None
        return tuple(found)

    def _measurer_of(self, path: str, request: GroupRequest) -> Measurer:
        """Return the model's measurer, made anew when a candidate needs a further toolchain."""
        shapes = request.model.shapes
        if self._model is None:
            self._model = import_model(path, dict(shapes), evaluate=run_onnx)
            inputs = representative_inputs(self._model, request.settings)
            TrueValues.record(self._model, inputs, self._truth.name)
        needed = {name for c in request.candidates for name in c.instance.runtimes}
        if self._measurer is not None and not needed <= self._toolchains:
            self._measurer.close()
            self._measurer = None
        if self._measurer is None:
            self._toolchains |= needed | set(request.toolchains)
            self._measurer = Measurer(
                path,
                shapes,
                Path(self._truth.name),
                store=self._store,
                env=measuring_environment(sorted(self._toolchains), threads_of(request.settings)),
                fingerprint=request.fingerprint,
                device=device().description,
                versions=request.versions,
                model_hash=self._model.record.sha256,
            )
        return self._measurer
