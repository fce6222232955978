"""Makes random search problems as plain JSON values, and a brute force that shares no code."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import Any

CHAINS = ("a", "b", "c[x=1]", "c[x=2]")


def random_problem(seed: int, *, nodes: int = 7, cyclic: bool = False) -> dict[str, Any]:
    """Returns a small random problem with pins, transitions, formats, invalid candidates and ties.

    Args:
        seed: Seed of the random choices.
        nodes: Nodes of the problem, at most.
        cyclic: Whether many candidates are disconnected with several exits, so that covers are
            decided by joint acyclicity.
    """
    rng = random.Random(seed)
    count = rng.randint(2, nodes)
    ids = [3 * i + rng.randint(0, 1) for i in range(count)]
    density = rng.choice([0.1, 0.2]) if cyclic else rng.choice([0.15, 0.3, 0.5])
    inputs: list[list[int]] = []
    for at in range(count):
        chosen = [p for p in range(at) if rng.random() < density]
        if at and not chosen and rng.random() < (0.3 if cyclic else 0.6):
            chosen = [at - 1]
        if chosen and rng.random() < 0.1:
            chosen.append(chosen[0])
        inputs.append(chosen)
    toolchains = list(CHAINS[: rng.randint(1, len(CHAINS))])
    formats = rng.random() < 0.4
    cheap = rng.random() < 0.5  # few distinct costs: many exact ties

    def cost() -> float:
        return float(rng.randint(1, 4)) if cheap else rng.randint(0, 4000) / 10

    sets: set[tuple[int, ...]] = set()
    for at in range(count):
        if rng.random() < 0.93:
            sets.add((at,))
    for _ in range(rng.randint(2 * count, 5 * count) if cyclic else rng.randint(0, 3 * count)):
        size = rng.randint(2, min(4, count))
        if cyclic or rng.random() < 0.3:
            chosen = sorted(rng.sample(range(count), size))
        else:
            at = rng.randrange(count)
            grown = {at}
            for _ in range(size - 1):
                near = {p for n in grown for p in inputs[n]}
                near |= {n for n in range(count) if grown & set(inputs[n])}
                near -= grown
                if near:
                    grown.add(rng.choice(sorted(near)))
            chosen = sorted(grown)
        if convex(chosen, inputs):
            sets.add(tuple(chosen))
    planted: set[tuple[int, ...]] = set()
    if cyclic:
        edges = [(p, n) for n in range(count) for p in set(inputs[n])]
        for (a, b), (c, d) in itertools.combinations(edges, 2):
            pair = [tuple(sorted({a, d})), tuple(sorted({b, c}))]
            if len({a, b, c, d}) == 4 and all(convex(s, inputs) for s in pair):
                planted.update(pair)
        sets |= planted
        kept = {s for s in sets if len(s) > 1}
        sets = kept | {s for s in sets if len(s) == 1 and rng.random() < 0.8}
    candidates: list[dict[str, Any]] = []
    for members in sorted(sets, key=lambda s: (rng.random(), s)):
        for _ in range(1 if cyclic else rng.choice([1, 1, 2, 3])):
            candidate: dict[str, Any] = {
                "id": f"k{len(candidates)}" if rng.random() < 0.5 else len(candidates),
                "nodes": [ids[n] for n in members],
                "toolchain": rng.choice(toolchains),
            }
            state = rng.choices(["measured", "invalid", "unknown"], [12, 1, 1])[0]
            if state != "measured" or rng.random() < 0.5:
                candidate["state"] = state
            if state == "measured":
                candidate["cost_us"] = cost()
                if cyclic and members not in planted:
                    candidate["cost_us"] += 2.0 * len(members)
            else:
                candidate["cost_us"] = None
            if rng.random() < 0.3:
                candidate["device"] = rng.choice(["cpu", "cuda:0"])
            if formats:
                inside = set(members)
                outside = sorted({p for n in members for p in inputs[n]} - inside)
                candidate["takes"] = {
                    str(ids[p]): rng.choice(["plain", "nhwc", "blocked"])
                    for p in outside
                    if rng.random() < 0.4
                }
                candidate["gives"] = {
                    str(ids[n]): rng.choice(["plain", "nhwc"])
                    for n in members
                    if rng.random() < 0.4
                }
            candidates.append(candidate)
    rng.shuffle(candidates)
    transitions: dict[str, Any] = {}
    if rng.random() < 0.7:
        transitions["launch_us"] = rng.choice([0.0, 0.5, 1.0, 7.3])
    if rng.random() < 0.7:
        transitions["pairs"] = [
            [a, b, rng.choice([0.0, 1.0, 2.0, 50.5])]
            for a in toolchains
            for b in toolchains
            if rng.random() < 0.6
        ]
    if formats:
        transitions["formats"] = [
            [ids[n], a, b, rng.choice([0.0, 1.0, 3.0, 20.25])]
            for n in range(count)
            for a in ("plain", "nhwc", "blocked")
            for b in ("plain", "nhwc", "blocked")
            if a != b and rng.random() < 0.8
        ]
    problem: dict[str, Any] = {
        "nodes": [
            {"id": ids[n], "op": "op", "inputs": [ids[p] for p in inputs[n]]} for n in range(count)
        ],
        "outputs": sorted({ids[n] for n in range(count) if rng.random() < 0.3} | {ids[-1]}),
        "candidates": candidates,
        "transitions": transitions,
    }
    if rng.random() < 0.4:
        problem["priority"] = rng.sample(toolchains, rng.randint(1, len(toolchains)))
    if rng.random() < 0.5:
        problem["pins"] = [
            _random_pin(rng, ids, toolchains, candidates) for _ in range(rng.randint(1, 3))
        ]
    return problem


def lanes_problem(count: int, lanes: int = 1, toolchains: str = "abcd") -> dict[str, Any]:
    """Return a problem on lanes that exchange values with their neighbours at every step.

    One lane is a chain; the state space grows with the power of the lanes. Every node has a
    candidate for each toolchain, and joined with a user one more.
    """
    rng = random.Random(count)
    inputs = [
        sorted({n - lanes, n - n % lanes - lanes + (n + 1) % lanes}) if n >= lanes else []
        for n in range(count)
    ]
    pairs = [[producer, n] for n in range(count) for producer in inputs[n]]
    sets = [([n], name) for n in range(count) for name in toolchains]
    sets += [(pair, rng.choice(toolchains)) for pair in pairs]
    return {
        "nodes": [{"id": n, "inputs": inputs[n]} for n in range(count)],
        "candidates": [
            {"id": i, "nodes": nodes, "toolchain": name, "cost_us": rng.uniform(4.0, 9.0)}
            for i, (nodes, name) in enumerate(sets)
        ],
        "transitions": {
            "launch_us": 1.5,
            "pairs": [[a, b, rng.uniform(0.5, 4.0)] for a in toolchains for b in toolchains],
        },
    }


def _random_pin(
    rng: random.Random,
    ids: list[int],
    toolchains: list[str],
    candidates: list[dict[str, Any]],
) -> dict[str, Any]:
    some = rng.sample(ids, rng.randint(1, min(3, len(ids))))
    if candidates and rng.random() < 0.6:
        some = list(rng.choice(candidates)["nodes"])
    sort = rng.choice(["toolchain", "not", "device", "exactly", "together"])
    named = rng.choice([*toolchains, "c"])
    if sort == "toolchain":
        return {"nodes": some[:2], "toolchain": named}
    if sort == "not":
        return {"nodes": some, "not_toolchain": named}
    if sort == "device":
        return {"nodes": some[:1], "device": rng.choice(["cpu", "cuda:0"])}
    if sort == "exactly":
        pin: dict[str, Any] = {"nodes": some, "exactly": True}
        if rng.random() < 0.3:
            pin["toolchain"] = named
        return pin
    return {"nodes": some[:2], "together": True}


def convex(members: list[int] | tuple[int, ...], inputs: list[list[int]]) -> bool:
    """Tells whether no path leaves a set and comes back, by walking every path.

    ``members`` are positions, not ids.
    """
    inside = set(members)
    users: dict[int, list[int]] = {}
    for node, producers in enumerate(inputs):
        for producer in producers:
            users.setdefault(producer, []).append(node)
    seen: set[int] = set()
    stack = [u for m in members for u in users.get(m, ()) if u not in inside]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for user in users.get(node, ()):
            if user in inside:
                return False
            stack.append(user)
    return True


class BruteForce:
    """Every disjoint cover of a small problem, with exact costs as fractions of a microsecond."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.problem = problem
        self.nodes = [n["id"] for n in problem["nodes"]]
        self.inputs = {n["id"]: sorted(set(n["inputs"])) for n in problem["nodes"]}
        self.cyclic: list[tuple[Fraction, tuple[int, ...]]] = []
        """Disjoint covers that only joint acyclicity rules out."""
        self.covers: list[tuple[Fraction, tuple[int, ...]]] = []
        """(cost, indices of candidates), pins aside."""
        usable = list(self.named("measured").values())
        self._extend(frozenset(), (), usable)

    def _extend(self, covered: frozenset[int], chosen: tuple[int, ...], usable: list[int]) -> None:
        missing = [n for n in self.nodes if n not in covered]
        if not missing:
            cost = self._total(chosen)
            if cost is not None:
                found = self.cyclic if self._has_cycle(chosen) else self.covers
                found.append((cost, tuple(sorted(chosen))))
            return
        for index in usable:
            nodes = set(self.problem["candidates"][index]["nodes"])
            if missing[0] in nodes and not nodes & covered:
                self._extend(covered | nodes, (*chosen, index), usable)

    def _has_cycle(self, chosen: tuple[int, ...]) -> bool:
        owner = {n: i for i in chosen for n in self.problem["candidates"][i]["nodes"]}
        edges = {(owner[p], owner[n]) for n in self.nodes for p in self.inputs[n]}
        left = set(chosen)
        while left:
            free = {i for i in left if not any(b == i and a in left and a != i for a, b in edges)}
            if not free:
                return True
            left -= free
        return False

    def _total(self, chosen: tuple[int, ...]) -> Fraction | None:
        candidates = self.problem["candidates"]
        transitions = self.problem.get("transitions", {})
        total = Fraction(str(transitions.get("launch_us", 0))) * len(chosen)
        for index in chosen:
            total += Fraction(str(candidates[index]["cost_us"]))
        owner = {n: candidates[i] for i in chosen for n in candidates[i]["nodes"]}
        part = {n: i for i in chosen for n in candidates[i]["nodes"]}
        pairs = {(a, b): Fraction(str(us)) for a, b, us in transitions.get("pairs", ())}
        table = {(n, a, b): Fraction(str(us)) for n, a, b, us in transitions.get("formats", ())}
        for value in self.nodes:
            source = owner[value]
            users = [
                owner[n] for n in self.nodes if value in self.inputs[n] and part[n] != part[value]
            ]
            for target in {u["toolchain"] for u in users}:
                total += pairs.get((source["toolchain"], target), 0)
            have = source.get("gives", {}).get(str(value), "plain")
            wanted = {u.get("takes", {}).get(str(value), "plain") for u in users}
            if value in self.problem.get("outputs", ()):
                wanted.add("plain")
            for want in wanted - {have}:
                if (value, have, want) not in table:
                    return None
                total += table[value, have, want]
        return total

    def indices(self, cover: Any) -> tuple[int, ...]:
        """Returns the ascending indices of the candidates with these ids."""
        by_id = {str(c["id"]): index for index, c in enumerate(self.problem["candidates"])}
        return tuple(sorted(by_id[str(name)] for name in cover))

    def named(self, state: str) -> dict[Any, int]:
        """Returns the indices of the candidates in a state, by id."""
        return {
            c["id"]: index
            for index, c in enumerate(self.problem["candidates"])
            if c.get("state", "measured") == state
        }

    def honoured(self, pins: list[dict[str, Any]]) -> list[tuple[Fraction, tuple[int, ...]]]:
        return [c for c in self.covers if all(self._holds(pin, c[1]) for pin in pins)]

    def decided_by_acyclicity(self, pins: list[dict[str, Any]]) -> bool:
        """Whether a cover that costs less, or the only one, is ruled out by a cycle alone."""
        cyclic = [cost for cost, c in self.cyclic if all(self._holds(pin, c) for pin in pins)]
        least = self.least(pins)
        return bool(cyclic) and (least is None or min(cyclic) < least)

    def least(self, pins: list[dict[str, Any]]) -> Fraction | None:
        return min((cost for cost, _ in self.honoured(pins)), default=None)

    def _holds(self, pin: dict[str, Any], chosen: tuple[int, ...]) -> bool:
        wanted = set(pin["nodes"])
        for index in chosen:
            candidate = self.problem["candidates"][index]
            nodes = set(candidate["nodes"])
            if not nodes & wanted:
                continue
            name = candidate["toolchain"]
            if "toolchain" in pin and pin["toolchain"] not in (name, name.split("[")[0]):
                return False
            if "not_toolchain" in pin and pin["not_toolchain"] in (name, name.split("[")[0]):
                return False
            if "device" in pin and candidate.get("device", "cpu") != pin["device"]:
                return False
            if pin.get("exactly") and nodes != wanted:
                return False
            if pin.get("together") and not wanted <= nodes:
                return False
        return True

    def minimal_contradictions(self, pins: list[dict[str, Any]]) -> list[set[int]]:
        """Returns all minimal sets of pins (indices) that leave no cover."""
        found: list[set[int]] = []
        for size in range(len(pins) + 1):
            for some in itertools.combinations(range(len(pins)), size):
                if any(f <= set(some) for f in found):
                    continue
                if not self.honoured([pins[i] for i in some]):
                    found.append(set(some))
        return found

    def tie_break(self, chosen: tuple[int, ...]) -> tuple[int, int]:
        """Returns what decides between exact ties: sum of ranks over nodes, then partitions."""
        priority = self.problem.get("priority", [])
        total = 0
        for index in chosen:
            candidate = self.problem["candidates"][index]
            name = candidate["toolchain"]
            rank = priority.index(name) if name in priority else len(priority)
            total += rank * len(candidate["nodes"])
        return total, len(chosen)
