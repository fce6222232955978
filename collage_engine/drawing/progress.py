"""Progress on standard error: one bar a stage, with counts, rate and time left."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from collage_engine.records import event as ev
from collage_engine.records.placement import Run
from collage_engine.support.text import printable
from collage_engine.wording.amounts import duration_text, time_text
from collage_engine.wording.figures import best_baseline, toolchains_text, winner_title
from collage_engine.wording.sentences import STAGE_TITLES
from collage_engine.wording.titles import baseline_title, register_toolchains


class ProgressReport:
    """Shows events; on a terminal as bars, into a file as one line a stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Fixed widths, and a last column that is cut: nothing jumps while the texts change.
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<21}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[count]:>9}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", "dim", markup=False, table_column=rest),
            console=console,
            expand=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self.warned: set[str] = set()
        """The warnings that were shown: a summary of the run need not say them again."""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bars.disable:  # rich before 14 ends with an empty line even then
            self._bars.stop()

    def __call__(self, document: str, event: ev.Event) -> None:
        """Show one event of a document."""
        if isinstance(event, ev.Stage):
            self._stage(event)
        elif isinstance(event, ev.Progress):
            self._progress(event)
        elif isinstance(event, ev.Provisional):
            self._provisional(event.run)
        elif isinstance(event, ev.Log):
            if event.level == "warning":
                self.warned.add(event.text)
            style = {"error": "red", "warning": "yellow"}.get(event.level, "dim")
            self._console.print(
                printable(event.text, keep_lines=True), style=style, markup=False, highlight=False
            )

    def _provisional(self, run: Run) -> None:
        """Say which placement would be exported if the run ended now."""
        register_toolchains(run.toolchains)
        us = run.placement.measured_us if run.placement is not None else None
        title = winner_title(run)
        if run.winner == "collage" and run.placement is not None:
            title = f"{title} ({toolchains_text(run.placement)})"
        after, said = f" (after {run.seconds['total']:.0f} s)", f"{title}, {time_text(us)}"
        # Every time is one of the common rounds of this moment: what was told of the others earlier
        # was taken while the machine may have been faster or slower.
        rival = best_baseline(run)
        if rival is not None:
            takes = time_text(rival.measured_us)
            said += f"; in the same rounds {baseline_title(rival)} takes {takes}"
        self._console.print(f"Best so far{after}: {printable(said)}", markup=False, highlight=False)

    def _stage(self, event: ev.Stage) -> None:
        title, detail = STAGE_TITLES[event.stage], printable(event.detail)
        if self._bars.disable:
            if event.done:
                said = f"{title} ({event.seconds:.1f} s)" + (f": {detail}" if detail else "")
                self._console.print(said, markup=False, highlight=False)
            return
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self._bars.add_task(title, total=None, now="", count="")
        if event.done:
            task = self._tasks[event.stage]
            self._bars.update(task, total=1, completed=1, now=detail, count="", refresh=True)
            self._bars.stop_task(task)

    def _progress(self, event: ev.Progress) -> None:
        if event.stage not in self._tasks:
            return
        rate = f"{event.rate:.1f}/s" if event.rate else ""
        left = "" if event.left_s is None else f"{duration_text(event.left_s)} left"
        doing = printable(event.now.replace("nn.", ""))
        self._bars.update(
            self._tasks[event.stage],
            completed=event.done,
            total=event.total or None,
            count=f"{event.done}/{event.total}" if event.total else "",
            now=" · ".join(filter(None, (rate, left, doing))),
        )
