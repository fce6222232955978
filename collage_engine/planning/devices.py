"""Why the partitions of a placement are on their devices, where a run has several.

Imports records and the search only (see ``pipeline.problem``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.records.placement import Placement
from collage_engine.search.devices import Place, infer_devices
from collage_engine.search.problem import HOST, Answer, CandidateId, Problem

WEIGHTIEST = ("pin", "only", "cost", "neighbour", "default")
"""Of the reasons of a partition's nodes, the first of these is told."""
WORDS = {
    "pin": "it is pinned there",
    "only": "nothing on another device takes it",
    "cost": "it costs least there, copies included",
    "neighbour": "what it is joined to is pinned there",
    "default": "everything is that nothing moves",
}


def places_of(problem: Problem, cover: Sequence[CandidateId]) -> dict[int, Place]:
    """The device of every node of a cover, with its reason; empty where there is one device."""
    devices = {candidate.device or HOST for candidate in problem.candidates}
    if len(devices) < 2:
        return {}
    # Beside a device the host is what has to be asked for.
    return infer_devices(problem, Answer(cover=tuple(cover)), max(devices - {HOST}))


def with_devices(placement: Placement, problem: Problem) -> Placement:
    """The placement with why its partitions are where they are; as it is with one device."""
    places = places_of(problem, [part.candidate for part in placement.partitions])
    if not places:
        return placement
    parts = []
    for part in placement.partitions:
        reasons = {places[node].why for node in part.nodes}
        why = next(reason for reason in WEIGHTIEST if reason in reasons)
        parts.append(msgspec.structs.replace(part, device_why=why))
    return msgspec.structs.replace(placement, partitions=tuple(parts))


def device_words(problem: Problem, cover: Sequence[CandidateId], node: int) -> list[str]:
    """A sentence: ``It is on cpu: nothing on another device takes it.``; none with one device."""
    place = places_of(problem, cover).get(node)
    return [] if place is None else [f"It is on {place.device}: {WORDS[place.why]}."]
