"""Why a node runs where it does, in words and as data.

These are pure functions of a problem, its answer and labels: nothing is searched or measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.answers import Alternative, AlternativeStatus
from collage_engine.records.counted import NAMED
from collage_engine.search.problem import CandidateId
from collage_engine.wording.amounts import LEAST_US, time_text

if TYPE_CHECKING:
    from collage_engine.search.problem import Answer, Problem, ProblemCandidate
    from collage_engine.search.ranked_covers import RankedCover


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes, candidates and toolchains are called; what has no name goes by its id."""

    nodes: Mapping[int, str] = {}
    candidates: Mapping[CandidateId, str] = {}
    toolchains: Mapping[str, str] = {}

    def node(self, node: int) -> str:
        """Return the name of a node."""
        return self.nodes.get(node, f"node {node}")

    def candidate(self, candidate: ProblemCandidate) -> str:
        """Return the name of a candidate."""
        known = self.candidates.get(candidate.id)
        if known is not None:
            return known
        names = [self.nodes.get(n, str(n)) for n in candidate.nodes]
        if len(names) <= NAMED:
            return "+".join(names)
        shown = NAMED - 1
        return f"{'+'.join(names[:shown])}+{len(names) - shown} more"

    def located(self, candidate: ProblemCandidate) -> str:
        """Return the name of a candidate and of the node where it begins."""
        name, first = self.candidate(candidate), self.nodes.get(min(candidate.nodes))
        return name if first is None or first in name else f"{name} at {first}"

    def toolchain(self, name: str) -> str:
        """Return the name of a toolchain."""
        return self.toolchains.get(name, name)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node runs where it does."""

    chosen: CandidateId | None
    alternatives: tuple[Alternative, ...]
    """The candidate of the cover, the others by regret, then the toolchains without any."""
    text: tuple[str, ...]
    """The story in sentences."""


def explain_node(
    problem: Problem,
    answer: Answer,
    node: int,
    labels: Labels | None = None,
    *,
    refusals: Mapping[str, str] | None = None,
    runner_up: RankedCover | None = None,
    noise_us: float | None = None,
) -> Explanation:
    """Explain why a node runs where it does.

    Args:
        problem: The problem.
        answer: Its answer; the reader looks at its cover.
        node: Id of the node.
        labels: What things are called.
        refusals: Toolchain to the reason why it has no candidate for the node.
        runner_up: The second-best cover, to say what it does differently.
        noise_us: Microseconds by which latencies of whole placements must differ to be told apart;
            None: it is not known, and candidates are tied where their own repeats overlap.
    """
    labels = labels or Labels()
    holding = [c for c in problem.candidates if node in c.nodes]
    cover = {str(name) for name in answer.cover}
    chosen = next((c for c in holding if str(c.id) in cover), None)
    owner = {n: c for c in problem.candidates if str(c.id) in cover for n in c.nodes}
    lines = [_alternative(answer, c, owner, labels, noise_us) for c in holding]
    text: list[str] = []
    if chosen is None:
        reason = answer.infeasible.reason if answer.infeasible else "no placement was found"
        text.append(f"{labels.node(node)} is not placed: {reason}.")
    else:
        text.append(_headline(chosen, holding, answer, labels))
        text += _not_decided([line for line in lines if line.status == "tied"], labels)
    for verdict in answer.verdicts:
        if node in problem.pins[verdict.pin].nodes and verdict.reason:
            text.append(f"Pin {verdict.pin + 1}: {verdict.reason}")
    if runner_up is not None:
        text.append(explain_ranked_cover(problem, answer, runner_up, labels, node))
    without = (
        Alternative(toolchain=name, status="no candidate", reason=reason)
        for name, reason in (refusals or {}).items()
    )
    return Explanation(
        chosen=chosen.id if chosen else None,
        alternatives=(*sorted(lines, key=_by_regret), *without),
        text=tuple(text),
    )


def _not_decided(tied: Sequence[Alternative], labels: Labels) -> list[str]:
    """Say once which candidates cannot be told from the chosen one."""
    if not tied:
        return []
    names = [f"{labels.toolchain(each.toolchain)}'s {each.operators}" for each in tied]
    listed, left = ", ".join(names[:NAMED]), len(names) - NAMED
    if left > 0:
        listed = f"{listed} and {left} more"
    return [
        f"Not decided on this machine now: {listed}. A placement with one of these takes as long, "
        "as far as measurements tell."
    ]


def _by_regret(line: Alternative) -> tuple[int, float, str]:
    last = {"chosen": 0, "at least": 2, "ruled out": 4, "not known": 4, "invalid": 6}
    unmeasured = 3 if line.whole_us is not None else 5
    place = unmeasured if line.status == "unmeasured" else last.get(line.status, 1)
    return place, line.whole_us or 0.0, line.candidate or ""


def _headline(
    chosen: ProblemCandidate, holding: Sequence[ProblemCandidate], answer: Answer, labels: Labels
) -> str:
    """Return ``oneDNN runs conv+relu: 41 µs; by itself TVM would take 12 µs more``."""
    text = f"{labels.toolchain(chosen.toolchain)} runs {labels.candidate(chosen)}"
    if chosen.cost_us is not None:
        text = f"{text}: {time_text(chosen.cost_us)}"
    others = [
        c
        for c in holding
        if c.state == "measured"
        and c.cost_us is not None
        and c.toolchain != chosen.toolchain
        and set(c.nodes) == set(chosen.nodes)
    ]
    if others and chosen.cost_us is not None:
        other = min(others, key=lambda c: c.cost_us or 0.0)
        more = (other.cost_us or 0.0) - chosen.cost_us
        name = labels.toolchain(other.toolchain)
        if abs(more) < LEAST_US:
            text += f"; by itself {name} would take as long"
        elif more > 0:
            text += f"; by itself {name} would take {time_text(more)} more"
        else:
            reason = _why_not(other, answer)
            text += f"; by itself {name} would take {time_text(-more)} less, but {reason}"
    if answer.optimal or answer.gap_us is None:
        return f"{text}."
    gap = time_text(answer.gap_us)
    return f"{text} (the placement is proven to be at most {gap} above the best one)."


def _why_not(other: ProblemCandidate, answer: Answer) -> str:
    """Return why a candidate with a lower isolated cost was not chosen."""
    regret = answer.regrets.get(other.id)
    if regret is not None and abs(regret) < LEAST_US:
        return "the best placement with it takes as long"
    if regret is not None and regret < 0:
        return f"another placement with it takes {time_text(-regret)} less"
    if regret is not None:
        return (
            f"the best placement with it takes {time_text(regret)} longer, because of its "
            "hand-overs"
        )
    bound = answer.regret_bounds.get(other.id)
    if bound is not None:
        return f"the best placement with it takes at least {time_text(bound)} longer"
    return (
        "no placement contains it: a pin or its neighbours rule it out"
        if other.id in answer.regrets
        else "there was no time to find the best placement with it"
    )


def _alternative(
    answer: Answer,
    candidate: ProblemCandidate,
    owner: Mapping[int, ProblemCandidate],
    labels: Labels,
    noise_us: float | None,
) -> Alternative:
    """Return what is known of one candidate; ``owner``: node to its candidate of the cover."""
    regret = answer.regrets.get(candidate.id)
    bound = answer.regret_bounds.get(candidate.id)
    ours = list({str(owner[n].id): owner[n] for n in candidate.nodes if n in owner}.values())
    status: AlternativeStatus
    if candidate.state == "invalid":
        status, bound = "invalid", None
    elif [each.id for each in ours] == [candidate.id]:
        status, regret, bound = "chosen", None, None
    elif regret is not None:
        tie = is_tie(ours, candidate, regret) if noise_us is None else abs(regret) <= noise_us
        status = "tied" if tie else "slower" if regret > 0 else "faster"
    elif candidate.state == "unknown":
        status = "unmeasured"
    elif candidate.id in answer.regrets:
        status = "ruled out"
    else:
        status = "at least" if bound is not None else "not known"
    return Alternative(
        toolchain=candidate.toolchain,
        status=status,
        candidate=str(candidate.id),
        operators=labels.candidate(candidate),
        here_us=candidate.cost_us,
        whole_us=bound if regret is None else regret,
        reason=candidate.reason or "",
    )


def spread_of(candidate: ProblemCandidate) -> tuple[float, float]:
    """Return the low and high end of a measured candidate's cost, in microseconds.

    Both are the cost when no spread is known.

    Raises:
        ValueError: The candidate is not measured.
    """
    cost = candidate.cost_us
    if cost is None:
        raise ValueError(f"candidate {candidate.id} is not measured")
    spread = candidate.spread_us
    if spread is None:
        return cost, cost
    if isinstance(spread, tuple):
        return min(spread[0], cost), max(spread[1], cost)
    return max(0.0, cost - spread), cost + spread


def is_tie(ours: Sequence[ProblemCandidate], other: ProblemCandidate, regret_us: float) -> bool:
    """Tell whether a candidate's regret lies within the spreads.

    Args:
        ours: The chosen candidates on the other's nodes; their scatter adds up as independent.
        other: A candidate that was not chosen.
        regret_us: Its regret in microseconds.
    """
    timed = [c for c in ours if c.cost_us is not None]
    up = math.sqrt(sum((spread_of(c)[1] - (c.cost_us or 0.0)) ** 2 for c in timed))
    if other.cost_us is None:
        return regret_us <= up
    down = (other.cost_us or 0.0) - spread_of(other)[0]
    return regret_us <= up + down


def explain_ranked_cover(
    problem: Problem,
    answer: Answer,
    other: RankedCover,
    labels: Labels | None = None,
    node: int | None = None,
) -> str:
    """Say what another cover does differently, and what that costs.

    Args:
        problem: The problem.
        answer: Its answer.
        other: The other cover.
        labels: What things are called.
        node: The node that the reader looks at, to say so where it runs in the other cover as it
            does in this.
    """
    labels = labels or Labels()
    known = {str(c.id): c for c in problem.candidates}
    ours = {str(name) for name in answer.cover}
    theirs = {str(name) for name in other.cover}
    gone = [known[name] for name in sorted(ours - theirs, key=lambda n: min(known[n].nodes))]
    come = [known[name] for name in sorted(theirs - ours, key=lambda n: min(known[n].nodes))]
    if not come:
        return "The second-best placement is the same."

    def listed(parts: list[ProblemCandidate]) -> str:
        names = ", ".join(
            f"{labels.toolchain(c.toolchain)}'s {labels.located(c)}" for c in parts[:NAMED]
        )
        left = len(parts) - NAMED
        return f"{names} and {left} more" if left > 0 else names

    time = "as long"
    if abs(other.regret_us) >= LEAST_US:
        more = "longer" if other.regret_us > 0 else "less"
        time = f"{time_text(abs(other.regret_us))} {more}"
    if node is not None and not any(node in c.nodes for c in come):
        return (
            f"The second-best placement has the same at {labels.node(node)}; elsewhere it has "
            f"{listed(come)} instead of {listed(gone)} and takes {time}."
        )
    return (
        f"The second-best placement has {listed(come)} instead of {listed(gone)} and takes {time}."
    )
