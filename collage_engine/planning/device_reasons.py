"""Why the partitions of a placement are on their devices, where a run has several.

Device pins rule candidates out; the search then chooses, with copies as transitions. Here nothing
is decided: the reason is read off the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from collage_engine.records.placement import Placement
from collage_engine.search.problem import HOST, CandidateId, Problem

Why = Literal["pin", "default", "only", "cost"]
"""``pin``: a device pin holds a node. ``default``: it is on the accelerator of the run; the host is
what has to be asked for. ``only``: nothing on another device takes a node. ``cost``: it costs least
there, copies included."""

_REASONS = {
    "pin": "it is pinned there",
    "only": "nothing on another device takes it",
    "cost": "it costs least there, copies included",
    "default": "it is the default device, and nothing asks for another",
}
"""Why a node is on its device, by the search's reason."""


def _reason(problem: Problem, device: str, nodes: Sequence[int]) -> Why | None:
    """Return why a partition of these nodes is on its device; None where there is only one."""
    devices = {candidate.device or HOST for candidate in problem.candidates}
    if len(devices) < 2:
        return None
    inside = set(nodes)
    if any(pin.device is not None and inside & set(pin.nodes) for pin in problem.pins):
        return "pin"
    if device == max(devices - {HOST}):
        return "default"
    elsewhere = {
        node
        for candidate in problem.candidates
        if candidate.state != "invalid" and (candidate.device or HOST) != device
        for node in candidate.nodes
    }
    return "cost" if inside <= elsewhere else "only"


def with_devices(placement: Placement, problem: Problem) -> Placement:
    """Return the placement with the reasons for its partitions' devices, if there are several."""
    device_of = {str(c.id): c.device or HOST for c in problem.candidates}
    parts = tuple(
        msgspec.structs.replace(
            part,
            device_why=_reason(problem, device_of[str(part.candidate)], part.nodes) or "",
        )
        for part in placement.partitions
    )
    return msgspec.structs.replace(placement, partitions=parts)


def device_words(problem: Problem, cover: Sequence[CandidateId], node: int) -> list[str]:
    """Return ``It is on cpu: nothing on another device takes it.``; no sentence for one device."""
    chosen = {str(name) for name in cover}
    holder = next((c for c in problem.candidates if str(c.id) in chosen and node in c.nodes), None)
    device = HOST if holder is None else holder.device or HOST
    reason = None if holder is None else _reason(problem, device, [node])
    if reason is None:
        return []
    return [f"It is on {device}: {_REASONS[reason]}."]
