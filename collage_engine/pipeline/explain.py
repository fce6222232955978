"""Why a node runs where it does: a document's side of ``search.explain``."""

from __future__ import annotations

from collage_engine.pipeline.problem import make_placement, make_problem
from collage_engine.records.answers import ExplainAnswer, NotOffered
from collage_engine.records.candidate import CandidateRecord
from collage_engine.session.document import Document

MOST = 200
"""Candidates listed for one node."""


def explain_node(document: Document, node: int) -> ExplainAnswer:
    """Candidates with their regrets, the chosen one, its rivals, and why others offer nothing."""
    from collage_engine.search.api import solve
    from collage_engine.search.explain import explain_in_words

    holding = [c for c in document.candidates if node in c.nodes]
    not_offered = tuple(
        NotOffered(toolchain=instance, reason=reasons[node])
        for instance, reasons in document.not_offered.items()
        if node in reasons
    )
    if not any(c.cost.usable for c in document.candidates):
        return ExplainAnswer(
            words=("Nothing has been measured yet: start a run.",),
            candidates=tuple(holding[:MOST]),
            not_offered=not_offered,
        )
    problem = make_problem(
        document.graph, document.candidates, document.pins, document.constants, document.settings
    )
    answer = solve(problem)
    if answer.infeasible is not None:
        return ExplainAnswer(
            words=(f"No placement exists: {answer.infeasible.reason}",),
            candidates=tuple(holding[:MOST]),
            not_offered=not_offered,
        )
    by_id = {c.id: c for c in document.candidates}
    cover = {str(i) for i in answer.cover}
    chosen = next(c for c in holding if c.id in cover)
    explained = explain_in_words(problem, answer, node, labels=_labels(document))
    regrets = {str(i): us for i, us in answer.regrets.items()}
    holding.sort(key=lambda c: _order(c, regrets))
    runner_up = None
    if explained.runner_up:
        runner_up = make_placement(
            document.graph, by_id, [str(i) for i in explained.runner_up],
            explained.runner_up_us, document.settings.percentile,
        )  # fmt: skip
    return ExplainAnswer(
        words=tuple(explained.words),
        candidates=tuple(holding[:MOST]),
        regrets={c.id: regrets[c.id] for c in holding[:MOST] if c.id in regrets},
        chosen=chosen.id,
        runner_up=runner_up,
        not_offered=not_offered,
        ties=tuple(str(i) for i in explained.ties),
    )


def _order(c: CandidateRecord, regrets: dict[str, float | None]) -> tuple[int, float]:
    """Feasible ones by regret, then those in no cover, then invalid and unknown."""
    regret = regrets.get(c.id)
    if regret is not None:
        return 0, regret
    return (1 if c.cost.usable else 2), 0.0


def _labels(document: Document) -> dict[str, str]:
    """Candidate id → what people call it: its operators without Relax's prefixes."""
    return {c.id: c.label.replace("nn.", "") for c in document.candidates}
