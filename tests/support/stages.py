"""What tests of single stages of a run share: a task on a model, which no run goes on with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import onnx

from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.device import machine_state
from collage_engine.machine.run_control import RunControl
from collage_engine.records.settings import RunSettings
from collage_engine.run.task import RunTask


@contextmanager
def task_on(
    model: onnx.ModelProto,
    folder: Path,
    settings: RunSettings,
    listen: Callable[[object], None] = lambda event: None,
) -> Iterator[tuple[RunTask, RunControl]]:
    """Give the task of a run on a model that is saved in a folder, and what controls it."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    opened = OpenModel(str(path), {})
    try:
        with RunControl(listen, threading.Event(), threading.Event()) as control:
            control.ends_at = time.monotonic() + settings.budget_s
            yield (
                RunTask(
                    open_model=opened,
                    settings=settings,
                    pins=(),
                    out=None,
                    run_id="run",
                    previous=None,
                    started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    machine_before=machine_state(),
                ),
                control,
            )
    finally:
        opened.close()
