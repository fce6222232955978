"""Computes every figure of a run and the sentences about it, for all faces alike.

The desktop, the reports, CSV and the command line take figures and their words from here, so that
one quantity has one name, one sign and one direction everywhere:

- *isolated*: a candidate's cost measured by itself;
- *expected in this model*: the cost that the search uses, measured in placements that were run or
  predicted from them; without such runs it is the isolated cost;
- *last run*: a partition's time in the confirmed run, where that was profiled;
- a *gain* is relative to what is compared with, and negative when faster;
- a *tie* is about the price, the time that the whole model loses by a choice; it never stands
  beside a percentage of something else.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from collage_engine.records.answers import Price
from collage_engine.records.candidate import Cost
from collage_engine.records.placement import (
    TIE_SHARE,
    Baseline,
    CandidateCounts,
    MachineState,
    Partition,
    Placement,
    Run,
)
from collage_engine.support.text import counted
from collage_engine.wording import sentences as words
from collage_engine.wording.amounts import (
    LEAST_US,
    duration_text,
    gain_text,
    moment_text,
    number_text,
    significant,
    time_text,
    total,
)
from collage_engine.wording.titles import baseline_title, toolchain_title

FEW_MEASURED = 0.1
"""Share of the candidates that could matter below which a run is a comparison of whole models and
no search; chosen."""
SAME_SHARE = 1e-6
"""Share by which sums of the same costs in another order may differ."""
TIMES_FROM = 1.5
"""Factor of two latencies from which it is said as a factor, and not in per cent; chosen."""


def isolated_us(cost: Cost) -> float | None:
    """Return the isolated cost in µs; None where it is not known."""
    return cost.median_us if cost.usable else None


# -- sums ------------------------------------------------------------------------------


def partition_sum_us(placement: Placement) -> float | None:
    """Add up the expected costs of a placement's partitions, in µs.

    None where a partition has no cost: a part of a sum is no sum.
    """
    return total(part.estimated_us for part in placement.partitions)


def partition_sum_text(placement: Placement) -> str:
    """Return ``the partitions add up to 4.21 ms``; where costs are missing, how many there are.

    It is empty for a placement that was timed before any of its partitions, since its time is what
    is known, and for one of a single partition, which is no sum.
    """
    total_us, count = partition_sum_us(placement), len(placement.partitions)
    if total_us is not None:
        return f"the partitions add up to {time_text(total_us)}" if count > 1 else ""
    known = sum(part.estimated_us is not None for part in placement.partitions)
    if known or placement.measured_us is None:
        return f"{known} of {counted(count, 'partition')} have a cost"
    return ""


def partition_us(placement: Placement, part: Partition) -> float | None:
    """Return what a partition takes, as every face shows it, in µs; None where it is not known.

    A partition that is the whole placement takes what was measured end to end, and one of a
    placement whose layers were timed what it took there; others take what is expected of them.
    """
    if len(placement.partitions) == 1 and placement.measured_us is not None:
        return placement.measured_us
    return part.in_place_us if placement.layers else part.estimated_us


def estimate_text(placement: Placement) -> str:
    """Return ``expected 4.21 ms (measured is 302 µs less)``; empty where nothing was expected.

    It is empty, too, where one partition was measured as a whole.
    """
    us, off = time_text(placement.estimated_us), placement.additive_error_us
    if placement.estimated_us is None:
        return ""
    if len(placement.partitions) == 1 and placement.measured_us is not None:
        return ""  # what was measured is what the partition takes
    if off is None:
        return f"expected {us}"
    if abs(off) < LEAST_US:
        return "as expected"
    return f"expected {us} (measured is {time_text(abs(off))} {'more' if off >= 0 else 'less'})"


def bound_text(run: Run) -> str:
    """Say that no placement costs less, where the search proved it of what the run exports.

    A bound below what was measured is not told: nothing that was timed reaches it.
    """
    bound_us = run.lower_bound_us
    us = run.placement.estimated_us if run.placement is not None else None
    is_best = bound_us is not None and us is not None and us <= bound_us * (1 + SAME_SHARE)
    return "the best by these costs (proved)" if is_best else ""


# -- latencies -------------------------------------------------------------------------


def latency_us(placement: Placement | Baseline | None) -> float | None:
    """Return the end-to-end latency of a placement: measured, or else expected."""
    if placement is None:
        return None
    return placement.measured_us if placement.measured_us is not None else placement.estimated_us


def latency_text(placement: Placement) -> str:
    """Return ``441 µs measured``, or ``441 µs expected`` for what was not confirmed."""
    kind = "measured" if placement.measured_us is not None else "expected"
    return f"{time_text(latency_us(placement))} {kind}"


def best_baseline(run: Run, placement: Placement | None = None) -> Baseline | None:
    """Return the baseline of a run that a placement is judged by: the fastest single toolchain.

    It is none that is this placement itself. Where no toolchain takes the whole model, it is the
    fastest of the others.

    Args:
        run: The run.
        placement: The placement; None: what the run exports.
    """
    own = placement or run.placement
    timed = [
        base
        for base in run.baselines
        if base.measured_us is not None and not _is_itself(base, run, own)
    ]
    single = [base for base in timed if base.kind == "whole-model"]
    return min(single or timed, key=lambda base: base.measured_us or 0.0, default=None)


def _is_itself(
    base: Placement | Baseline, run: Run, placement: Placement | Baseline | None
) -> bool:
    """Tell whether the first is a baseline of a run that is the second, a placement, itself."""
    if not isinstance(base, Baseline) or isinstance(placement, Baseline):
        return False
    if placement is run.placement and base.name == run.winner:
        return True
    return placement is not None and base.is_of(placement)


def speed_text(delta: Difference, other: str) -> str:
    """Return ``3.3 times faster than TVM only``, or by how many per cent where that is little.

    Args:
        delta: How two latencies differ.
        other: What the second is the latency of.
    """
    if not delta.is_decided:
        why = "not decided on this machine now" if delta.state == "tied" else delta.text
        return f"{other}: {why}"
    us, other_us = delta.us, delta.other_us
    factor = max(us, other_us) / min(us, other_us)
    if factor >= TIMES_FROM:
        by = f"{significant(factor, 2)} times"
    else:
        by = f"{abs(us - other_us) / other_us * 100:.1f} %"
    return f"{by} {'faster' if us < other_us else 'slower'} than {other}"


def answer_text(placement: Placement, run: Run | None, earlier: Sequence[Run] = ()) -> str:
    """Return the answer in one line: what runs, how fast, against the best single toolchain.

    Args:
        placement: The placement.
        run: The run with whose baselines it is compared.
        earlier: Other runs, which may have timed toolchains for which this run had no time.
    """
    took = latency_text(placement).removesuffix(" measured")
    runs_on, parts = _runs_on(placement), len(placement.partitions)
    if parts > 1 and len({part.toolchain for part in placement.partitions}) == 1:
        runs_on += f" in {parts} partitions"  # to tell it from the toolchain alone
    texts = [f"{runs_on}, {took}"]
    if run is None:
        return texts[0]
    best = best_baseline(run, placement)
    rival = next(iter(run.rivals), None)  # as a quick confirmation compares
    delta = difference(placement, run, best or rival)
    if delta is not None and best is not None:
        name = f"{baseline_title(best)} ({time_text(delta.other_us)})"
        if best.kind == "whole-model" and delta.is_decided:
            single = [base for base in run.baselines if base.kind == "whole-model"]
            is_single = any(_is_itself(base, run, placement) for base in single)
            rank = "the next" if is_single and delta.us < delta.other_us else "the best alone"
            name = f"{toolchain_title(best.name)} ({time_text(delta.other_us)}), {rank}"
        texts.append(speed_text(delta, name))
    elif delta is not None and rival is not None and delta.in_common:
        texts.append(speed_text(delta, f"{_runs_on(rival)} ({time_text(delta.other_us)})"))
    return " · ".join(filter(None, [*texts, untimed_text(run, earlier)]))


def _runs_on(placement: Placement) -> str:
    """Return ``TVM``, ``TVM + oneDNN`` or ``TVM + 2 more``: those with the most nodes first."""
    nodes: Counter[str] = Counter()
    for part in placement.partitions:
        nodes[toolchain_title(part.toolchain)] += part.size
    names = [name for name, _ in nodes.most_common()] or ["nothing"]
    return " + ".join(names) if len(names) < 3 else f"{names[0]} + {len(names) - 1} more"


def untimed_text(run: Run, earlier: Sequence[Run] = ()) -> str:
    """Say how many of the toolchains had time to run the model alone, where not all had.

    Args:
        run: The run.
        earlier: Other runs: where they timed one of the others, the fastest is named.
    """
    single = [base for base in run.baselines if base.kind == "whole-model"]
    late = [base for base in single if base.reason == words.NO_TURN]
    untimed = {base.name for base in late if not base.measured_us}
    timed = sum(base.measured_us is not None for base in single)
    if not untimed or run.of_profile or was_wanted_quickly(run):
        return ""
    count = timed + len(untimed)
    said = f"{timed} of {count} toolchains timed"
    if timed == 1:
        said = f"the only one of {count} toolchains that was timed"
    before = [
        base
        for each in earlier
        for base in each.baselines
        if base.kind == "whole-model" and base.name in untimed and base.measured_us
    ]
    if before:
        best = min(before, key=lambda base: base.measured_us or 0.0)
        took = time_text(best.measured_us)
        said += f"; {toolchain_title(best.name)} took {took} in another run"
    return said


@dataclass(frozen=True)
class Difference:
    """By how much two placements' latencies differ, as far as common rounds can tell.

    Headline, chart, tables, reports and the command line compare by this alone. Placements of two
    runs are compared where one of the runs timed both: the machine has another speed in another
    run.
    """

    us: float
    """Latency in microseconds, in the rounds that both had."""
    other_us: float
    """That of what it is compared with."""
    state: Literal["decided", "tied", "same", "expected", "apart"]
    """``decided``: rounds tell them apart, ``tied``: they do not; ``same``: it is one placement;
    ``expected``: one of them was not measured; ``apart``: they had no common rounds."""

    @property
    def is_decided(self) -> bool:
        """Tell whether the difference may be told as a figure."""
        return self.state in ("decided", "expected")

    @property
    def in_common(self) -> bool:
        """Tell whether both latencies are of common rounds."""
        return self.state in ("decided", "tied")

    @property
    def text(self) -> str:
        """Return ``−12.0 %`` where it may be told, else why it is not."""
        if self.is_decided:
            return gain_text(self.us, self.other_us)
        return {"tied": "tied", "same": "the same placement"}.get(self.state, NOT_TOGETHER)


NOT_TOGETHER = "not timed together"


def difference(
    placement: Placement | Baseline | None,
    run: Run | None,
    other: Placement | Baseline | None,
    other_run: Run | None = None,
) -> Difference | None:
    """Compare two placements by the rounds of the newest run that timed both.

    Args:
        placement: A placement or baseline.
        run: The run that it is shown with; None: a search found it, and no run timed it.
        other: The placement or baseline that it is compared with.
        other_run: The run of that; None: the same.

    Returns:
        The difference; None where one of the latencies is not known.
    """
    us, other_us = latency_us(placement), latency_us(other)
    if placement is None or other is None or us is None or other_us is None:
        return None
    runs = {each.id: each for each in (run, other_run) if each is not None}
    for each in sorted(runs.values(), key=lambda each: each.started_at, reverse=True):
        ours, theirs = each.timed(placement), each.timed(other)
        if ours is None or theirs is None or not (ours.measured_us and theirs.measured_us):
            continue
        if ours is theirs or _is_itself(ours, each, theirs) or _is_itself(theirs, each, ours):
            return Difference(us, other_us, "same")
        state: Literal["decided", "tied"] = "decided" if each.tells_apart(ours, theirs) else "tied"
        return Difference(ours.measured_us, theirs.measured_us, state)
    if placement.measured_us is None or other.measured_us is None:
        return Difference(us, other_us, "expected")
    return Difference(us, other_us, "apart")


def winner_title(run: Run) -> str:
    """Return what a run exports: ``Collage``, or a baseline's title."""
    won = next((base for base in run.baselines if base.name == run.winner), None)
    if won is not None:
        return baseline_title(won)
    return "Collage" if run.winner == "collage" else run.winner


def toolchains_text(placement: Placement) -> str:
    """Return ``11 partitions, TVM and oneDNN``: how many there are and on what they run."""
    names = dict.fromkeys(toolchain_title(p.toolchain) for p in placement.partitions)
    *most, last = names or ("nothing",)
    on = f"{', '.join(most)} and {last}" if most else last
    return f"{counted(len(placement.partitions), 'partition')}, {on}"


def verdict_sentence(run: Run) -> str:
    """Return the outcome of a run in a sentence: what is exported, how fast it is, against what."""
    placement = run.placement
    if placement is None or placement.measured_us is None:
        return "The placement was not measured end to end."
    best = best_baseline(run)
    took = time_text(placement.measured_us)
    if run.of_profile:
        who = toolchain_title(run.winner)
        return f"{who} took {took} while it was profiled; nothing was placed."
    if run.winner == "collage":
        if best is None:
            return f"Collage's placement takes {took}."
        title, best_us = baseline_title(best), time_text(best.measured_us)
        if best.name in run.tied:
            return f"Collage's placement takes {took}, within noise of {title} ({best_us})."
        gain = gain_text(placement.measured_us, best.measured_us)
        return f"Collage's placement takes {took}, {gain} against {title} ({best_us})."
    exported = f"{winner_title(run)} is exported: it takes {took}."
    return f"{exported} {why_not_found(run)}".strip()


def why_not_found(run: Run) -> str:
    """Return why a run exports a baseline and not the best placement that the search found."""
    best, chosen = run.best_found(), run.placement
    if run.winner == "collage" or chosen is None or run.of_profile:
        return ""
    if best is None and run.unmeasured is not None and run.unmeasured.contenders:
        return "No other placement of the search was timed."
    if best is None:
        return "The search found no other placement."
    of = toolchains_text(best)
    if best.measured_us is None:
        who = f"The best placement of the search ({of})"
        return f"{who} was not measured end to end; it is {latency_text(best)}."
    who = f"The best mix that was timed ({of})"
    us, won = time_text(best.measured_us), winner_title(run)
    if "collage" in run.tied:
        return f"{who} takes {us}: a tie, and {won} is simpler."
    return f"{who} takes {us}, {gain_text(best.measured_us, chosen.measured_us)} against {won}."


# -- what was measured -----------------------------------------------------------------


def candidate_counts(counts: CandidateCounts) -> list[tuple[str, str]]:
    """Return what became of the distinct candidates, how many of each: ``measured``, ``312``.

    Args:
        counts: Those of a run, or of a stage under way.

    Returns:
        A name and a number each. Only ``measured`` and ``left unmeasured`` stand there with 0. All
        but the invalid ones, which are among the first three, add up to the distinct ones.
    """
    rows = {
        "measured": counts.measured,
        "timed as whole models only": counts.from_trials,
        "from the store": counts.from_store,
        "left unmeasured": counts.skipped,
        "invalid": counts.invalid,
    }
    always = ("measured", "left unmeasured")
    return [(name, number_text(count)) for name, count in rows.items() if count or name in always]


def costs_text(counts: CandidateCounts) -> str:
    """Return where the costs of candidates are from: ``5 measured, 3 left unmeasured``."""
    return ", ".join(f"{number} {name}" for name, number in candidate_counts(counts))


def few_measured_sentence(run: Run) -> str:
    """Return a sentence where a run measured too little to be a search; else nothing.

    It is empty, too, for a quick confirmation, which measures no candidates. Where the best cover
    was measured throughout, no other candidate could matter.
    """
    counts = run.candidates
    count = counts.measured + counts.from_store
    is_search = count >= FEW_MEASURED * (count + counts.unreached)
    if was_wanted_quickly(run) or not counts.distinct or is_search:
        return ""
    return (
        f"Only {number_text(count)} of {number_text(counts.distinct)} distinct candidates were "
        "measured: a faster mix may be among the others. A larger budget measures more."
    )


def measuring_s(run: Run, candidates: int) -> float | None:
    """Estimates how long measuring so many candidates takes, by the rate of a run.

    Args:
        run: A run.
        candidates: How many distinct candidates.

    Returns:
        Seconds; None where the run measured none.
    """
    if not run.candidates.measured or "measure" not in run.seconds:
        return None
    return run.seconds["measure"] / run.candidates.measured * candidates


def enough_budget_s(run: Run) -> float | None:
    """Return the budget with which a run would measure every candidate that could matter.

    Returns:
        Whole minutes, in seconds: what the run took, and at its rate what it left out; None where
        it left nothing out or has no rate.
    """
    left = run.candidates.unreached
    more = measuring_s(run, left) if left > 0 else None
    if more is None:
        return None
    took = run.seconds["total"] if "total" in run.seconds else sum(run.seconds.values())
    return 60.0 * math.ceil((took + more) / 60)


def was_wanted_quickly(run: Run) -> bool:
    """Tell whether the user asked for a quick confirmation."""
    return bool(run.settings.get("confirmation") == "quick")


def ending_sentences(run: Run) -> list[str]:
    """Return what a reader must know of a run, whichever face shows it.

    That it measured too little, how it ended early, what it left out, and how its placement was
    confirmed.
    """
    few = few_measured_sentence(run)
    sentences = [few] if few else []
    if run.provisional:
        sentences.append(words.RUN_GOES_ON)
    if run.ended == "stopped":
        sentences.append("The run was stopped, and its best placement so far was kept.")
    left = run.unmeasured
    if left is not None and (left.candidates or left.contenders):
        what = []
        if left.candidates and not few:
            what.append(
                f"{number_text(left.candidates)} of {number_text(run.candidates.distinct)} "
                "candidates unmeasured"
            )
        if left.contenders:
            placements = counted(left.contenders, "placement")
            what.append(f"{placements} untimed")
        if what:
            sentences.append(f"The run ended with {' and '.join(what)}.")
    if was_wanted_quickly(run):
        sentences.append(
            "It was confirmed quickly: against the last run and the best baseline, in few rounds."
        )
    elif run.confirmation == "quick":
        sentences.append(
            "It was confirmed against the placements that may be the fastest: the time left was "
            "not expected to be enough for all."
        )
    elif run.confirmation == "trial" and not run.provisional:
        why = ": the time had ended" if run.ended == "budget" else ""
        sentences.append(f"It was not timed in a fresh process{why}.")
    return sentences


# -- ties ------------------------------------------------------------------------------


def price_known(price: Price | None, *, measured: bool) -> str:
    """Return what is known of a candidate's price: ``3 µs``, ``≥ 3 µs``, or words.

    Args:
        price: The price; None: it is not known.
        measured: Whether the candidate has a cost.
    """
    if price is None:
        return "not known" if measured else time_text(None)
    if price.us is None:
        return "no placement"
    return f"≥ {time_text(price.us)}" if price.at_least else time_text(price.us)


# -- runs at different times -----------------------------------------------------------


def baseline_drift(run: Run, reference: Run) -> float | None:
    """Return how much slower the machine was for one run than for another, by their baselines.

    Returns:
        The median over the baselines that both runs timed of time in ``run`` over time in
        ``reference``, less 1; None where they share none, or where one was profiled, which takes
        time of its own.
    """
    if run.of_profile or reference.of_profile:
        return None
    before = {b.name: b.measured_us for b in reference.baselines if b.measured_us}
    ratios = [
        b.measured_us / before[b.name] for b in run.baselines if b.measured_us and b.name in before
    ]
    return statistics.median(ratios) - 1 if ratios else None


def drift_text(run: Run, reference: Run, name: str) -> str:
    """Return ``baselines +4.0 % against Run 1``, or nothing.

    It is empty where the machine was as fast, or where that is not known. Without a name it is
    ``baselines +4.0 %``, to stand where the reference was just named.
    """
    drift = baseline_drift(run, reference)
    if drift is None or abs(drift) < TIE_SHARE:
        return ""
    gain = gain_text(1 + drift, 1.0)
    if not name:
        return f"baselines {gain}"
    return f"baselines {gain} against {name}"


def clocks_text(states: Sequence[MachineState]) -> str:
    """Return ``3,700 → 3,650 MHz, performance``: a run's clocks, as far as they are known."""
    told = [f"{state.mhz:,.0f}" for state in states if state.mhz is not None]
    texts = [f"{' → '.join(told)} MHz"] if told else []
    texts += list(dict.fromkeys(state.governor for state in states if state.governor))
    return ", ".join(texts)


def load_text(states: Sequence[MachineState]) -> str:
    """Return what other programs used of the machine; empty where nothing was looked at."""
    if not states:
        return ""
    ends = dict(zip(("beginning", "end"), (states[0], *states[1:][-1:]), strict=False))
    said = [f"at the {end}: {state.busy}" for end, state in ends.items() if state.busy]
    return "; ".join(said) or f"no other load at the {' and the '.join(ends)}"


def busy_warnings(states: Sequence[MachineState]) -> list[str]:
    """Return a sentence on other programs that used the machine during a run, if there were any."""
    busy = [state.busy for state in states if state.busy]
    return [f"the machine was busy: {busy[-1]}"] if busy else []


def threads_text(run: Run) -> str:
    """Return ``1 (3.10 ms on 1 thread, 3.90 ms on 2 threads)``, as far as others were tried."""
    tried = ", ".join(
        f"{time_text(us)} on {counted(threads, 'thread')}"
        for threads, us in sorted(run.threads_us.items())
    )
    return f"{run.threads} ({tried})" if tried else str(run.threads)


def conditions(run: Run) -> list[tuple[str, str]]:
    """Return the conditions under which a run's numbers were measured, as names and values."""
    settings = run.settings
    versions = ", ".join(
        f"{toolchain_title(state.name)} {state.version}"
        for state in run.toolchains
        if state.available and state.version
    )
    rows = [
        ("machine", run.measured_on),
        ("device", run.device or run.target),
        ("threads", threads_text(run)),
        ("target", run.target),
        ("run budget", duration_text(settings["budget_s"]) if "budget_s" in settings else ""),
        ("precision", str(settings.get("precision", "float32"))),
        ("started", moment_text(run.started_at)),
        ("clocks", clocks_text(run.machine)),
        ("load", load_text(run.machine)),
        ("versions", versions),
    ]
    return [(name, value) for name, value in rows if value]
