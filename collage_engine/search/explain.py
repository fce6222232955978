"""Why a node runs where it does, in words and as data.

Pure functions of a problem, its answer and labels: nothing is searched or measured here. Labels
say how nodes, candidates and toolchains are called; what has none goes by its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.doubt import overlap, spread_of
from collage_engine.search.problem import CandidateId

if TYPE_CHECKING:
    from collage_engine.search.problem import Answer, Problem, ProblemCandidate
    from collage_engine.search.rivals import Rival


MOST_RIVALS = 6
RIVALS = (
    "What else could hold it, and what the best placement of the whole graph with that takes more:"
)


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """What things are called."""

    nodes: Mapping[int, str] = {}
    candidates: Mapping[CandidateId, str] = {}
    toolchains: Mapping[str, str] = {}

    def node(self, node: int) -> str:
        return self.nodes.get(node, f"node {node}")

    def candidate(self, candidate: ProblemCandidate) -> str:
        known = self.candidates.get(candidate.id)
        if known is not None:
            return known
        names = [self.nodes.get(n, str(n)) for n in candidate.nodes]
        return (
            "+".join(names) if len(names) <= 6 else f"{'+'.join(names[:5])}+{len(names) - 5} more"
        )

    def placed(self, candidate: ProblemCandidate) -> str:
        """The candidate and where it begins, for readers who look elsewhere."""
        name, first = self.candidate(candidate), self.nodes.get(min(candidate.nodes))
        return name if first is None or first in name else f"{name} at {first}"

    def toolchain(self, name: str) -> str:
        return self.toolchains.get(name, name)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that holds the node, and why it was or was not chosen."""

    candidate: CandidateId
    toolchain: str
    nodes: tuple[int, ...]
    state: str
    chosen: bool
    cost_us: float | None
    spread_us: tuple[float, float] | None
    regret_us: float | None
    """None: not known, or in no cover."""
    regret_at_least_us: float | None
    """Where only a lower bound is known: shown with ≥."""
    tie: bool
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node runs where it does."""

    node: int
    chosen: CandidateId | None
    lines: tuple[Line, ...]
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
    runner_up: Rival | None = None,
) -> Explanation:
    """Why ``node`` runs where it does.

    ``refusals``: toolchain to the reason why it offers nothing for the node. ``runner_up``: the
    second-best cover, to say what it does differently.
    """
    labels = labels or Labels()
    holding = [c for c in problem.candidates if node in c.nodes]
    cover = {str(name) for name in answer.cover}
    chosen = next((c for c in holding if str(c.id) in cover), None)
    lines = tuple(sorted((_line(problem, answer, c, labels) for c in holding), key=_by_regret))
    said: list[str] = []
    if chosen is None:
        why = answer.infeasible.reason if answer.infeasible else "no cover was found"
        said.append(f"{labels.node(node)} is not placed: {why}")
    else:
        said.append(_headline(chosen, holding, answer, labels))
        others = [line.text for line in lines if not line.chosen][:MOST_RIVALS]
        if others:
            said.append(RIVALS)
        said += others
    said += [
        f"{labels.toolchain(name)} offers nothing here: {reason}"
        for name, reason in (refusals or {}).items()
    ]
    for verdict in answer.verdicts:
        if node in problem.pins[verdict.pin].nodes and verdict.reason:
            said.append(f"pin {verdict.pin}: {verdict.reason}")
    if runner_up is not None:
        said.append(explain_rival(problem, answer, runner_up, labels, node))
    return Explanation(
        node=node,
        chosen=chosen.id if chosen else None,
        lines=lines,
        text=tuple(said),
    )


def _by_regret(line: Line) -> tuple[int, float, str]:
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
    """``oneDNN runs conv+bias+relu: 41 µs, 12 µs less than ONNX Runtime``"""
    name = labels.toolchain(chosen.toolchain)
    text = f"{name} runs {labels.candidate(chosen)}: {us(chosen.cost_us)}"
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
            text += f", exactly what {name} takes"
        elif more > 0:
            text += f", {us(more)} less than {name}"
        else:
            text += f"; {name} alone would take {us(-more)} less, but {_why_not(other, answer)}"
    if answer.optimal:
        return text
    gap = answer.gap_us
    return text if gap is None else f"{text} (the cover is at most {us(gap)} above the best)"


def _why_not(other: ProblemCandidate, answer: Answer) -> str:
    """Why a candidate with a lower cost of its own was not chosen."""
    regret = answer.regrets.get(other.id)
    if regret is not None:
        return f"the best cover with it costs {us(regret)} more, for what it hands over"
    bound = answer.regret_bounds.get(other.id)
    if bound is not None:
        return f"the best cover with it costs ≥ {us(bound)} more"
    return "it is in no cover (a pin, or its neighbours, rule it out)"


def _line(problem: Problem, answer: Answer, candidate: ProblemCandidate, labels: Labels) -> Line:
    cover = {str(name): name for name in answer.cover}
    chosen = str(candidate.id) in cover
    regret = answer.regrets.get(candidate.id)
    bound = answer.regret_bounds.get(candidate.id)
    tie = False
    who = f"{labels.toolchain(candidate.toolchain)}'s {labels.candidate(candidate)}"
    if candidate.state == "invalid":
        text = f"{who} cannot run: {candidate.reason or 'invalid'}"
    elif candidate.state == "unknown":
        if bound is not None:
            text = f"{who} was not measured; it loses by ≥ {us(bound)}"
            if bound == 0:
                text = f"{who} was not measured and could be as good"
            elif candidate.reason:
                text += f" ({candidate.reason})"
        else:
            text = f"{who} was not measured" + (f": {candidate.reason}" if candidate.reason else "")
    elif chosen:
        text = f"{who} is chosen: {us(candidate.cost_us)}"
    elif regret is None:
        text = (
            f"{who} loses by ≥ {us(bound)}"
            if bound is not None
            else f"{who} is in no cover{' under the pins' if problem.pins else ''}"
        )
    else:
        owner = {n: c for c in problem.candidates if str(c.id) in cover for n in c.nodes}
        ours = list({str(owner[n].id): owner[n] for n in candidate.nodes}.values())
        tie = overlap(ours, candidate, regret, problem.drift)
        alone = f" ({us(candidate.cost_us)})"
        if regret == 0:
            text = f"{who}{alone} is in a cover that costs exactly as much: a tie"
        elif overlap(ours, candidate, regret):
            text = (
                f"{who}{alone} loses by {us(regret)}; the repeats scatter by more than that: a tie"
            )
        elif tie:
            text = (
                f"{who}{alone} loses by {us(regret)}; measured at another time, it may win: a tie"
            )
        else:
            text = f"{who}{alone} loses by {us(regret)}"
    measured = candidate.state == "measured" and candidate.spread_us is not None
    return Line(
        candidate=candidate.id,
        toolchain=candidate.toolchain,
        nodes=candidate.nodes,
        state=candidate.state,
        chosen=chosen,
        cost_us=candidate.cost_us,
        spread_us=spread_of(candidate) if measured else None,
        regret_us=regret,
        regret_at_least_us=bound,
        tie=tie,
        text=text,
    )


def explain_rival(
    problem: Problem,
    answer: Answer,
    rival: Rival,
    labels: Labels | None = None,
    node: int | None = None,
) -> str:
    """What another cover does differently, and what that costs; ``node``: which the reader looks
    at, to say so where it runs in the other cover as it does in this."""
    labels = labels or Labels()
    known = {str(c.id): c for c in problem.candidates}
    ours = {str(name) for name in answer.cover}
    theirs = {str(name) for name in rival.cover}
    gone = [known[name] for name in sorted(ours - theirs, key=lambda n: min(known[n].nodes))]
    come = [known[name] for name in sorted(theirs - ours, key=lambda n: min(known[n].nodes))]
    if not come:
        return "the runner-up is the same cover"

    def told(parts: list[ProblemCandidate]) -> str:
        said = [f"{labels.toolchain(c.toolchain)}'s {labels.placed(c)}" for c in parts[:3]]
        return ", ".join(said) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")

    cost = f"costs {us(rival.regret_us)} more" if rival.regret_us > 0 else "costs the same"
    if node is not None and not any(node in c.nodes for c in come):
        name = labels.node(node)
        return (
            f"the runner-up of the whole graph has the same at {name}; elsewhere it has "
            f"{told(come)} instead of {told(gone)}: {cost}"
        )
    return f"the runner-up has {told(come)} instead of {told(gone)}: {cost}"


def us(amount: float | None) -> str:
    """Microseconds with as many digits as matter: 0.42 µs, 41 µs, 1.32 ms, 25.3 ms."""
    if amount is None:
        return "unknown"
    if amount >= 10_000:
        return f"{amount / 1000:.1f} ms"
    if amount >= 1000:
        return f"{amount / 1000:.2f} ms"
    if amount >= 100 or amount == int(amount):
        return f"{amount:.0f} µs"
    return f"{amount:.2g} µs" if amount < 1 else f"{amount:.1f} µs"
