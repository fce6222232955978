"""Mixes of toolchains that follow from what operator groups take inside whole models.

The model is cut into the groups of TVM's FuseOps. Every toolchain runs the model once with the
groups that it can take, TVM with the others; a profile tells what each group takes there, among its
neighbours and with the caches as they are. Last, TVM runs all of them. Covers follow from these
times that could beat the fastest toolchain alone: the fastest toolchain for each group, as it is
and with neighbours merged, and a toolchain alone but for the groups where others save most. They
are only suggestions: each enters the race.

That is a far cheaper question than what every candidate costs (one build for each toolchain), so it
is asked first. It finds no cover whose partitions are larger than a group, but for merged ones.
What partitions took in these covers is what measuring begins with, and what calibration rests on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from collage_engine.candidates.catalog import CandidateCatalog, with_keys
from collage_engine.machine.run_control import RunControl
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.fuse_ops import fused_groups
from collage_engine.partition.regions import merge_regions
from collage_engine.planning.search_inputs import Cover, SearchInputs
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import OperatorNumber, members
from collage_engine.records.placement import TIE_SHARE
from collage_engine.support.text import counted
from collage_engine.support.time_limits import STEP_SHARE
from collage_engine.toolchains.registry import title_of
from collage_engine.trials.contender import Contender, ContenderResult, with_eligibility
from collage_engine.trials.in_model_costs import FLOOR_US
from collage_engine.trials.race import Race
from collage_engine.wording.amounts import time_text

OperatorGroup: TypeAlias = tuple[OperatorNumber, ...]
"""Operators that TVM would fuse into one kernel, ascending."""
GroupTimes: TypeAlias = dict[OperatorGroup, dict[str, float]]
"""What groups take inside the model, in microseconds, by group and toolchain instance."""

FAST_ALONE = 1.3
"""Toolchains take part where they are expected to take no more than so many times the fastest, on
the whole model or on an operator; chosen: what is slower on the whole model is rarely the fastest
for a part that matters."""


def try_mixes(
    model: ImportedModel,
    catalog: CandidateCatalog,
    inputs: SearchInputs,
    race: Race,
    control: RunControl,
) -> SearchInputs:
    """Profile operator groups inside the model, and have mixes that follow enter the race.

    A run on a device tries none, since the clock of a profile sees calls being issued there, nor
    does one where there is nothing to mix or no time for it.

    Args:
        model: The imported model.
        catalog: The toolchain instances.
        inputs: The candidates.
        race: The race, with the whole models in it.
        control: Takes progress.

    Returns:
        The inputs with the partitions of the fastest mix among the candidates.
    """
    graph = model.graph
    groups = groups_of(graph)
    taken = _taken(groups, catalog, inputs, _alone_us(race))
    able = catalog.target.kind == "cpu" and not race.bench.exclusive
    if not able or len(taken) < 2 or race.leader is None:
        return inputs
    seconds = race.clock.for_step_s
    if not seconds:
        control.cut("mixes")
        return inputs
    began = time.monotonic()

    def candidate(name: str, operators: OperatorGroup) -> Candidate:
        earlier = taken[name].get(operators)
        return earlier or make_candidate(
            model.graph, catalog.instances[name], operators, rule="mix"
        )

    with control.stage("mixes") as report:

        def run(name: str, cover: Cover) -> ContenderResult:
            now = f"what each group of operators takes on {title_of(name)}, inside the model"
            report.progress(list(taken).index(name), len(taken), now)
            contender = with_eligibility(inputs, Contender(cover=cover))
            return race.try_cover(contender, ends_at=began + seconds)

        us = profile_groups(
            groups, taken, run, lambda: time.monotonic() >= began + STEP_SHARE * seconds
        )
        call_us = race.standings.call_us or 0.0
        inside_us = {name: alone - call_us for name, alone in _alone_us(race).items()}
        suggested = (
            with_eligibility(inputs, Contender(cover=cover))
            for cover in suggested_mixes(us, inside_us, graph, candidate)
        )
        mixes = [contender for contender in suggested if contender.eligible]
        race.enter(mixes, ends_at=began + seconds, on_progress=report.progress)
        modules = {mix.key for mix in mixes}
        ran = [r for r in race.standings.results() if r.contender.key in modules and r.measured_us]
        report.detail = f"{counted(len(groups), 'group')} of operators"
        if not ran:
            report.detail += "; no mix of toolchains was timed"
            return inputs
        fastest = min(ran, key=lambda one: one.measured_us or math.inf)
        report.detail += (
            f"; the fastest mix has {counted(len(fastest.contender.cover), 'partition')} and takes "
            f"{time_text(fastest.measured_us or 0.0)}, the fastest toolchain alone "
            f"{time_text(min(_alone_us(race).values()))}"  # of the same rounds
        )
    new = (c for c in fastest.contender.cover if c.id not in inputs.by_id)
    return inputs.with_candidates(
        [*inputs.candidates, *with_keys(model, catalog.keys, new)], inputs.costs
    )


def _taken(
    groups: Sequence[OperatorGroup],
    catalog: CandidateCatalog,
    inputs: SearchInputs,
    alone_us: Mapping[str, float],
) -> dict[str, dict[OperatorGroup, Candidate]]:
    """Return the candidates for groups by instance id.

    Instances that TVM compiles, which take every operator, come first, then those that are fastest
    alone.
    """
    wanted = set(groups)
    hosts = {source.instance.id for source in catalog.sources if source.host}
    taken: dict[str, dict[OperatorGroup, Candidate]] = {}
    for candidate in inputs.candidates:
        is_plain = not (candidate.takes or candidate.gives or candidate.instance.config)
        if is_plain and candidate.nodes in wanted and candidate.instance.id not in hosts:
            taken.setdefault(candidate.instance.id, {})[candidate.nodes] = candidate
    compiled = {source.instance.id for source in catalog.sources if source.lowers_to_tir}
    order = sorted(taken, key=lambda name: (name not in compiled, alone_us.get(name, math.inf)))
    return {name: taken[name] for name in order}


def _alone_us(race: Race) -> dict[str, float]:
    """Return what each toolchain takes alone on the whole model, in µs by instance id."""
    return {
        result.contender.cover[0].instance.id: result.measured_us
        for result in race.standings.results()
        if len(result.contender.cover) == 1 and result.contender.eligible and result.measured_us
    }


def groups_of(graph: DataflowGraph) -> list[OperatorGroup]:
    """Return the groups of operators that TVM's FuseOps would fuse, in the graph's order."""
    return [tuple(members(group)) for group in fused_groups(graph)]


def profile_groups(
    groups: Sequence[OperatorGroup],
    taken: Mapping[str, Mapping[OperatorGroup, Candidate]],
    run: Callable[[str, Cover], ContenderResult],
    is_over: Callable[[], bool] = lambda: False,
) -> GroupTimes:
    """Try, for each toolchain, the cover in which it has all groups that it can take.

    Args:
        groups: All groups of the model.
        taken: By instance id, its candidates for groups. The first instance that can take a group
            has it wherever the favoured one does not. It has its turn last: all groups are compiled
            for it, while the covers of the others hold few new kernels.
        run: Tries the cover that favours the instance of this id.
        is_over: Tells whether no further one is to be begun: what a cover has shown is worth more
            than another one that is half built.

    Returns:
        What the groups took, as far as covers ran; no times at all where a group cannot be taken.
    """
    us: GroupTimes = {}
    usual: dict[OperatorGroup, Candidate] = {}
    for own in reversed(list(taken.values())):
        usual.update(own)
    if not taken or not all(group in usual for group in groups):
        return us
    first, *others = taken
    for favoured in [*others, first]:
        if is_over():
            break
        own = taken[favoured]
        cover = tuple(own.get(group, usual[group]) for group in groups)
        trial = run(favoured, cover)
        if not trial.reached:
            break  # there is no time for another one
        for group, candidate in zip(groups, cover, strict=True):
            if candidate.id in trial.partitions_us:
                by_instance, name = us.setdefault(group, {}), candidate.instance.id
                seen_us = trial.partitions_us[candidate.id]
                by_instance[name] = min(seen_us, by_instance.get(name, math.inf))
    return us


def suggested_mixes(
    us: GroupTimes,
    alone_us: Mapping[str, float],
    graph: DataflowGraph,
    candidate: Callable[[str, OperatorGroup], Candidate],
) -> list[Cover]:
    """Return the mixes that could beat the fastest toolchain alone, the most promising first.

    By their groups' times, launches and transitions left out, they are faster by more than a tie.

    Args:
        us: What groups took inside the model.
        alone_us: By instance id, what toolchains took alone on the whole model, in µs, the copies
            of a user's call left out.
        graph: The dataflow graph.
        candidate: Makes the candidate of some operators on an instance.
    """
    if not us or not alone_us:
        return []
    limit_us = (1 - TIE_SHARE) * min(alone_us.values())
    fastest = {group: min(taken, key=lambda name: taken[name]) for group, taken in us.items()}
    least_us = {group: us[group][name] for group, name in fastest.items()}

    def merged(chosen: Mapping[OperatorGroup, str]) -> Cover:
        """Return the cover in which neighbouring groups on the same instance are one partition."""
        owner = {operator: name for group, name in chosen.items() for operator in group}
        regions = merge_regions(graph, [owner[k] for k in graph.operators])
        return tuple(candidate(str(name), tuple(members(bits))) for name, bits in regions)

    sum_us = sum(least_us.values())
    mixes = [  # the merged one first: it has fewer transitions
        (sum_us, merged(fastest)),
        (sum_us, tuple(candidate(name, group) for group, name in fastest.items())),
    ]
    for base, base_us in alone_us.items():
        if base_us > FAST_ALONE * min(alone_us.values()) or not all(
            base in of for of in us.values()
        ):
            continue
        # A base that takes the whole model in less than the sum of its groups wins something across
        # them; each of its groups then counts with its share of the whole.
        share = min(1.0, base_us / sum(of[base] for of in us.values()))
        saved = {group: share * of[base] - least_us[group] for group, of in us.items()}
        worth = {g for g in us if saved[g] > max(FLOOR_US, TIE_SHARE * base_us)}
        chosen = {group: fastest[group] if group in worth else base for group in us}
        mixes.append((base_us - sum(saved[group] for group in worth), merged(chosen)))
    promising: dict[frozenset[str], Cover] = {}
    for expected_us, cover in sorted(mixes, key=lambda one: one[0]):
        if expected_us <= limit_us and len(cover) > 1:
            promising.setdefault(frozenset(part.id for part in cover), cover)
    return list(promising.values())
