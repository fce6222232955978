"""What each candidate costs and demands, as the passes want it: integers, masks and prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.pricing import IMPOSSIBLE, PriceBook, Prices, Value, units
from collage_engine.search.problem import PLAIN, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collage_engine.search.space import Space


class Weights:
    """Integer costs and transition data of the usable candidates.

    ``cost[c]`` is the candidate with its launch and with the conversion of its graph outputs;
    ``demands[c]`` the atoms it charges on each of its set's ``eats``, ``prices[c]`` the prices of
    each of its set's ``makes``.
    """

    def __init__(self, problem: Problem, space: Space, costs_us: Sequence[float | None]) -> None:
        self.problem = problem
        self.space = space
        self.book = PriceBook()
        ranks = {name: rank for rank, name in enumerate(problem.priority)}
        worst = len(ranks)
        count = len(problem.nodes)
        self.partition_step = 1
        self.rank_step = count + 1 if ranks else 0
        self.scale = (count * worst + 1) * (count + 1)
        """One unit of cost; the part below settles exact ties."""
        launch = units(problem.transitions.launch_us) * self.scale
        self.cost: list[int] = [IMPOSSIBLE] * len(problem.candidates)
        self.fixed: list[int] = [0] * len(problem.candidates)
        """The part of ``cost`` that is not the candidate's own."""
        self.demands: list[tuple[int, ...]] = [()] * len(problem.candidates)
        self.prices: list[tuple[Prices, ...]] = [()] * len(problem.candidates)
        for index in space.set_of:
            candidate = problem.candidates[index]
            us = costs_us[index]
            assert us is not None
            rank = ranks.get(candidate.toolchain, worst)
            settle = rank * len(candidate.nodes) * self.rank_step + self.partition_step
            self.fixed[index] = launch + settle
            self.cost[index] = units(us) * self.scale + self.fixed[index]
        self._handover = {
            (a, b): units(us) * self.scale for a, b, us in problem.transitions.pairs if us > 0
        }
        self._conversion = {
            (node, have, want): units(us) * self.scale
            for node, have, want, us in problem.transitions.formats
        }
        self._formatted = any(
            problem.candidates[c].takes or problem.candidates[c].gives for c in space.set_of
        )
        self._outputs = {space.position[at] for at in self._output_places()}
        if self._handover or self._formatted:
            self._find_values()
            self._set_prices()

    def reprice(self, index: int, us: float) -> None:
        """Give a candidate another cost; its transitions stay."""
        self.cost[index] = units(us) * self.scale + self.fixed[index]

    def _output_places(self) -> Iterable[int]:
        place = {node.id: at for at, node in enumerate(self.problem.nodes)}
        return (place[node] for node in self.problem.outputs)

    def _node(self, position: int) -> int:
        return self.problem.nodes[self.space.order[position]].id

    def _find_values(self) -> None:
        """The values on which transitions can cost something, with their atoms."""
        space, candidates = self.space, self.problem.candidates
        sources: list[dict[tuple[str, str], None]] = [{} for _ in range(space.count)]
        wanted: list[dict[tuple[str, str], None]] = [{} for _ in range(space.count)]
        for nodes in space.sets:
            inside = set(nodes.members)
            made = [m for m in nodes.members if any(c not in inside for c in space.consumers[m])]
            for index in nodes.candidates:
                candidate = candidates[index]
                for position in made:
                    form = candidate.gives.get(self._node(position), PLAIN)
                    sources[position][candidate.toolchain, form] = None
                for position in nodes.inputs:
                    form = candidate.takes.get(self._node(position), PLAIN)
                    wanted[position]["to", candidate.toolchain] = None
                    wanted[position]["as", form] = None
        for position in range(space.count):
            atoms = [
                atom
                for atom in sorted(wanted[position], key=lambda atom: atom[0] == "as")
                if any(self._price(position, s, atom) for s in sources[position])
            ]
            if atoms:
                numbered = {atom: number for number, atom in enumerate(atoms)}
                space.values[position] = Value(tuple(space.consumers[position]), numbered)

    def _price(self, position: int, source: tuple[str, str], atom: tuple[str, str]) -> int:
        toolchain, form = source
        sort, target = atom
        if sort == "to":
            return self._handover.get((toolchain, target), 0)
        return self._convert(position, form, target)

    def _convert(self, position: int, have: str, want: str) -> int:
        if have == want:
            return 0
        return self._conversion.get((self._node(position), have, want), IMPOSSIBLE)

    def _set_prices(self) -> None:
        """Demands, prices and output conversions of every candidate."""
        space, candidates = self.space, self.problem.candidates
        values = space.values
        known: dict[tuple[int, str, str], Prices] = {}
        for nodes in space.sets:
            inside = set(nodes.members)
            nodes.eats = tuple(i for i in nodes.inputs if values[i] is not None)
            nodes.makes = tuple(
                m
                for m in nodes.members
                if values[m] is not None and any(c not in inside for c in space.consumers[m])
            )
            outputs = [m for m in nodes.members if m in self._outputs]
            fed = {}
            for position in nodes.eats:
                fed[position] = [c for c in space.consumers[position] if c in inside]
            for index in nodes.candidates:
                candidate = candidates[index]
                for position in outputs:
                    form = candidate.gives.get(self._node(position), PLAIN)
                    converting = self._convert(position, form, PLAIN)
                    self.fixed[index] += converting
                    self.cost[index] += converting
                demands = []
                for position in nodes.eats:
                    value = values[position]
                    assert value is not None
                    form = candidate.takes.get(self._node(position), PLAIN)
                    mask = 0
                    for atom in (("to", candidate.toolchain), ("as", form)):
                        number = value.atoms.get(atom)
                        if number is not None:
                            mask |= 1 << number
                    demands.append(mask)
                    for consumer in fed[position]:
                        value.node_atoms[consumer] = value.node_atoms.get(consumer, 0) | mask
                self.demands[index] = tuple(demands)
                made = []
                for position in nodes.makes:
                    form = candidate.gives.get(self._node(position), PLAIN)
                    key = (position, candidate.toolchain, form)
                    prices = known.get(key)
                    if prices is None:
                        prices = known[key] = self._source(position, candidate.toolchain, form)
                    made.append(prices)
                self.prices[index] = tuple(made)
        for value in values:
            if value is not None:
                for consumer in value.consumers:
                    value.node_atoms.setdefault(consumer, 0)

    def _source(self, position: int, toolchain: str, form: str) -> Prices:
        """Prices of a value made by this toolchain in this format; graph outputs are plain too."""
        value = self.space.values[position]
        assert value is not None
        prices = []
        for atom in value.atoms:
            price = self._price(position, (toolchain, form), atom)
            if atom == ("as", PLAIN) and position in self._outputs:
                price = 0
            prices.append(price)
        found = self.book.intern(tuple(prices), value.handovers)
        if found not in value.sources:
            value.sources.append(found)
        return found
