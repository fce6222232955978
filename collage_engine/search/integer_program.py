"""The search as an integer program, solved by HiGHS, where the state space is too large.

The program has a binary variable x for each candidate; every node lies in exactly one chosen
candidate (set partitioning). For each value v, each atom a of it (being handed to a toolchain or
converted to a format, see :mod:`~collage_engine.search.pricing`) and each price p of that atom, a
variable y in [0, 1] says that the price is paid. For every consuming node n, with the candidates
that hold v but not n in the order of the price that their values have for a::

    x(candidates that hold n, not v, and demand a)
        <= x(candidates that hold v, not n, whose price of a is at most q) + sum of y of prices > q

for every price q. These are the facets of the projection of each edge's local polytope (Wainwright
and Jordan 2008, section 4.1), which is why the linear relaxation is nearly tight: transitions are
paid in it as they are in covers. A price that is ``IMPOSSIBLE`` has no y.

Partitions that wait for each other are cut off when a solution has them (Dantzig, Fulkerson and
Johnson 1954 for subtours): if partition i is entered at node a_i and left at node b_i, each feeding
the next, then of the k groups of candidates that hold a_i and b_i and no other of these nodes at
most k - 1 can be chosen from.

Bounds are HiGHS's own, less ``TRUSTED_DIGITS`` of them. Costs of covers are summed exactly.
"""

from __future__ import annotations

import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from collage_engine.search.label_setting import Solution
from collage_engine.search.pricing import IMPOSSIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import networkx as nx
    from numpy.typing import NDArray

    from collage_engine.search.pricing import Prices, Value
    from collage_engine.search.state_space import StateSpace
    from collage_engine.search.weights import Weights

    Floats = NDArray[np.float64]
    _Row = tuple[float, list[int], list[float]]
    """The least sum of a row, which is 1 or none, its columns and their factors."""

TRUSTED_DIGITS = 1e-6
"""Share of a bound of HiGHS within which it is not trusted: its tolerances on feasibility and
integrality (option ``mip_feasibility_tolerance``). A cover that costs no more than this above the
bound is taken as the best."""
LARGEST_COST = 1e4
"""The largest objective coefficient after scaling (chosen: HiGHS advises to stay below 1e6; its
absolute tolerances of 1e-7 then resolve 1e-11 of the most expensive candidate)."""
CHOSEN_FROM = 0.5
"""A binary variable from which on it is 1 in a solution."""


class IntegerProgram:
    """A state space under one choice of allowed candidates, as an integer program."""

    def __init__(
        self, space: StateSpace, weights: Weights, eligible: Sequence[Sequence[int]]
    ) -> None:
        """Build the program.

        Args:
            space: The state space; its states are not used.
            weights: Costs of the candidates.
            eligible: Per node set the candidates that may be chosen.
        """
        self.space = space
        self.weights = weights
        self.eligible = eligible
        self.candidates = [c for nodes in space.node_sets for c in eligible[nodes.index]]
        """Column to candidate; the columns of y come after these."""
        self.column = {c: column for column, c in enumerate(self.candidates)}
        self.columns_of_set: list[list[int]] = [
            [self.column[c] for c in eligible[nodes.index]] for nodes in space.node_sets
        ]
        self.holding = [
            [nodes.index for nodes in sets if eligible[nodes.index]] for sets in space.holding
        ]
        """Position to the node sets that hold it and have a candidate."""
        self.members = [frozenset(nodes.members) for nodes in space.node_sets]
        costs = [weights.cost[c] for c in self.candidates]
        self._costs = costs
        self._rows: list[_Row] = []
        for sets in self.holding:
            row = [column for s in sets for column in self.columns_of_set[s]]
            self._rows.append((1.0, row, [1.0] * len(row)))
        for position, value in space.values.items():
            self._add_value(position, value)
        top = max((cost for cost in costs if cost < IMPOSSIBLE), default=1)
        self.unit = max(1.0, float(top) / LARGEST_COST)
        """Internal cost of one unit of the objective."""
        self.objective: Floats = np.array([float(cost) / self.unit for cost in costs])
        self._ranked: list[tuple[int, list[int]]] = []
        """The best covers with their costs, where several were asked for: each is cut off."""
        self._stop = False
        """Whether HiGHS is to stop what it does."""
        self._highs = self._model()

    # -- the model ---------------------------------------------------------------------------

    def _add_value(self, position: int, value: Value) -> None:
        """Add the columns and rows that make transitions of a value cost what they do."""
        prices_of, demands_of = self.weights.prices, self.weights.demands
        sources: list[tuple[int, Prices, int]] = []
        for s in self.holding[position]:
            nodes = self.space.node_sets[s]
            if position not in nodes.produced:
                continue
            slot = nodes.produced.index(position)
            sources += [
                (s, prices_of[self.candidates[column]][slot], column)
                for column in self.columns_of_set[s]
            ]
        paid: dict[tuple[int, int], int] = {}
        for consumer in value.consumers:
            outside = [(p, column) for s, p, column in sources if consumer not in self.members[s]]
            demanding: dict[int, list[int]] = {}
            for s in self.holding[consumer]:
                if position in self.members[s]:
                    continue
                nodes = self.space.node_sets[s]
                slot = nodes.consumed.index(position)
                for column in self.columns_of_set[s]:
                    mask = demands_of[self.candidates[column]][slot]
                    for atom in range(len(value.atoms)):
                        if mask >> atom & 1:
                            demanding.setdefault(atom, []).append(column)
            for atom, takers in demanding.items():
                self._add_demand(atom, takers, outside, paid)

    def _add_demand(
        self,
        atom: int,
        takers: list[int],
        outside: list[tuple[Prices, int]],
        paid: dict[tuple[int, int], int],
    ) -> None:
        """Add the rows of one demand at one consuming node.

        Args:
            atom: The atom that is demanded.
            takers: Columns of the candidates that demand it there.
            outside: Prices and column of each candidate that hands the value to that node.
            paid: (atom, price) to the column of y; columns are added to it.
        """
        groups: dict[int, list[int]] = {}
        for prices, column in outside:
            groups.setdefault(prices.prices[atom], []).append(column)
        ascending = sorted(groups)
        if not any(ascending):
            return  # it is free, whatever produces the value
        cheap: list[int] = []
        for rank, price in enumerate(ascending):
            dearer = [p for p in ascending[rank:] if 0 < p < IMPOSSIBLE]
            if price:
                for p in dearer:
                    if (atom, p) not in paid:
                        paid[atom, p] = len(self._costs)
                        self._costs.append(p)
                extra = [paid[atom, p] for p in dearer]
                row = [*takers, *cheap, *extra]
                values = [1.0] * len(takers) + [-1.0] * (len(cheap) + len(extra))
                self._rows.append((-np.inf, row, values))
            cheap = cheap + groups[price]

    # -- solving -----------------------------------------------------------------------------

    def _model(self) -> Any:
        """Hand the program to HiGHS."""
        import highspy  # it takes as long to load as all of the search: only where it is needed

        highs = _silent_highs()
        for option, value in (
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 1e-7),
        ):
            highs.setOptionValue(option, value)
        for interrupts in (highs.cbSimplexInterrupt, highs.cbMipInterrupt):
            interrupts.subscribe(self._interrupt)
        model = highspy.HighsLp()
        low, columns, values = zip(*self._rows, strict=True)
        model.num_col_, model.num_row_ = len(self._costs), len(low)
        model.col_cost_ = self.objective
        model.col_lower_, model.col_upper_ = np.zeros(len(self._costs)), np.ones(len(self._costs))
        model.row_lower_, model.row_upper_ = np.array(low), np.maximum(low, 0.0)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.cumsum([0, *map(len, columns)], dtype=np.int32)
        model.a_matrix_.index_ = np.array([*chain(*columns)], dtype=np.int32)
        model.a_matrix_.value_ = np.array([*chain(*values)], dtype=float)
        highs.passModel(model)
        return highs

    def solve(self, deadline: float, *, regrets: bool) -> Solution:
        """Find the least-cost cover, or as good a one and as good a bound as time allows.

        Args:
            deadline: When to end, in :func:`time.monotonic` seconds.
            regrets: Whether to bound the least covers through all candidates too.
        """
        solution = Solution()
        if not all(self.holding):
            return solution
        self._take_singles(solution)
        if regrets:
            self._bound_candidates(solution, deadline)
        solution.decided = self._branch(solution, deadline) or solution.cost is not None
        if solution.cost is not None:
            solution.cover = runnable_order(self.space, solution.cover)
            solution.lower_bound = min(solution.lower_bound, solution.cost)
            if solution.optimal:
                self._ranked = [(solution.cost, solution.cover)]
                solution.ranked_covers = self.ranked_covers
        return solution

    def ranked_covers(self, k: int, deadline: float) -> list[tuple[int, list[int]]]:
        """Return the k least-cost covers, the best first; fewer where there are, or time is, fewer.

        Call it after :meth:`solve` has proved the best one. Each one found is cut off and the
        program is solved again.

        Args:
            k: How many covers are wanted.
            deadline: When to end, in :func:`time.monotonic` seconds.
        """
        while len(self._ranked) < k:
            columns = [self.column[c] for c in self._ranked[-1][1]]
            self._cut_off(columns, len(columns) - 1)
            following = Solution()
            self._branch(following, deadline)
            if following.cost is None or following.lower_bound < following.cost:
                break  # there is none, or another one may come before it
            self._ranked.append((following.cost, runnable_order(self.space, following.cover)))
        return self._ranked[:k]

    def _bound_candidates(self, solution: Solution, deadline: float) -> None:
        """Bound what covers through each candidate cost, by reduced costs in the relaxation."""
        import highspy  # see _model

        if self._run(deadline) != highspy.HighsModelStatus.kOptimal:
            return
        least = float(self._highs.getInfo().objective_function_value)
        reduced = np.array(self._highs.getSolution().col_dual)
        solution.lower_bound = self._internal(least)
        solution.lower_bound_through = {
            c: self._internal(least + max(0.0, float(reduced[column])))
            for column, c in enumerate(self.candidates)
        }
        solution.others_in_no_cover = True  # the relaxation bounds every candidate

    def _branch(self, solution: Solution, deadline: float) -> bool:
        """Run branch and bound until its solution has no cycle, or time is over.

        Returns:
            Whether it is proved that there is no cover.
        """
        import highspy  # see _model

        highs, count = self._highs, len(self.candidates)
        columns = np.arange(count, dtype=np.int32)
        highs.changeColsIntegrality(
            count, columns, np.array([highspy.HighsVarType.kInteger] * count)
        )
        while time.monotonic() < deadline:
            if solution.cover:
                values = np.zeros(count)
                values[[self.column[c] for c in solution.cover]] = 1.0
                highs.setSolution(count, columns, values)
            status = self._run(deadline)
            info = highs.getInfo()
            solution.states += max(0, int(info.mip_node_count))
            if status == highspy.HighsModelStatus.kInfeasible:
                return True
            proved = float(info.mip_dual_bound)
            if np.isfinite(proved):
                solution.lower_bound = max(solution.lower_bound, self._internal(proved))
            if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
                return False
            chosen = np.flatnonzero(np.array(highs.getSolution().col_value)[:count] > CHOSEN_FROM)
            cover = [self.candidates[column] for column in chosen]
            cycles = cycles_of(self.space, cover)
            if not cycles:
                self._take(solution, cover)
                if status == highspy.HighsModelStatus.kOptimal and solution.cost is not None:
                    # HiGHS's bound meets the cover up to its tolerances.
                    solution.lower_bound = max(solution.lower_bound, solution.cost)
                return False
            for cycle in cycles:
                self._cut_off_cycle(cycle)
        return False

    def _run(self, deadline: float) -> Any:
        """Let HiGHS work until the deadline; returns the model's status.

        It works in a thread of its own: signals reach Python meanwhile, and HiGHS swallows what is
        raised in its callbacks.
        """
        done = threading.Event()

        def work() -> None:
            try:
                self._highs.run()
            finally:
                done.set()

        self._stop = False
        self._highs.setOptionValue("time_limit", max(0.0, deadline - time.monotonic()))
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            done.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self._stop = True  # some of its steps look at no clock
            done.wait()  # a process that ended before HiGHS would be aborted
            worker.join()  # not before: an interrupted join takes a thread for ended
        return self._highs.getModelStatus()

    def _interrupt(self, event: Any) -> None:
        """End HiGHS's work when it asks and it is to stop."""
        if self._stop:
            event.interrupt()

    def _internal(self, amount: float) -> int:
        """Convert a bound of the objective to an internal amount, as far as it is trusted."""
        return int((amount - TRUSTED_DIGITS * max(1.0, abs(amount))) * self.unit)

    def _take(self, solution: Solution, cover: list[int]) -> None:
        """Keep a cover if it costs less than the one known."""
        cost = cover_cost(self.space, self.weights, cover)
        if cost is not None and (solution.cost is None or cost < solution.cost):
            solution.cost, solution.cover = cost, cover

    def _take_singles(self, solution: Solution) -> None:
        """Begin with the cheapest candidates of single nodes, where every node has one."""
        cover = []
        for sets in self.holding:
            columns = (c for s in sets if len(self.members[s]) == 1 for c in self.columns_of_set[s])
            singles = [self.candidates[column] for column in columns]
            if not singles:
                return
            cover.append(min(singles, key=self.weights.cost.__getitem__))
        self._take(solution, cover)

    # -- cycles ------------------------------------------------------------------------------

    def _cut_off(self, columns: list[int], most: int) -> None:
        """Allow at most so many of these columns."""
        index, ones = np.array(sorted(columns), dtype=np.int32), np.ones(len(columns))
        self._highs.addRow(-np.inf, float(most), len(columns), index, ones)

    def _cut_off_cycle(self, cycle: Sequence[tuple[int, int]]) -> None:
        """Add the cut that forbids a cycle.

        Args:
            cycle: For each partition the node where it is entered and the one where it is left.
        """
        nodes = {node for ends in cycle for node in ends}
        columns: list[int] = []
        for entered, left in cycle:
            others = nodes - {entered, left}
            for s in self.holding[entered]:
                if left in self.members[s] and others.isdisjoint(self.members[s]):
                    columns += self.columns_of_set[s]
        self._cut_off(columns, len(cycle) - 1)


def _silent_highs() -> Any:
    """Return a solver that prints nothing on standard output, which belongs to the caller."""
    import highspy  # see IntegerProgram._model

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> None:
            # HiGHS 1.16 prints who it is as soon as callbacks are set, in the constructor.
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    return Silent()  # type: ignore[no-untyped-call]


def cover_cost(space: StateSpace, weights: Weights, cover: Iterable[int]) -> int | None:
    """Return the cost of disjoint candidates that hold every node; None where it is impossible.

    Args:
        space: The state space.
        weights: Costs of the candidates.
        cover: The candidates, in any order.
    """
    total = 0
    source: dict[int, Prices] = {}
    demanded: dict[int, int] = {}
    for c in cover:
        nodes = space.node_set_of[c]
        total += weights.cost[c]
        source.update(zip(nodes.produced, weights.prices[c], strict=True))
        for position, mask in zip(nodes.consumed, weights.demands[c], strict=True):
            demanded[position] = demanded.get(position, 0) | mask
    total += sum(source[position][mask] for position, mask in demanded.items() if mask)
    return total if total < IMPOSSIBLE else None


def _waits(space: StateSpace, cover: Iterable[int]) -> nx.DiGraph[int]:
    """Return the graph of a cover's candidates, from each to those that wait for it.

    An edge has the positions of a producer and a consumer that make it.
    """
    import networkx as nx  # see IntegerProgram._model

    owner = {member: c for c in cover for member in space.node_set_of[c].members}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(owner.values())
    for position, producers in enumerate(space.inputs):
        for producer in producers:
            giver, taker = owner[producer], owner[position]
            if giver != taker:
                graph.add_edge(giver, taker, given=producer, taken=position)
    return graph


def runnable_order(space: StateSpace, cover: Iterable[int]) -> list[int]:
    """Return the candidates of a cover in an order in which they can run, near to the sweep's."""
    import networkx as nx  # see IntegerProgram._model

    waits = _waits(space, cover)
    return [*nx.lexicographical_topological_sort(waits, lambda c: space.node_set_of[c].first)]


def cycles_of(space: StateSpace, cover: Iterable[int]) -> list[list[tuple[int, int]]]:
    """Return disjoint cycles of partitions that wait for each other.

    Args:
        space: The state space.
        cover: Disjoint candidates that hold every node.

    Returns:
        Per cycle, for each partition in turn, the position where it is entered and where it is
        left to the next one; empty when the partitions can run in some order.
    """
    import networkx as nx  # see IntegerProgram._model

    waits = _waits(space, cover)
    cycles = []
    while not nx.is_directed_acyclic_graph(waits):
        edges = nx.find_cycle(waits)
        ends = zip([edges[-1], *edges[:-1]], edges, strict=True)
        cycles.append([(waits.edges[i]["taken"], waits.edges[o]["given"]) for i, o in ends])
        waits.remove_nodes_from([c for c, _ in edges])
    return cycles
