"""The errors of candidates are followed to the model's outputs.

What is measured of a candidate is its isolated error, on its own true inputs. Later operators damp
errors or amplify them; ``lowering.sensitivity`` measures by how much, for those nodes where a
candidate's error asks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.control.run_control import RunControl
from collage_engine.lowering.sensitivity import carried
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost_table import CostTable
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.precision import is_reduced
from collage_engine.search.problem import CandidateId
from collage_engine.trials.mixed_precision import products_of

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

NEGLIGIBLE_ERROR = 1e-5
"""Isolated relative errors below are those of float32 and need no weighing; chosen, above what
float32 sums of some thousand products differ by."""
FACTORS_S = 20.0
"""Seconds for following errors through the model, at most; chosen."""


def isolated_errors(candidates: Iterable[Candidate], costs: CostTable) -> dict[CandidateId, float]:
    """Return the largest relative error of each candidate on its own true inputs, by its id."""
    found = {c.id: costs.cost(c.id) for c in candidates}
    return {
        name: cost.max_rel_error
        for name, cost in found.items()
        if cost.usable and cost.max_rel_error is not None
    }


def reduced_of(candidates: Iterable[Candidate]) -> list[CandidateId]:
    """Return the candidates that compute in less than float32, by id."""
    return [candidate.id for candidate in candidates if is_reduced(candidate.instance)]


def factors_of(
    model: ImportedModel,
    candidates: Sequence[Candidate],
    costs: CostTable,
    samples: Sequence[Mapping[str, np.ndarray]],
    control: RunControl,
) -> dict[int, float]:
    """Return how much of a node's relative error arrives at the model's outputs, for every node.

    It is measured where a candidate's error is above ``NEGLIGIBLE_ERROR``, and at products; for at
    most ``FACTORS_S`` seconds.

    Args:
        model: The model.
        candidates: All candidates.
        costs: Their costs, with their isolated errors.
        samples: Sets of the model's inputs by name.
        control: The run's cancel flag, and what takes warnings.

    Returns:
        Factors without a unit, by graph index; where none was measured, the largest one of the
        node's readers stands in.
    """
    graph = model.graph
    errors = isolated_errors(candidates, costs)
    wanted = {
        index
        for candidate in candidates
        if errors.get(candidate.id, 0.0) > NEGLIGIBLE_ERROR
        for index in graph.boundary(graph.close(graph.to_indices(candidate.nodes)))[1]
    }
    wanted.update(_named(graph, index) for index in products_of(model).values())
    threads = max((candidate.instance.threads for candidate in candidates), default=1)
    factor = carried(
        model,
        samples,
        wanted,
        threads=threads,
        limit_s=FACTORS_S,
        cancel=control.cancelled,
        warn=control.warn,
    )
    return downstream(graph, factor)


def _named(graph: DataflowGraph, index: NodeIndex) -> NodeIndex:
    """Return the node, or the first one after it whose value has a name in the user's model.

    A convolution before its bias is added has none, for example.
    """
    while not graph.nodes[index].onnx_value and len(graph.users[index]) == 1:
        (index,) = graph.users[index]
    return index


def weighed(
    graph: DataflowGraph,
    candidates: Sequence[Candidate],
    costs: CostTable,
    factors: Mapping[int, float],
) -> dict[CandidateId, float]:
    """Return the isolated errors as they arrive at the model's outputs.

    Each is multiplied by how far the model carries errors from the candidate's outputs; an error of
    the whole model is not carried any further.

    Args:
        graph: The model's graph.
        candidates: All candidates.
        costs: Their costs, with their isolated errors.
        factors: How far errors are carried from every node, by graph index.

    Returns:
        Relative errors by candidate id; without candidates whose error is not known.
    """
    errors = isolated_errors(candidates, costs)
    found: dict[CandidateId, float] = {}
    for candidate in candidates:
        error = errors.get(candidate.id)
        if error is None:
            continue
        found[candidate.id] = error
        if error > NEGLIGIBLE_ERROR and len(candidate.nodes) < len(graph.operators):
            outputs = graph.boundary(graph.close(graph.to_indices(candidate.nodes)))[1]
            found[candidate.id] *= math.sqrt(sum(factors[index] ** 2 for index in outputs) or 1.0)
    return found


def downstream(graph: DataflowGraph, factor: Mapping[int, float]) -> dict[int, float]:
    """Return a factor for every node, of which only some were measured.

    Args:
        graph: The model's graph.
        factor: How far errors are carried, by graph index, where that was measured.

    Returns:
        The same for every node. Where it was not measured it is the largest factor of the node's
        readers, and 1 at least for an output of the model.
    """
    found: dict[int, float] = {}
    for node in reversed(graph.nodes):
        index = node.index
        known = factor.get(index)
        if known is None:
            read = [found[user] for user in graph.users[index]]
            known = max(read, default=0.0)
            if graph.output_set >> index & 1 or not read:
                known = max(known, 1.0)
        found[index] = known
    return found
