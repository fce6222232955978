"""An evolutionary search over whole covers, as a baseline that benchmarks and tests compare with.

It is the second level of Jeon et al., PACT 2022, and of its prototype: one gene per partition of
the start cover that a whole-graph toolchain could take over (0: stay, n: move to the n-th such
toolchain; the paper has one); population of 50, the first all 0, one per toolchain all moved;
tournaments of 5; two-point crossover with probability 0.5; mutation with probability 0.2, each gene
with 0.05. What is moved to a toolchain is cut into that toolchain's candidates at least estimated
cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage_engine.search.label_setting import LabelSetting
from collage_engine.search.search import Search

if TYPE_CHECKING:
    from collage_engine.search.measured_covers import Cover, MeasuredCover
    from collage_engine.search.problem import CandidateId, Problem

Genes = tuple[int, ...]
POPULATION, TOURNAMENT = 50, 5
CROSSOVER, MUTATION, FLIP = 0.5, 0.2, 0.05


class Evolution:
    """A :class:`~collage_engine.search.refine.CoverProposer`."""

    def __init__(
        self,
        problem: Problem,
        start: Sequence[CandidateId],
        *,
        whole: Sequence[str] | None = None,
        seed: int = 64,
    ) -> None:
        """``whole``: whole-graph toolchains; by default all that have candidates to offer."""
        self.problem = problem
        self.search = Search(problem)
        self.allowed = self.search.allowed(problem.pins)
        by_id = {str(c.id): i for i, c in enumerate(problem.candidates)}
        self.start = [by_id[str(name)] for name in start]
        offered: dict[str, set[int]] = {}
        for index in self.search.solver.usable:
            if self.allowed[index]:
                candidate = problem.candidates[index]
                offered.setdefault(candidate.toolchain, set()).update(candidate.nodes)
        names = sorted(offered) if whole is None else [n for n in whole if n in offered]
        self.whole = names
        self.options: list[tuple[int, ...]] = []
        self.groups: list[int] = []
        for index in self.start:
            candidate = problem.candidates[index]
            options = tuple(
                number
                for number, name in enumerate(names, start=1)
                if name != candidate.toolchain and set(candidate.nodes) <= offered[name]
            )
            if options:
                self.groups.append(index)
                self.options.append(options)
        self.random = random.Random(seed)
        self.fitness: dict[frozenset[str], float] = {}
        self.decoded: dict[Genes, Cover | None] = {}
        self.population: list[Genes] = []
        self.waiting: list[Genes] = self._first()
        self.generation = 0

    def _first(self) -> list[Genes]:
        genes = [tuple(0 for _ in self.groups)]
        genes += [
            tuple(n if n in options else 0 for options in self.options)
            for n in range(1, len(self.whole) + 1)
        ]
        while len(genes) < POPULATION:
            genes.append(tuple(self.random.choice((0, *options)) for options in self.options))
        return genes

    def learn(self, measured: MeasuredCover) -> None:
        us = float("inf") if measured.us is None else measured.us
        self.fitness[frozenset(map(str, measured.cover))] = us

    def expected(self, measured: MeasuredCover) -> float:
        """What it took: evolution knows nothing else."""
        return float("inf") if measured.us is None else measured.us

    def propose(self) -> Cover | None:
        """The next individual's cover that was not measured; breeds when a generation is done."""
        if not self.groups:
            return None
        for _ in range(200):
            while self.waiting:
                genes = self.waiting.pop(0)
                self.population.append(genes)
                cover = self.decode(genes)
                if cover is not None and frozenset(map(str, cover)) not in self.fitness:
                    return cover
            self._breed()
        return None

    def decode(self, genes: Genes) -> Cover | None:
        """The least-estimated cover that the genes allow; None when there is none."""
        if genes not in self.decoded:
            self.decoded[genes] = self._decode(genes)
        return self.decoded[genes]

    def _decode(self, genes: Genes) -> Cover | None:
        candidates = self.problem.candidates
        moved: dict[str, set[int]] = {}
        kept = set(self.start)
        for index, gene in zip(self.groups, genes, strict=True):
            if gene:
                kept.discard(index)
                moved.setdefault(self.whole[gene - 1], set()).update(candidates[index].nodes)
        allowed = [False] * len(candidates)
        for index in self.search.solver.usable:
            candidate = candidates[index]
            nodes = moved.get(candidate.toolchain)
            taken = nodes is not None and nodes.issuperset(candidate.nodes)
            allowed[index] = self.allowed[index] and (index in kept or taken)
        solver = self.search.solver
        labels = LabelSetting(solver.space, solver.weights, allowed)
        if labels.run_backward() is None:
            return None
        return tuple(candidates[c].id for c in labels.best_cover())

    def _breed(self) -> None:
        self.generation += 1
        parents = [self._tournament() for _ in range(POPULATION)]
        children: list[Genes] = []
        for one, two in zip(parents[::2], parents[1::2], strict=True):
            if self.random.random() < CROSSOVER and len(one) > 1:
                a, b = sorted(self.random.sample(range(len(one) + 1), 2))
                one, two = one[:a] + two[a:b] + one[b:], two[:a] + one[a:b] + two[b:]
            children += [one, two]
        self.population = []
        self.waiting = [
            self._mutated(genes) if self.random.random() < MUTATION else genes for genes in children
        ]

    def _tournament(self) -> Genes:
        contenders = [self.random.choice(self.population) for _ in range(TOURNAMENT)]
        return min(contenders, key=self._fitness)

    def _fitness(self, genes: Genes) -> float:
        cover = self.decode(genes)
        if cover is None:
            return float("inf")
        return self.fitness.get(frozenset(map(str, cover)), float("inf"))

    def _mutated(self, genes: Genes) -> Genes:
        return tuple(
            self.random.choice([g for g in (0, *options) if g != gene])
            if self.random.random() < FLIP
            else gene
            for gene, options in zip(genes, self.options, strict=True)
        )
