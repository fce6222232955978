"""Why the partitions of a placement are on their devices, where a run has several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.records.placement import Placement
from collage_engine.search.devices import NodeDevice, infer_devices
from collage_engine.search.problem import HOST, Answer, CandidateId, Problem
from collage_engine.wording import why as words

REASONS_BY_WEIGHT = ("pin", "only", "cost", "neighbour", "default")
"""The reasons of a node's device; of those of a partition's nodes the first one is given."""


def node_devices(problem: Problem, cover: Sequence[CandidateId]) -> dict[int, NodeDevice]:
    """Return the device of every node of a cover, with its reason; empty for one device."""
    devices = {candidate.device or HOST for candidate in problem.candidates}
    if len(devices) < 2:
        return {}
    # Beside a device the host is what has to be asked for.
    return infer_devices(problem, Answer(cover=tuple(cover)), max(devices - {HOST}))


def with_devices(placement: Placement, problem: Problem) -> Placement:
    """Return the placement with the reasons for its partitions' devices, if there are several."""
    places = node_devices(problem, [part.candidate for part in placement.partitions])
    if not places:
        return placement
    parts = []
    for part in placement.partitions:
        reasons = {places[node].why for node in part.nodes}
        why = next(reason for reason in REASONS_BY_WEIGHT if reason in reasons)
        parts.append(msgspec.structs.replace(part, device_why=why))
    return msgspec.structs.replace(placement, partitions=tuple(parts))


def device_words(problem: Problem, cover: Sequence[CandidateId], node: int) -> list[str]:
    """Return ``It is on cpu: nothing on another device takes it.``; no sentence for one device."""
    place = node_devices(problem, cover).get(node)
    if place is None:
        return []
    reason = words.REASON_OF_DEVICE[place.why]
    return [words.ON_DEVICE.format(device=place.device, reason=reason)]
