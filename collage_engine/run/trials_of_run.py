"""What the stages of a run share when they try whole placements."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.trials.contender import Sample
from collage_engine.trials.placement_process import TrialModel
from collage_engine.trials.runner import Module, TrialRunner, TrialSettings


@contextlib.contextmanager
def trial_runner(
    stage: str,
    open_model: OpenModel,
    samples: Sequence[Sample],
    tolerance: float,
    control: RunControl,
    settings: TrialSettings,
    *,
    modules: Mapping[tuple[object, ...], Module] | None = None,
    keep_modules: bool = False,
) -> Iterator[TrialRunner]:
    """Open a runner of trials that builds in a folder of its own, and end its processes.

    Args:
        stage: The name of the stage, with which the folder's name begins.
        open_model: The model; the folder lies in its folder, which is emptied after the job.
        samples: On all of them the outputs must be right; the first one is timed.
        tolerance: Bound on ``max|y-r| / max|r|`` of the outputs.
        control: Its cancel flag ends every call of the runner.
        settings: How placements are built and run.
        modules: What was built before, by the contender's key; it is not built again.
        keep_modules: Whether modules that are built here are used after the stage; otherwise the
            folder is removed with them.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{stage}-", dir=open_model.folder))
    runner = TrialRunner(
        TrialModel.of(open_model.model),
        samples,
        tolerance,
        folder,
        cancelled=control.cancelled,
        settings=settings,
        modules=modules,
        faults=control.faults,
        left_s=control.left_s,
    )
    try:
        with runner:
            yield runner
    finally:
        if not keep_modules:
            shutil.rmtree(folder, ignore_errors=True)
