"""One model placed again and again: is the winner always the same, or a declared tie?

    python -m tests.benchmarks.repeatability [MODEL] [--runs 20] [--threads 1] [--log FILE.json]

A model is a name of ``tests.zoo`` or an .onnx file; the default is mnist. The first run fills the
store and does not count unless ``--warm`` says that it is full. Every further run confirms anew on
a machine that should be quiet. Printed is how often each contender won, and in how many runs the
usual winner won or was declared tied with the winner. ``--log`` adds to the runs of an earlier
call, so that a long benchmark can be made in several calls.
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
from pathlib import Path
from typing import Any

from collage_engine import api
from collage_engine.records.placement import Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.trials.standings import TIE
from tests.benchmarks.place import model_file


def told(run: Run) -> dict[str, Any]:
    """What counts of a run: winner, time, and what is tied with it."""
    placement = run.placement
    assert placement is not None and placement.measured_us is not None
    return {
        "winner": winner(run),
        "tied": run.tied,
        "equal": [
            cover_text(rival)
            for rival in run.rivals
            if rival.measured_us and rival.measured_us <= placement.measured_us * TIE
        ],
        "us": placement.measured_us,
    }


def winner(run: Run) -> str:
    """The baseline that won; the partitions of a placement, where the search's won."""
    if run.winner != "collage" or run.placement is None:
        return run.winner
    return cover_text(run.placement)


def cover_text(placement: Placement) -> str:
    """The partitions of a placement, in an order that does not depend on the run."""
    return "collage: " + " ".join(sorted(part.candidate for part in placement.partitions))


def agreement(runs: list[dict[str, Any]]) -> tuple[str, int]:
    """The usual winner, and in how many runs it won or was tied with the winner.

    Ties between two covers are not declared in the run's document, which names baselines: there a
    cover within ``race.TIE`` of the winner in the same rounds counts as tied.
    """
    usual = collections.Counter(run["winner"] for run in runs).most_common(1)[0][0]
    name = usual.partition(":")[0]
    return usual, sum(
        run["winner"] == usual or name in run["tied"] or usual in run.get("equal", ())
        for run in runs
    )


def main() -> None:
    """Place a model several times and print how often the verdict was the same."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("model", nargs="?", default="mnist")
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--budget", type=float, default=60.0, help="seconds of each run")
    options.add_argument("--warm", action="store_true", help="the store is full already")
    options.add_argument("--log", type=Path, help="add the runs to those in this file")
    given = options.parse_args()
    settings = RunSettings(threads=given.threads, budget_s=given.budget)
    runs = json.loads(given.log.read_text()) if given.log and given.log.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        model = model_file(given.model, Path(folder))
        with api.open_model(model) as session:
            if not given.warm:
                session.place(settings)
            while len(runs) < given.runs:
                run = session.place(settings)
                runs.append(told(run))
                tied = ", ".join(run.tied) or "none"
                said = f"{runs[-1]['us']:.2f} µs, {run.winner}, tied with {tied}"
                print(f"{len(runs)}: {said}", flush=True)
                if given.log:
                    given.log.write_text(json.dumps(runs))
    if not runs:
        return
    usual, same = agreement(runs)
    print(f"\nThe usual winner, {usual}, won or was declared tied in {same} of {len(runs)} runs.")


if __name__ == "__main__":
    main()
