"""Several runs of one model for one artifact.

For several shapes there is a run for each, and an artifact with an entry for each. For throughput
there is a run for each number of instances at once, and the artifact is that of the best one.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.artifact.artifact import check_target_folder, put_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.combine import combine_artifacts, fastest
from collage_engine.artifact.paired_times import PROCESSES
from collage_engine.machine.device import physical_cores
from collage_engine.machine.folders import Scratch, resolve
from collage_engine.machine.loader.run_artifact import BENCHMARK_S
from collage_engine.machine.worker import call_in_child
from collage_engine.records import protocol as p
from collage_engine.records.event import Log
from collage_engine.records.placement import DeploymentRow, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import STOPPED_BUDGET_S, ShapeChoice, ShapeRow, Sharing, items_of
from collage_engine.service import answers
from collage_engine.service.engine import Engine
from collage_engine.store.compare import best_alone, inputs_of, shape_row, toolchains_of
from collage_engine.store.session_file import earlier_session
from collage_engine.support.errors import ArtifactError, CollageError, SessionError, ToolchainError
from collage_engine.support.text import counted
from collage_engine.support.time_limits import ANSWER_S, WORK_S

_LOG = logging.getLogger(__name__)

PROOF = "collage_engine.model.padding:batch_dimension"
"""Reads the model's file, therefore in a process of its own."""
MOST_WAYS = 4
"""Ways of sharing the processors that are tried; chosen: each takes a run of its own."""
TURN_S = 2 * BENCHMARK_S
"""Seconds of the budget that are kept for one turn, which loads an artifact and runs it."""


@dataclass(frozen=True)
class ShapesPlaced:
    """The outcome of placing a model for several shapes."""

    runs: tuple[Run, ...]
    """In the order of the choices; each holds the table of all of them."""
    rows: tuple[ShapeRow, ...]
    artifact: str | None
    sharing: Sharing | None
    session: Path | None = None
    """The session's file that was written."""
    not_saved: SessionError | None = None
    """Why it could not be written; None: it was, or none was asked for."""

    def document(self) -> dict[str, Any]:
        """Return what ``collage place --json`` prints, without what the runs say themselves."""
        return {
            "shapes": [{**msgspec.to_builtins(row), "gain": row.gain} for row in self.rows],
            "artifact": self.artifact,
            "sharing": msgspec.to_builtins(self.sharing),
            "sessions": [str(self.session)] if self.session is not None else [],
        }


def place_shapes(
    engine: Engine,
    path: str | Path,
    choices: Sequence[ShapeChoice],
    settings: RunSettings,
    *,
    out: str | Path | None = None,
    others: bool = False,
    pins: Sequence[str] = (),
    session: Path | None = None,
    spent_s: float = 0.0,
) -> ShapesPlaced:
    """Place a model for several shapes and write one artifact for all of them.

    The runs go one after the other on the same store, so work that is equal in two shapes is
    measured once. What is left of the budget is shared out evenly among the shapes that are left.

    Args:
        engine: Does the runs.
        path: The model's file.
        choices: The shapes.
        settings: The options of all runs; the budget is that of all of them together.
        out: Folder of the artifact; None: nothing is exported.
        others: Whether the artifact takes any other shape, too, by the model's own file.
        pins: Pins of every shape, written as for ``collage place --pin``.
        session: The file in which all shapes are kept; runs and shapes that it holds stay in it.
            None: nowhere.
        spent_s: Seconds of the budget that were spent before.

    Returns:
        The runs with their table, in the order of the choices.

    Raises:
        UsageError: A choice does not fit the model, or the session's file holds something else or
            cannot be written.
        ModelError: A shape contradicts what the model computes.
        CollageError: A run failed; the sentence names its shape. No artifact is written.
    """
    began = time.monotonic()
    if out is not None:
        check_target_folder(Path(out))
    if session is not None:
        earlier_session(session)  # what is no session is found before the model is opened
    # All shapes are opened, so that nothing is measured before all fit.
    wanted = p.ShapesOpen(model=p.ModelOpen(path=str(path)), choices=tuple(choices))
    entries = engine.request(wanted)
    handles = [entry.document for entry in entries]
    if session is not None:
        engine.request(p.SessionContinue(document=handles[0], path=str(session)))
    ends_at = began + settings.budget_s - spent_s
    runs: list[Run] = []
    with Scratch(None if out is None else resolve(Path(out)).parent) as scratch:
        folders = [scratch / str(number) for number in range(len(choices))]
        # What a machine finds out once (its toolchains) is no cost of the first shape alone: the
        # budget is shared out when that is done.
        with _in_sentences(choices[0]):
            first = msgspec.structs.replace(settings, shapes=entries[0].model.shapes)
            engine.request(p.Enumerate(document=handles[0], settings=first))
        sharing = None
        try:
            for number, (choice, handle) in enumerate(zip(choices, handles, strict=True)):
                mine = msgspec.structs.replace(
                    settings,
                    shapes=entries[number].model.shapes,
                    budget_s=budget_share_s(runs, ends_at - time.monotonic(), len(choices)),
                    name=choice.text,
                )
                engine.tell(handle, Log(text=f"For {choice.text}:"))  # what is told next is of it
                with _in_sentences(choice):
                    answers.set_pins(engine.document(handle), pins)
                    folder = None if out is None else str(folders[number])
                    runs.append(engine.run(p.RunStart(document=handle, settings=mine, out=folder)))
            if out is not None:
                dims = [choice.dims for choice in choices]
                menu = [state.name for state in runs[0].toolchains if state.available]
                own = fastest(Path(path), folders, menu) if others else None
                batch = call_in_child(PROOF, (str(path), tuple(dims[0])), timeout_s=WORK_S)
                sharing = combine_artifacts(folders, dims, Path(out), own, batch)
        except CollageError:
            _save(engine, handles[0], session)
            raise
    graphs = [engine.document(handle).document.graph for handle in handles]
    rows = tuple(map(shape_row, choices, graphs, runs))
    for run in runs:
        run.shapes, run.sharing = list(rows), sharing
        run.artifact = None if out is None else str(out)
    not_saved = _save(engine, handles[0], session)
    return ShapesPlaced(
        runs=tuple(runs),
        rows=rows,
        artifact=None if out is None else str(out),
        sharing=sharing,
        session=session if not_saved is None else None,
        not_saved=not_saved,
    )


@contextlib.contextmanager
def _in_sentences(choice: ShapeChoice) -> Iterator[None]:
    """Add a shape to the sentence of whatever fails inside."""
    try:
        yield
    except CollageError as error:
        if error.args:
            error.args = (f"{choice.text}: {error.args[0]}", *error.args[1:])
        raise


def budget_share_s(runs: Sequence[Run], left_s: float, count: int) -> float:
    """Return the seconds of budget of the next of several runs.

    Args:
        runs: Those that have ended.
        left_s: What is left of the budget of all of them.
        count: How many they are to be.
    """
    stopped = any(run.ended == "stopped" for run in runs)
    return STOPPED_BUDGET_S if stopped else max(STOPPED_BUDGET_S, left_s / (count - len(runs)))


def _save(engine: Engine, handle: str, session: Path | None) -> SessionError | None:
    """Write the session of all shapes; the reason, if that is not possible."""
    if session is None:
        return None
    try:
        engine.request(p.SessionSave(document=handle, path=str(session)))
    except SessionError as error:
        return error
    return None


def ways(cores: int) -> list[tuple[int, int]]:
    """Return the ways of sharing processors among instances.

    Args:
        cores: Processors, at least one.

    Returns:
        (instances, threads of each), all of whose products are ``cores``; most instances first. Of
        many divisors the extreme ones and those about evenly between them.
    """
    divisors = [threads for threads in range(1, cores + 1) if cores % threads == 0]
    if len(divisors) > MOST_WAYS:
        last = len(divisors) - 1
        divisors = [divisors[round(k * last / (MOST_WAYS - 1))] for k in range(MOST_WAYS)]
    return [(cores // threads, threads) for threads in divisors]


def place_for_throughput(engine: Engine, request: p.RunStart) -> Run:
    """Place a document's model for each way of sharing the processors; the most items win.

    Args:
        engine: Does the runs, one after the other on the same store.
        request: The document, which holds all runs afterwards, the chosen one last; and the
            settings of all runs: ``threads`` is how many processors are shared, and the budget is
            that of all runs together.

    Returns:
        The run with the highest throughput; its ``deployments`` list all.

    Raises:
        CollageError: A run failed. No artifact is written.
    """
    began = time.monotonic()
    handle, settings, out = request.document, request.settings, request.out
    if out is not None:
        check_target_folder(Path(out))
    items = items_of(inputs_of(engine.document(handle).document.graph))
    tried = ways(settings.threads or physical_cores())
    turns_s = min(settings.budget_s / 3, PROCESSES * TURN_S * len(tried)) if len(tried) > 1 else 0.0
    runs: list[Run] = []
    with Scratch(None if out is None else resolve(Path(out)).parent) as scratch:
        folders = [scratch / str(number) for number in range(len(tried))]
        # What is found out once is no cost of the first way.
        engine.request(p.Enumerate(document=handle, settings=settings))
        for number, (streams, threads) in enumerate(tried):
            left_s = settings.budget_s - turns_s - request.spent_s - (time.monotonic() - began)
            mine = msgspec.structs.replace(
                settings,
                streams=streams,
                threads=threads,
                budget_s=budget_share_s(runs, left_s, len(tried)),
                name=f"{counted(streams, 'instance')} of {counted(threads, 'thread')}",
            )
            folder = str(folders[number])
            runs.append(engine.run(p.RunStart(document=handle, settings=mine, out=folder)))
        shares = rates_in_turn(runs, folders)
        best = best_way(runs, shares)
        if out is not None:
            put_artifact(Path(out), lambda new: _move(folders[best], new))
    rows = [
        deployment_row(run, items, _factor(runs, shares, number, best))
        for number, run in enumerate(runs)
    ]
    opened = engine.document(handle)
    for run in runs:
        run.deployments = rows
        run.artifact = str(out) if run is runs[best] and out is not None else None
    with opened.lock:  # the chosen one is the newest where the last is asked for
        opened.document.runs.remove(runs[best])
        opened.document.runs.append(runs[best])
    return runs[best]


def deployment_row(run: Run, items: int, factor: float = 1.0) -> DeploymentRow:
    """Return what a run for one way of sharing the processors found out.

    Args:
        run: The run.
        items: Items of one run of the model.
        factor: What its rates are multiplied by to be those of the chosen run's minutes.
    """

    def per_second(us: float | None) -> float | None:
        return factor * items * 1e6 / us if us else None

    single = best_alone(run)
    return DeploymentRow(
        run=run.id,
        streams=run.streams,
        threads=run.threads,
        items_per_s=per_second(run.placement.measured_us if run.placement else None),
        toolchains=toolchains_of(run),
        best_single=single.name if single is not None else "",
        best_single_items_per_s=per_second(single.measured_us) if single is not None else None,
    )


def rates_in_turn(runs: list[Run], folders: list[Path]) -> dict[int, float]:
    """Run the artifacts of several runs in turn, since the runs were timed in different minutes.

    Args:
        runs: A run for each way of sharing the processors.
        folders: Their artifacts.

    Returns:
        By place of the run, its rate as a multiple of the mean rate of the same turn: the median of
        the turns. Empty where fewer than two were timed as they are deployed, or one does not run.
    """
    timed = [k for k, run in enumerate(runs) if run.objective == "throughput" and _time_us(run)]
    if len(timed) < 2:
        return {}
    turns = []
    try:
        for _ in range(PROCESSES):
            results = [run_artifact(folders[k], benchmark=True, limit_s=ANSWER_S) for k in timed]
            rates = [result["runs_per_s"] for result in results]
            turns.append([rate / statistics.geometric_mean(rates) for rate in rates])
    except ArtifactError as error:
        _LOG.warning("the ways of sharing processors cannot be compared: %s", error)
        return {}
    of_each = zip(*turns, strict=True)
    return {k: statistics.median(shares) for k, shares in zip(timed, of_each, strict=True)}


def best_way(runs: list[Run], shares: dict[int, float]) -> int:
    """Return the place of the run whose placement finishes most runs of the model per second.

    Args:
        runs: A run for each way of sharing the processors.
        shares: What ``rates_in_turn`` found; where it is empty the runs' own times decide.

    Raises:
        ToolchainError: None of them was timed.
    """
    if shares:
        return max(shares, key=lambda k: shares[k])
    times = {k: us for k, run in enumerate(runs) if (us := _time_us(run)) is not None}
    if not times:
        raise ToolchainError("no placement was timed")
    # What was not timed as it is deployed counts only where nothing was.
    deployed = [k for k in times if runs[k].objective == "throughput"]
    return min(deployed or times, key=lambda k: times[k])


def _time_us(run: Run) -> float | None:
    """Return the time of a run's placement per run of the model; None: it was not timed."""
    return (run.placement.measured_us or None) if run.placement is not None else None


def _factor(runs: list[Run], shares: dict[int, float], number: int, best: int) -> float:
    """Return what a run's rates are multiplied by to be those of the chosen run's minutes."""
    own, chosen = _time_us(runs[number]), _time_us(runs[best])
    if number not in shares or own is None or chosen is None:
        return 1.0
    return shares[number] / shares[best] * own / chosen


def _move(folder: Path, new: Path) -> None:
    """Move what is in a folder into a new one beside it."""
    for entry in folder.iterdir():
        entry.rename(new / entry.name)
