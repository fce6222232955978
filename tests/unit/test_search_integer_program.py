"""The search against an independent integer program (HiGHS) on problems brute force cannot do.

The program knows nothing of state spaces: binary x per candidate, every node in exactly one,
binary crossings per (value, from, to) and conversions per (value, from format, to format) forced
up by the candidates at both ends, and, for acyclicity, an order number per node: equal within a
chosen candidate, growing from producer to consumer in different ones.

What the search answers when it has no time: a cover, its gap, and no claim beyond that.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
from typing import Any

import highspy
import pytest

from collage_engine.search.api import Search, check, solve
from collage_engine.search.problem_json import problem_from
from tests.support.search_graphs import SHAPES, chain, problem_on, wide

SEEDS = range(1, int(os.environ.get("COLLAGE_SEARCH_ROUNDS", "1")) + 1)


def program(data: dict[str, Any], forced: Any = None) -> float | None:
    """Least cost by HiGHS, with one candidate forced in if given; None when infeasible."""
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 1e-7)
    transitions = data["transitions"]
    launch = transitions.get("launch_us", 0.0)
    pairs = {(a, b): us for a, b, us in transitions.get("pairs", [])}
    formats = {(n, a, b): us for n, a, b, us in transitions.get("formats", [])}
    usable = [c for c in data["candidates"] if c.get("state", "measured") == "measured"]
    for pin in data.get("pins", []):
        wanted = set(pin["nodes"])
        usable = [
            c
            for c in usable
            if not wanted & set(c["nodes"])
            or not (
                (pin.get("together") and not wanted <= set(c["nodes"]))
                or pin.get("not_toolchain") == c["toolchain"]
            )
        ]
    if forced is not None and forced not in [c["id"] for c in usable]:
        return None  # a pin rules it out
    nodes = [n["id"] for n in data["nodes"]]
    holding: dict[int, list[int]] = {n: [] for n in nodes}
    columns = 0

    def column(cost: float, low: float, high: float, whole: bool) -> int:
        nonlocal columns
        model.addVar(low, high)
        model.changeColCost(columns, cost)
        if whole:
            model.changeColIntegrality(columns, highspy.HighsVarType.kInteger)
        columns += 1
        return columns - 1

    def row(low: float, high: float, terms: dict[int, float]) -> None:
        model.addRow(low, high, len(terms), list(terms), list(terms.values()))

    chosen = []
    for index, c in enumerate(usable):
        at = column(c["cost_us"] + launch, 1.0 if c["id"] == forced else 0.0, 1.0, True)
        chosen.append(at)
        for node in c["nodes"]:
            holding[node].append(index)
    for node in nodes:
        row(1.0, 1.0, {chosen[i]: 1.0 for i in holding[node]})
    count = len(nodes)
    order = {n: column(0.0, 0.0, count, False) for n in nodes}
    infinity = highspy.kHighsInf
    for index, c in enumerate(usable):
        first = c["nodes"][0]
        for other in c["nodes"][1:]:  # equal when chosen
            for sign in (1.0, -1.0):
                terms = {order[first]: sign, order[other]: -sign, chosen[index]: float(count)}
                row(-infinity, float(count), terms)
    for node in data["nodes"]:
        for producer in set(node["inputs"]):
            both = [i for i in holding[node["id"]] if producer in usable[i]["nodes"]]
            terms = {chosen[i]: 1.0 for i in both}
            terms[order[node["id"]]] = 1.0
            terms[order[producer]] = -1.0
            row(1.0, infinity, terms)
    crossing: dict[tuple[int, str, str], int] = {}
    converting: dict[tuple[int, str, str], int] = {}
    for node in data["nodes"]:
        for producer in set(node["inputs"]):
            for want in {usable[i]["toolchain"] for i in holding[node["id"]]}:
                takers = [
                    i
                    for i in holding[node["id"]]
                    if usable[i]["toolchain"] == want and producer not in usable[i]["nodes"]
                ]
                for have in {usable[i]["toolchain"] for i in holding[producer]}:
                    if not pairs.get((have, want)):
                        continue
                    key = (producer, have, want)
                    if key not in crossing:
                        crossing[key] = column(pairs[have, want], 0.0, 1.0, False)
                    terms = {chosen[i]: 1.0 for i in takers}
                    for i in holding[producer]:
                        if usable[i]["toolchain"] == have and node["id"] not in usable[i]["nodes"]:
                            terms[chosen[i]] = terms.get(chosen[i], 0.0) + 1.0
                    terms[crossing[key]] = -1.0
                    row(-infinity, 1.0, terms)
            forms = {
                (usable[i].get("takes") or {}).get(str(producer), "plain")
                for i in holding[node["id"]]
            }
            for want in forms:
                takers = [
                    i
                    for i in holding[node["id"]]
                    if (usable[i].get("takes") or {}).get(str(producer), "plain") == want
                    and producer not in usable[i]["nodes"]
                ]
                for have in {
                    (usable[i].get("gives") or {}).get(str(producer), "plain")
                    for i in holding[producer]
                } - {want}:
                    key = (producer, have, want)
                    if key not in converting:
                        us = formats.get(key)
                        high = 0.0 if us is None else 1.0
                        converting[key] = column(us or 0.0, 0.0, high, False)
                    terms = {chosen[i]: 1.0 for i in takers}
                    for i in holding[producer]:
                        gives = (usable[i].get("gives") or {}).get(str(producer), "plain")
                        if gives == have and node["id"] not in usable[i]["nodes"]:
                            terms[chosen[i]] = terms.get(chosen[i], 0.0) + 1.0
                    terms[converting[key]] = -1.0
                    row(-infinity, 1.0, terms)
    for output in set(data["outputs"]):
        for have in {
            (usable[i].get("gives") or {}).get(str(output), "plain") for i in holding[output]
        } - {"plain"}:
            key = (output, have, "plain")
            if key not in converting:
                us = formats.get(key)
                converting[key] = column(us or 0.0, 0.0, 0.0 if us is None else 1.0, False)
            terms = {
                chosen[i]: 1.0
                for i in holding[output]
                if (usable[i].get("gives") or {}).get(str(output), "plain") == have
            }
            terms[converting[key]] = -1.0
            row(-infinity, 0.0, terms)
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return model.getInfo().objective_function_value


def enriched(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """With formats on some values, pins, and pairs of candidates that wait for each other."""
    rng = random.Random(seed)
    inputs = [n["inputs"] for n in data["nodes"]]
    valued = set(rng.sample(range(len(inputs)), len(inputs) // 3))
    for c in data["candidates"]:
        if c["toolchain"] != "onednn":
            continue
        inside = set(c["nodes"])
        c["gives"] = {str(n): "blocked" for n in c["nodes"] if n in valued}
        c["takes"] = {
            str(p): "blocked"
            for n in c["nodes"]
            for p in inputs[n]
            if p in valued and p not in inside
        }
    data["transitions"]["formats"] = [
        [n, a, b, round(rng.uniform(1.0, 9.0), 2)]
        for n in valued
        for a, b in (("plain", "blocked"), ("blocked", "plain"))
        if rng.random() < 0.9
    ]
    some = data["candidates"][rng.randrange(len(data["candidates"]))]
    data["pins"] = [
        {"nodes": [rng.randrange(len(inputs))], "not_toolchain": rng.choice(["tvm", "onednn"])},
        {"nodes": some["nodes"][:2], "together": True},
    ]
    return data


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("seed", SEEDS)
def test_equals_the_integer_program(shape: str, seed: int) -> None:
    data = enriched(problem_on(SHAPES[shape](14), seed=seed, per_node=5, multi=0.5), seed)
    problem = problem_from(data)
    answer = solve(problem)
    expected = program(data)
    assert expected is not None and answer.optimal and answer.cost_us is not None
    assert answer.cost_us == pytest.approx(expected, abs=1e-4)
    assert check(problem, answer.cover) == pytest.approx(answer.cost_us, abs=1e-6)
    rng = random.Random(seed)
    for name in rng.sample(list(answer.regrets), 3):
        forced, regret = program(data, forced=name), answer.regrets[name]
        if regret is None:
            assert forced is None, f"candidate {name}"
        else:
            assert forced == pytest.approx(answer.cost_us + regret, abs=1e-4), f"candidate {name}"


NO_TIME_S = 1e-6


def test_without_any_time_a_wide_graph_has_a_cover_and_a_proven_gap() -> None:
    graph = wide(240)
    pins = [{"nodes": [3], "not_toolchain": "tvm"}]
    problem = problem_from(problem_on(graph) | {"pins": pins})
    search = Search(problem)
    answer = solve(problem, time_limit_s=NO_TIME_S, previous=search)
    assert answer.cost_us is not None and answer.lower_bound_us is not None
    judged = check(problem, answer.cover)
    assert isinstance(judged, float) and judged == pytest.approx(answer.cost_us)
    assert 0 <= answer.lower_bound_us < answer.cost_us and not answer.optimal
    assert answer.gap_us == pytest.approx(answer.cost_us - answer.lower_bound_us)
    verdict = answer.verdicts[0]
    assert verdict.state == "honoured" and verdict.price_us is None
    assert all(bound >= 0 and math.isfinite(bound) for bound in answer.regret_bounds.values())


def test_an_interrupt_ends_the_integer_program() -> None:
    """A process that ended while HiGHS still works would be aborted."""
    search = Search(problem_from(problem_on(wide(500))))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    threads = threading.active_count()
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            search.find(())
        assert threading.active_count() == threads
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_what_there_was_no_time_for_is_not_remembered() -> None:
    problem = problem_from(problem_on(chain(12)))
    search = Search(problem)
    search.solver.deadline, search.solver.has_answered = 0.0, True
    assert not search.find(problem.pins).decided
    search.solver.deadline = None
    answer = solve(problem, previous=search)
    assert answer.optimal and answer.cost_us == solve(problem).cost_us
