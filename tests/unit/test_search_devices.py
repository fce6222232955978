"""Devices carry their reasons, and planning twice changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.search.api import solve
from collage_engine.search.devices import NodeDevice, infer_devices
from collage_engine.search.problem import ProblemPin
from collage_engine.search.problem_json import problem_from
from tests.support.search_instances import random_problem


def chain(gpu_cost: float = 9.0) -> dict[str, Any]:
    """Five operators, each on the host for 10 or on the GPU; copies are transitions."""
    return {
        "nodes": [{"id": n, "inputs": [n - 1] if n else []} for n in range(5)],
        "candidates": [
            {"id": f"{kind}{n}", "nodes": [n], "toolchain": kind, "device": device, "cost_us": cost}
            for n in range(5)
            for kind, device, cost in (("h", None, 10.0), ("g", "cuda:0", gpu_cost))
            if not (n == 4 and kind == "g")  # the last runs on the host only
        ],
        "transitions": {"pairs": [["h", "g", 5.0], ["g", "h", 5.0]]},
    }


def test_reasons() -> None:
    data = {**chain(), "pins": [{"nodes": [2], "device": "cuda:0"}]}
    places = infer_devices(problem_from(data), solve(problem_from(data)))
    # The pin draws its neighbours along: going back and forth would cost more than they lose.
    assert [places[n].device for n in range(5)] == ["cuda:0"] * 4 + ["cpu"]
    assert [places[n].why for n in range(5)] == [
        "neighbour",
        "neighbour",
        "pin",
        "neighbour",
        "default",
    ]
    assert places[2].because == (0,) and places[0].because == (1, 2)


def test_cost_alone_and_default() -> None:
    cheap = problem_from(chain(gpu_cost=1.0))
    places = infer_devices(cheap, solve(cheap))
    assert places[0].why == "cost" and places[0].device == "cuda:0"
    dear = problem_from(chain(gpu_cost=20.0))
    assert {p.why for p in infer_devices(dear, solve(dear)).values()} == {"default"}


def test_the_host_is_pinned_too_and_the_infeasible_has_no_devices() -> None:
    data = {**chain(gpu_cost=1.0), "pins": [{"nodes": [0, 1], "device": "cpu"}]}
    places = infer_devices(problem_from(data), solve(problem_from(data)))
    assert places[0].why == "pin" and places[2].device == "cuda:0" and places[2].why == "cost"
    data["pins"] = [{"nodes": [4], "device": "cuda:0"}]
    answer = solve(problem_from(data))
    assert answer.infeasible is not None and answer.infeasible.nodes == (4,)
    assert infer_devices(problem_from(data), answer) == {}


def as_pins(devices: dict[int, NodeDevice]) -> tuple[ProblemPin, ...]:
    """What was inferred as pins, one per device."""
    nodes: dict[str, list[int]] = {}
    for each in devices.values():
        nodes.setdefault(each.device, []).append(each.node)
    return tuple(ProblemPin(nodes=tuple(sorted(n)), device=d) for d, n in sorted(nodes.items()))


def test_planning_twice_changes_nothing() -> None:
    planned = 0
    for seed in range(8 * 10**8, 8 * 10**8 + 150):
        problem = problem_from(random_problem(seed))
        answer = solve(problem)
        places = infer_devices(problem, answer)
        if not places:
            continue
        pinned = msgspec.structs.replace(problem, pins=problem.pins + as_pins(places))
        again = solve(pinned)
        assert again.cover == answer.cover and again.cost_us == answer.cost_us
        twice = infer_devices(pinned, again)
        assert {n: p.device for n, p in twice.items()} == {n: p.device for n, p in places.items()}
        planned += 1
    assert planned > 50
