"""Weights of the state space's moves: what each candidate costs and demands, as integers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from collage_engine.search.pricing import IMPOSSIBLE, PriceBook, Prices, Value, units
from collage_engine.search.problem import PLAIN, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collage_engine.search.problem import ProblemCandidate
    from collage_engine.search.state_space import NodeSet, StateSpace


class Weights:
    """Integer costs and transition data of the usable candidates.

    ``cost[c]`` is the candidate's cost with its launch and with the conversion of its graph
    outputs; ``demands[c]`` has the atoms that it charges on each value its node set consumes,
    ``prices[c]`` the prices of each value its node set produces.
    """

    def __init__(self, problem: Problem, space: StateSpace) -> None:
        """Convert a problem's costs.

        Args:
            problem: The problem.
            space: Its state space, whose ``values`` are filled here.
        """
        self.problem = problem
        self.space = space
        self.book = PriceBook()
        ranks = {name: rank for rank, name in enumerate(problem.priority)}
        worst = len(ranks)
        count = len(problem.nodes)
        per_rank = count + 1 if ranks else 0
        self.scale = (count * worst + 1) * (count + 1)
        """Internal amount of one unit of cost; what is below it decides between exact ties."""
        launch = units(problem.transitions.launch_us) * self.scale
        self.cost: list[int] = [IMPOSSIBLE] * len(problem.candidates)
        self.demands: list[tuple[int, ...]] = [()] * len(problem.candidates)
        self.prices: list[tuple[Prices, ...]] = [()] * len(problem.candidates)
        for index in space.node_set_of:
            candidate = problem.candidates[index]
            assert candidate.cost_us is not None
            rank = ranks.get(candidate.toolchain, worst)
            tie_break = rank * len(candidate.nodes) * per_rank + 1  # of the partition
            self.cost[index] = units(candidate.cost_us) * self.scale + launch + tie_break
        self._handover = {
            (a, b): units(us) * self.scale for a, b, us in problem.transitions.pairs if us > 0
        }
        self._conversion = {
            (node, have, want): units(us) * self.scale
            for node, have, want, us in problem.transitions.formats
        }
        has_formats = any(
            problem.candidates[c].takes or problem.candidates[c].gives for c in space.node_set_of
        )
        place = {node.id: index for index, node in enumerate(problem.nodes)}
        self._outputs = {space.position[place[node]] for node in problem.outputs}
        if self._handover or has_formats:
            self._find_values()
            self._set_transitions()

    def _node(self, position: int) -> int:
        return self.problem.nodes[self.space.order[position]].id

    def _find_values(self) -> None:
        """Find the values on which transitions can cost something, with their atoms."""
        space, candidates = self.space, self.problem.candidates
        sources: list[dict[tuple[str, str], None]] = [{} for _ in range(space.count)]
        demanded: list[dict[tuple[str, str], None]] = [{} for _ in range(space.count)]
        for nodes in space.node_sets:
            inside = set(nodes.members)
            leaving = [m for m in nodes.members if any(c not in inside for c in space.consumers[m])]
            for index in nodes.candidates:
                candidate = candidates[index]
                for position in leaving:
                    name = candidate.gives.get(self._node(position), PLAIN)
                    sources[position][candidate.toolchain, name] = None
                for position in nodes.inputs:
                    name = candidate.takes.get(self._node(position), PLAIN)
                    demanded[position]["to", candidate.toolchain] = None
                    demanded[position]["as", name] = None
        for position in range(space.count):
            atoms = [
                atom
                for atom in sorted(demanded[position], key=lambda atom: atom[0] == "as")
                if any(self._price(position, s, atom) for s in sources[position])
            ]
            if atoms:
                numbered = {atom: number for number, atom in enumerate(atoms)}
                space.values[position] = Value(tuple(space.consumers[position]), numbered)

    def _price(self, position: int, source: tuple[str, str], atom: tuple[str, str]) -> int:
        toolchain, name = source
        kind, target = atom
        if kind == "to":
            return self._handover.get((toolchain, target), 0)
        return self._convert(position, name, target)

    def _convert(self, position: int, have: str, want: str) -> int:
        if have == want:
            return 0
        return self._conversion.get((self._node(position), have, want), IMPOSSIBLE)

    def _set_transitions(self) -> None:
        """Set demands, prices and output conversions of every candidate."""
        space, source = self.space, cache(self._source)
        for nodes in space.node_sets:
            inside = set(nodes.members)
            nodes.consumed = tuple(i for i in nodes.inputs if i in space.values)
            nodes.produced = tuple(
                m
                for m in nodes.members
                if m in space.values and any(c not in inside for c in space.consumers[m])
            )
            self._set_node_set(nodes, source)

    def _set_node_set(self, nodes: NodeSet, source: Callable[[int, str, str], Prices]) -> None:
        """Set demands, prices and output conversions of a node set's candidates.

        Args:
            nodes: The node set.
            source: Returns the prices of a value by position, toolchain and format.
        """
        space = self.space
        inside = set(nodes.members)
        outputs = [m for m in nodes.members if m in self._outputs]
        consumers = {
            position: [c for c in space.consumers[position] if c in inside]
            for position in nodes.consumed
        }
        for index in nodes.candidates:
            candidate = self.problem.candidates[index]
            for position in outputs:
                name = candidate.gives.get(self._node(position), PLAIN)
                self.cost[index] += self._convert(position, name, PLAIN)
            self.demands[index] = tuple(
                self._demand(candidate, position, consumers[position])
                for position in nodes.consumed
            )
            self.prices[index] = tuple(
                source(m, candidate.toolchain, candidate.gives.get(self._node(m), PLAIN))
                for m in nodes.produced
            )

    def _demand(self, candidate: ProblemCandidate, position: int, consumers: Sequence[int]) -> int:
        """Return the atoms that a candidate demands of a value, and note them for its consumers."""
        value = self.space.values[position]
        name = candidate.takes.get(self._node(position), PLAIN)
        atoms = (("to", candidate.toolchain), ("as", name))
        mask = sum(1 << value.atoms[atom] for atom in atoms if atom in value.atoms)
        for consumer in consumers:
            value.node_atoms[consumer] |= mask
        return mask

    def _source(self, position: int, toolchain: str, name: str) -> Prices:
        """Return the prices of a value that this toolchain produces in this format.

        A graph output is converted to plain by its producer, so that costs nothing more.
        """
        value, is_output = self.space.values[position], position in self._outputs
        prices = tuple(
            0
            if is_output and atom == ("as", PLAIN)
            else self._price(position, (toolchain, name), atom)
            for atom in value.atoms
        )
        interned = self.book.intern(prices, value.handovers)
        if interned not in value.sources:
            value.sources.append(interned)
        return interned
