"""Mixes of toolchains that follow from what operator groups take inside whole models.

The model is cut into the groups of TVM's FuseOps. One toolchain runs all of them that it can take,
and a profile tells what each takes there, among its neighbours and with the caches as they are.
Then every other toolchain runs the model once with those groups that matter, and is profiled in
turn. Covers follow
from these times that could beat the fastest toolchain alone: the fastest toolchain for each group,
as it is and with neighbours merged, and a toolchain alone but for the few groups where others save
most. They are only suggestions: each is built and timed before it is believed.

That is a far cheaper question than what every candidate costs (one build for each toolchain), so it
is asked first. It finds no cover whose partitions are larger than a group, but for merged ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from collage_engine.model.index_set import members
from collage_engine.partition.call_graph import CallGraph
from collage_engine.partition.fuse_ops import fused_groups
from collage_engine.partition.regions import merge_regions
from collage_engine.records.candidate import Candidate
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.placement import TIE_SHARE
from collage_engine.trials.contender import Trial
from collage_engine.trials.in_model_costs import FLOOR_US

OperatorGroup: TypeAlias = tuple[OperatorNumber, ...]
"""Operators that TVM would fuse into one kernel, ascending."""
Cover: TypeAlias = tuple[Candidate, ...]

FAST_ALONE = 1.3
"""Toolchains take part where they are expected to take no more than so many times the fastest, on
the whole model or on an operator; chosen: what is slower on the whole model is rarely the fastest
for a part that matters."""


@dataclass(frozen=True, kw_only=True)
class MixSettings:
    """What is tried, and from which savings on."""

    least_group_share: float = 0.004
    """Groups that take less of the model's time than this share stay where they were first; chosen:
    half of a model's groups, which together take a few percent of its time."""
    base_factor: float = FAST_ALONE
    """Toolchains that take so many times the fastest one alone are no base of a mix."""
    moved_groups: tuple[int, ...] = (1, 3, 8)
    """How many groups leave a base, those with the largest saving first; chosen."""
    least_saving_us: float = FLOOR_US
    """A group leaves a base only where that saves so many microseconds, about what a hand-over
    costs."""
    least_saving_share: float = 0.003
    """The same, as a share of what the base takes alone; chosen."""
    least_gain: float = TIE_SHARE
    """A mix is tried where its groups' times promise at least this gain over the fastest toolchain
    alone, as a share: with less it could only tie."""
    most: int = 4
    """Mixes that are tried at most, those that promise most; chosen."""


@dataclass(frozen=True)
class GroupTimes:
    """What groups take inside the model, in microseconds, by group and toolchain instance."""

    us: Mapping[OperatorGroup, Mapping[str, float]] = field(default_factory=dict)

    @property
    def fastest(self) -> dict[OperatorGroup, str]:
        """Return the instance on which each group takes least."""
        return {group: min(taken, key=lambda name: taken[name]) for group, taken in self.us.items()}

    @property
    def bound_us(self) -> float:
        """Return what a cover of these groups takes at least: the sum of their least times."""
        return sum(min(taken.values()) for taken in self.us.values())


@dataclass(frozen=True, kw_only=True)
class Mix:
    """A cover of several toolchains.

    Attributes:
        cover: its candidates.
        expected_us: what its groups' times promise, launches and hand-overs left out.
    """

    cover: Cover
    expected_us: float


def groups_of(calls: CallGraph) -> list[OperatorGroup]:
    """Return the groups of operators that TVM's FuseOps would fuse, in the graph's order."""
    return [tuple(members(group)) for group in fused_groups(calls)]


def profile_groups(
    groups: Sequence[OperatorGroup],
    taken: Mapping[str, Mapping[OperatorGroup, Candidate]],
    settings: MixSettings,
    run: Callable[[str, Cover], Trial],
    is_over: Callable[[], bool] = lambda: False,
) -> GroupTimes:
    """Try, for each toolchain, the cover in which it has all groups that matter.

    In the first cover that runs, the toolchain has all groups that it can take; what matters
    follows from the times there.

    Args:
        groups: all groups of the model.
        taken: by instance id, its candidates for groups. The first instance that can take a group
            has it wherever the favoured one does not.
        settings: what matters.
        run: tries the cover that favours the instance of this id.
        is_over: whether no further cover is to be tried.

    Returns:
        What the groups took, as far as covers ran; no times at all where a group cannot be taken.
    """
    us: dict[OperatorGroup, dict[str, float]] = {}
    tried: set[frozenset[str]] = set()
    usual: dict[OperatorGroup, Candidate] = {}
    for own in reversed(list(taken.values())):
        usual.update(own)
    if not all(group in usual for group in groups):
        return GroupTimes()
    for favoured, own in taken.items():
        if us:
            total_us = sum(min(known.values()) for known in us.values())
            least_us = settings.least_group_share * total_us
            wanted = {group for group, known in us.items() if min(known.values()) >= least_us}
        else:
            wanted = set(groups)
        cover = [own[g] if g in own and g in wanted else usual[g] for g in groups]
        ids = frozenset(candidate.id for candidate in cover)
        if ids in tried:
            continue
        if is_over():
            break
        tried.add(ids)
        trial = run(favoured, tuple(cover))
        if not trial.partitions_us:
            continue
        for group, candidate in zip(groups, cover, strict=True):
            known = us.setdefault(group, {})
            name, seen_us = candidate.instance.id, trial.partitions_us[candidate.id]
            known[name] = min(seen_us, known.get(name, math.inf))
    return GroupTimes(us)


def suggested_mixes(
    times: GroupTimes,
    alone_us: Mapping[str, float],
    calls: CallGraph,
    candidate: Callable[[str, OperatorGroup], Candidate],
    settings: MixSettings,
) -> list[Mix]:
    """Return the mixes that could beat the fastest toolchain alone, the most promising first.

    Args:
        times: what groups took inside the model.
        alone_us: by instance id, what toolchains took alone on the whole model, in µs.
        calls: the operators and what they pass to each other.
        candidate: makes the candidate of some operators on an instance.
        settings: what is tried.
    """
    if not times.us or not alone_us:
        return []
    fastest_us = min(alone_us.values())
    fastest = times.fastest

    def merged(chosen: Mapping[OperatorGroup, str]) -> Cover:
        """Return the cover in which neighbouring groups on the same instance are one partition."""
        owner: list[str | None] = [None] * calls.size
        for group, name in chosen.items():
            for operator in group:
                owner[operator] = name
        return tuple(
            candidate(str(name), tuple(map(OperatorNumber, members(bits))))
            for name, bits in merge_regions(calls, owner)
        )

    apart = tuple(candidate(name, group) for group, name in fastest.items())
    found = [  # the merged one first: it has fewer hand-overs
        Mix(cover=merged(fastest), expected_us=times.bound_us),
        Mix(cover=apart, expected_us=times.bound_us),
    ]
    for base, base_us in alone_us.items():
        if base_us > settings.base_factor * fastest_us:
            continue
        for moved, saved_us in _moves(times, base, base_us, settings):
            chosen = {g: fastest[g] if g in moved else base for g in times.us}
            found.append(Mix(cover=merged(chosen), expected_us=base_us - saved_us))
    promising: dict[frozenset[str], Mix] = {}
    for mix in sorted(found, key=lambda mix: mix.expected_us):
        if mix.expected_us <= (1 - settings.least_gain) * fastest_us and len(mix.cover) > 1:
            promising.setdefault(frozenset(one.id for one in mix.cover), mix)
    return list(promising.values())[: settings.most]


def _moves(
    times: GroupTimes, base: str, base_us: float, settings: MixSettings
) -> list[tuple[frozenset[OperatorGroup], float]]:
    """Return sets of groups that could leave a toolchain, with the microseconds that this saves.

    A base that takes the whole model in less than the sum of its groups wins something across them;
    each of its groups then counts with its share of the whole.
    """
    if not all(base in taken for taken in times.us.values()):
        return []
    share = min(1.0, base_us / sum(taken[base] for taken in times.us.values()))
    least_us = max(settings.least_saving_us, settings.least_saving_share * base_us)
    saved = {group: share * taken[base] - min(taken.values()) for group, taken in times.us.items()}
    worth = sorted((g for g in saved if saved[g] > least_us), key=lambda g: -saved[g])
    counts = sorted({min(count, len(worth)) for count in settings.moved_groups if worth})
    return [
        (frozenset(worth[:count]), sum(saved[group] for group in worth[:count])) for count in counts
    ]
