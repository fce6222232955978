"""Hand-overs from one partition to the next become pair costs of the search problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collage_engine.records.hand_over_constants import PAIR, split_pair
from collage_engine.records.precision import careful
from collage_engine.records.toolchain import ToolchainInstance


def hand_overs(
    constants: Mapping[str, float], instances: Iterable[ToolchainInstance]
) -> tuple[tuple[str, str, float], ...]:
    """Return (from, to, microseconds) for the pairs of instances in the constants.

    An instance that leaves some products in float32 came after these were measured: it hands over
    and takes values as the instance does that leaves none in float32.

    Args:
        constants: A run's constants.
        instances: The instances of the candidates.
    """
    alike: dict[str, list[str]] = {}
    for instance in sorted(instances, key=lambda i: i.id):
        origin = careful(instance, ()).id
        if origin != instance.id:
            alike.setdefault(origin, []).append(instance.id)
    found = []
    for name, us in sorted(constants.items()):
        if name.startswith(PAIR):
            source, target = split_pair(name)
            found += [
                (one, other, us)
                for one in (source, *alike.get(source, ()))
                for other in (target, *alike.get(target, ()))
            ]
    return tuple(found)
