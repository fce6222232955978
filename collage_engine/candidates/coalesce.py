"""Touching partitions of one toolchain in the best covers, offered as one.

Upstream's MaxCoalesce merged them unmeasured; here a merged candidate is measured like every
other one and has to win the next search.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.candidates.open_model import Menu
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.search.coalesce import coalesce
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.store.keys import KeyMaker

ROUNDS = 2
"""Searches and merges in turn; later ones find next to nothing."""
LIMIT = 48
"""Merged candidates a round."""


def merged_candidates(
    model: ImportedModel,
    menu: Menu,
    problem: Problem,
    covers: Sequence[Sequence[CandidateId]],
) -> list[Candidate]:
    """New candidates, unmeasured; none that is known already or parts a tuple from its fields."""
    atoms = call_graph(model.graph).atoms

    def may_merge(nodes: tuple[int, ...], toolchain: str) -> bool:
        bits = sum(1 << node for node in nodes)
        return not any(atoms.get(node, 0) & ~bits for node in nodes)

    makers = KeyMaker(model.graph, model.constant)
    found = []
    for proposal in coalesce(problem, covers, may_merge=may_merge, limit=LIMIT):
        instance = menu.instances[proposal.toolchain]
        record = make_candidate(
            model.graph,
            instance,
            proposal.nodes,
            rule="coalesced",
            takes=proposal.takes,
            gives=proposal.gives,
        )
        key = menu.keys.key(makers.form_of(record), instance)
        found.append(msgspec.structs.replace(record, key=key))
    return found
