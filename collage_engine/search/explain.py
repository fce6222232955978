"""Why a node runs where it does, in words and as data.

These are pure functions of a problem, its answer and labels: nothing is searched or measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from collage_engine.search.problem import CandidateId
from collage_engine.wording import why as words
from collage_engine.wording.amounts import time_text

if TYPE_CHECKING:
    from collage_engine.search.problem import Answer, Problem, ProblemCandidate
    from collage_engine.search.ranked_covers import RankedCover


MOST_ALTERNATIVES = 6
"""Alternatives that the text of an explanation names (a count; chosen)."""
NAMED = 3
"""Candidates of another placement that the text names (a count; chosen)."""
NAMES_IN_LABEL = 6
"""Operators that the label of a candidate names one by one (a count; chosen)."""


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
        if len(names) <= NAMES_IN_LABEL:
            return "+".join(names)
        shown = NAMES_IN_LABEL - 1
        return f"{'+'.join(names[:shown])}+{len(names) - shown} more"

    def located(self, candidate: ProblemCandidate) -> str:
        """Return the name of a candidate and of the node where it begins."""
        name, first = self.candidate(candidate), self.nodes.get(min(candidate.nodes))
        return name if first is None or first in name else f"{name} at {first}"

    def toolchain(self, name: str) -> str:
        """Return the name of a toolchain."""
        return self.toolchains.get(name, name)


RegretState = Literal["exact", "at least", "in no placement", "not known"]
"""What is known of a candidate's regret: the amount, a lower bound, that it has none, or nothing
(there was no time, or the candidate has neither a cost nor a bound)."""


class ExplainedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that holds the node, and why it was or was not chosen."""

    candidate: CandidateId
    state: str
    chosen: bool
    regret: RegretState
    regret_us: float | None
    """The regret where it is known exactly, else None."""
    regret_at_least_us: float | None
    """Where only a lower bound is known: shown with ≥."""
    tie: bool
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node runs where it does."""

    node: int
    chosen: CandidateId | None
    lines: tuple[ExplainedCandidate, ...]
    """The chosen candidate, then the others by regret."""
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
    explained = [_explained(problem, answer, c, owner, labels, noise_us) for c in holding]
    lines = tuple(sorted(explained, key=_by_regret))
    text: list[str] = []
    if chosen is None:
        reason = answer.infeasible.reason if answer.infeasible else words.NO_PLACEMENT
        text.append(words.NOT_PLACED.format(node=labels.node(node), reason=reason))
    else:
        text.append(_headline(chosen, holding, answer, labels))
        others = [line.text for line in lines if not line.chosen and not line.tie]
        if others:
            text.append(words.ALTERNATIVES)
        text += others[:MOST_ALTERNATIVES]
        text += _not_decided([c for c in holding if _is_tied(c, lines)], labels)
    text += [
        words.NO_CANDIDATE.format(toolchain=labels.toolchain(name), reason=reason)
        for name, reason in (refusals or {}).items()
    ]
    for verdict in answer.verdicts:
        if node in problem.pins[verdict.pin].nodes and verdict.reason:
            text.append(words.PIN.format(number=verdict.pin + 1, reason=verdict.reason))
    if runner_up is not None:
        text.append(explain_ranked_cover(problem, answer, runner_up, labels, node))
    return Explanation(
        node=node,
        chosen=chosen.id if chosen else None,
        lines=lines,
        text=tuple(text),
    )


def _is_tied(candidate: ProblemCandidate, lines: Sequence[ExplainedCandidate]) -> bool:
    return any(line.candidate == candidate.id and line.tie for line in lines)


def _not_decided(tied: Sequence[ProblemCandidate], labels: Labels) -> list[str]:
    """Say once which candidates cannot be told from the chosen one."""
    if not tied:
        return []
    names = [
        words.CANDIDATE.format(
            toolchain=labels.toolchain(c.toolchain), operators=labels.candidate(c)
        )
        for c in tied
    ]
    listed, left = ", ".join(names[:NAMED]), len(names) - NAMED
    if left > 0:
        listed = words.AND_MORE.format(names=listed, count=left)
    return [words.NOT_DECIDED.format(candidates=listed)]


def _by_regret(line: ExplainedCandidate) -> tuple[int, float, str]:
    if line.chosen:
        return 0, 0.0, ""
    if line.regret_us is not None:
        return 1, line.regret_us, str(line.candidate)
    if line.regret_at_least_us is not None:
        return 2, line.regret_at_least_us, str(line.candidate)
    return {"measured": 3, "unknown": 4}.get(line.state, 5), 0.0, str(line.candidate)


def _headline(
    chosen: ProblemCandidate, holding: Sequence[ProblemCandidate], answer: Answer, labels: Labels
) -> str:
    """Return ``oneDNN runs conv+relu: 41 µs; by itself TVM would take 12 µs more``."""
    text = words.RUNS.format(
        toolchain=labels.toolchain(chosen.toolchain), operators=labels.candidate(chosen)
    )
    if chosen.cost_us is not None:
        text = words.WITH_TIME.format(text=text, cost=time_text(chosen.cost_us))
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
        if abs(more) < 0.005:
            text += words.AS_LONG.format(other=name)
        elif more > 0:
            text += words.SHORTER.format(more=time_text(more), other=name)
        else:
            reason = _why_not(other, answer)
            text += words.LONGER.format(other=name, less=time_text(-more), reason=reason)
    if answer.optimal or answer.gap_us is None:
        return f"{text}."
    return f"{words.PROVEN_WITHIN.format(text=text, gap=time_text(answer.gap_us))}."


def _why_not(other: ProblemCandidate, answer: Answer) -> str:
    """Return why a candidate with a lower isolated cost was not chosen."""
    regret = answer.regrets.get(other.id)
    if regret is not None and regret <= 0:
        return (
            words.AS_FAST if regret == 0 else words.EXPECTED_FASTER.format(less=time_text(-regret))
        )
    if regret is not None:
        return words.HAND_OVERS_COST.format(more=time_text(regret))
    bound = answer.regret_bounds.get(other.id)
    if bound is not None:
        return words.AT_LEAST_LONGER.format(more=time_text(bound))
    if regret_state(answer, other.id) == "not known":
        return words.NO_TIME
    return words.RULED_OUT


def _explained(
    problem: Problem,
    answer: Answer,
    candidate: ProblemCandidate,
    owner: Mapping[int, ProblemCandidate],
    labels: Labels,
    noise_us: float | None,
) -> ExplainedCandidate:
    """Explain one candidate; ``owner``: node to the candidate of the cover that holds it."""
    regret = answer.regrets.get(candidate.id)
    bound = answer.regret_bounds.get(candidate.id)
    name = words.CANDIDATE.format(
        toolchain=labels.toolchain(candidate.toolchain), operators=labels.candidate(candidate)
    )
    with_cost = name
    if candidate.cost_us is not None:
        with_cost = words.WITH_COST.format(name=name, cost=time_text(candidate.cost_us))
    holder = owner.get(candidate.nodes[0])
    chosen = holder is not None and holder.id == candidate.id
    tie = False
    if candidate.state == "invalid":
        reason = candidate.reason or words.INVALID_WITHOUT_REASON
        text = words.INVALID.format(name=name, reason=reason)
    elif chosen:
        text = words.CHOSEN.format(name=name, cost=time_text(candidate.cost_us))
    elif candidate.state == "unknown" and regret is None:
        text = _unmeasured_in_words(name, candidate, bound)
    elif regret is not None:
        tie, text = _loss_in_words(with_cost, candidate, regret, owner, noise_us)
    elif bound is not None:
        text = words.AT_LEAST.format(name=name, more=time_text(bound))
    elif regret_state(answer, candidate.id) == "not known":
        text = words.NOT_KNOWN.format(name=with_cost)
    else:
        text = _in_no_placement(name, problem)
    return ExplainedCandidate(
        candidate=candidate.id,
        state=candidate.state,
        chosen=chosen,
        regret=regret_state(answer, candidate.id),
        regret_us=regret,
        regret_at_least_us=bound,
        tie=tie,
        text=text,
    )


def regret_state(answer: Answer, candidate: CandidateId) -> RegretState:
    """Return what an answer knows of a candidate's regret."""
    if candidate in answer.regrets:
        return "in no placement" if answer.regrets[candidate] is None else "exact"
    return "at least" if candidate in answer.regret_bounds else "not known"


def _in_no_placement(name: str, problem: Problem) -> str:
    """Say that no placement contains a candidate, under the pins and limits that there are."""
    given = [word for word, some in (("pins", problem.pins), ("limits", problem.limits)) if some]
    if not given:
        return words.IN_NO_PLACEMENT.format(name=name)
    return words.IN_NO_PLACEMENT_UNDER.format(name=name, constraints=" and ".join(given))


def _unmeasured_in_words(name: str, candidate: ProblemCandidate, bound: float | None) -> str:
    """Say what is known of an unmeasured candidate; ``bound``: its regret is at least that."""
    reason = candidate.reason
    if bound is None:
        if reason:
            return words.UNMEASURED_BECAUSE.format(name=name, reason=reason)
        return words.UNMEASURED.format(name=name)
    if bound == 0:
        return words.UNMEASURED_AS_GOOD.format(name=name)
    if reason:
        return words.UNMEASURED_AT_LEAST_BECAUSE.format(
            name=name, more=time_text(bound), reason=reason
        )
    return words.UNMEASURED_AT_LEAST.format(name=name, more=time_text(bound))


def _loss_in_words(
    name: str,
    candidate: ProblemCandidate,
    regret: float,
    owner: Mapping[int, ProblemCandidate],
    noise_us: float | None,
) -> tuple[bool, str]:
    """Return whether a candidate that was not chosen is tied, and what it loses by in words."""
    ours = list({str(owner[n].id): owner[n] for n in candidate.nodes}.values())
    tie = is_tie(ours, candidate, regret) if noise_us is None else abs(regret) <= noise_us
    if regret < 0:
        return tie, words.LESS.format(name=name, less=time_text(-regret))
    if regret == 0:
        return tie, words.NO_EXTRA.format(name=name)
    return tie, words.EXTRA.format(name=name, more=time_text(regret))


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
        return words.SECOND_IS_SAME

    def listed(parts: list[ProblemCandidate]) -> str:
        names = ", ".join(
            words.CANDIDATE.format(
                toolchain=labels.toolchain(c.toolchain), operators=labels.located(c)
            )
            for c in parts[:NAMED]
        )
        left = len(parts) - NAMED
        return words.AND_MORE.format(names=names, count=left) if left > 0 else names

    time = words.TIME_EQUAL
    if other.regret_us:
        sentence = words.TIME_LONGER if other.regret_us > 0 else words.TIME_SHORTER
        time = sentence.format(more=time_text(abs(other.regret_us)))
    if node is not None and not any(node in c.nodes for c in come):
        return words.SECOND_HAS_SAME.format(
            node=labels.node(node), theirs=listed(come), ours=listed(gone), time=time
        )
    return words.SECOND_HAS.format(theirs=listed(come), ours=listed(gone), time=time)
