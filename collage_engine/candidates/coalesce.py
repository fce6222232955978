"""Coalesced candidates: touching partitions of one toolchain in the best covers, as one candidate.

Collage's MaxCoalesce merged them unmeasured; here a merged candidate is measured like every other
one and has to win the next search.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.model.importer import ImportedModel
from collage_engine.model.index_set import NO_OPERATORS, operator_set
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.records.numbering import OperatorNumber
from collage_engine.search.coalesce import coalesce
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.store.keys import KeyMaker

MERGED_PER_ROUND = 48
"""Merged candidates at most that one round proposes; chosen, to bound what is measured for it."""


def merged_candidates(
    model: ImportedModel,
    menu: Menu,
    problem: Problem,
    covers: Sequence[Sequence[CandidateId]],
) -> list[Candidate]:
    """Return the candidates that merge touching partitions of these covers.

    Args:
        model: The model.
        menu: The menu, which the toolchain instances are of.
        problem: The search problem that the covers solve.
        covers: The best covers, each as candidate ids.

    Returns:
        New candidates with keys, unmeasured; none that the problem knows already, and none that
        would part a tuple from its fields.
    """
    atoms = call_graph(model.graph).atoms

    def may_merge(nodes: tuple[int, ...], toolchain: str) -> bool:
        operators = tuple(map(OperatorNumber, nodes))
        inside = operator_set(operators)
        return not any(atoms.get(o, NO_OPERATORS) & ~inside for o in operators)

    makers = KeyMaker(model.graph, model.constant)
    found = []
    for proposal in coalesce(problem, covers, may_merge=may_merge, limit=MERGED_PER_ROUND):
        instance = menu.instances[proposal.toolchain]
        candidate = make_candidate(
            model.graph,
            instance,
            tuple(map(OperatorNumber, proposal.nodes)),
            rule="coalesced",
            takes=proposal.takes,
            gives=proposal.gives,
        )
        key = menu.keys.key(makers.form_of(candidate), instance)
        found.append(msgspec.structs.replace(candidate, key=key))
    return found
