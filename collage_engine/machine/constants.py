"""Knows what handing a value on costs on this machine: a launch, and a change of toolchain.

The cost of a cover is that of its candidates, timed alone, plus a launch for each, plus a pair
cost for each value that goes from one partition to another. Both are what a chain of partitions
takes beyond the sum of its parts:

* A chain of ``n`` partitions of toolchain *a* grows by ``alone(a) + launch + pair(a, a)`` with
  each. The launch is what the leanest toolchain has; the rest is its own.
* In a chain that alternates, every two partitions add ``alone(a) + alone(b) + 2 launch +
  pair(a, b) + pair(b, a)``. The two directions cannot be told apart and share it equally.

Differences of two chain lengths are used, so whatever a whole module costs once drops out. What is
subtracted must have been timed in the same rounds: the difference of two moments of a machine is
easily more than a hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from collage_engine.records.format import LAUNCH, pair_name

SHORT, LONG = 4, 24
"""Partitions of a short and of a long chain, whose times give the launch cost; even, so that
alternating chains are balanced; chosen."""


def wanted_chains(instances: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the chains to build for some instances."""
    found = []
    for name in instances:
        found += [(name,) * SHORT, (name,) * LONG]
    for a, b in combinations(instances, 2):
        found += [(a, b) * (SHORT // 2), (a, b) * (LONG // 2)]
    return found


def constants_from(
    alone: Mapping[str, float], chains: Mapping[tuple[str, ...], float]
) -> dict[str, float]:
    """Derive ``launch`` and ``pair:a:b``, in microseconds and never negative.

    Instances without times (a toolchain that could not take the chain's operator) get none.

    Args:
        alone: The µs of one partition by itself, as candidates are timed.
        chains: The µs of a whole module of partitions in a row, by their toolchain instances.
    """

    def step(chain: Callable[[int], tuple[str, ...]]) -> float:
        """Return what one more partition adds, in microseconds."""
        return (chains[chain(LONG)] - chains[chain(SHORT)]) / (LONG - SHORT)

    known = [name for name in alone if all((name,) * n in chains for n in (SHORT, LONG))]
    beyond = {name: step(lambda n, name=name: (name,) * n) - alone[name] for name in known}  # type: ignore[misc]
    launch = max(0.0, min(beyond.values(), default=0.0))
    constants = {LAUNCH: launch}
    for name in known:
        constants[pair_name(name, name)] = max(0.0, beyond[name] - launch)
    for a, b in combinations(known, 2):
        if not all((a, b) * (n // 2) in chains for n in (SHORT, LONG)):
            continue
        mixed = step(lambda n, a=a, b=b: (a, b) * (n // 2))  # type: ignore[misc]
        shared = mixed - (alone[a] + alone[b]) / 2 - launch
        constants[pair_name(a, b)] = constants[pair_name(b, a)] = max(0.0, shared)
    return constants


def measure_constants(
    instances: Sequence[str],
    time_alone: Callable[[str], float],
    build_and_time: Callable[[Sequence[tuple[str, ...]]], dict[tuple[str, ...], float]],
) -> dict[str, float]:
    """Time what is needed and derive the constants.

    Args:
        instances: Ids of toolchain instances.
        time_alone: Gives the microseconds of an instance's partition by itself, as candidates are
            timed; raises ``KeyError`` where it has none.
        build_and_time: Builds whole modules of chains and times them in rounds, against each other
            and against single partitions, which are chains of one. What it cannot build is missing
            in its answer.
    """
    alone = {}
    for name in instances:
        try:
            alone[name] = time_alone(name)
        except KeyError:
            continue
    times = build_and_time([*((name,) for name in alone), *wanted_chains(list(alone))])
    alone |= {chain[0]: us for chain, us in times.items() if len(chain) == 1}
    return constants_from(alone, times)
