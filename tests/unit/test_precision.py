"""What reduced precision changes in candidates and words."""

from __future__ import annotations

import msgspec

from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.placement import Placement, Run
from collage_engine.records.precision import Accuracy, RoundedProduct, RoundingTrial, in_precision
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.contenders import is_secondary
from collage_engine.trials.contender import Contender
from collage_engine.wording.facts import fact_lines, run_facts
from tests.support.covers import candidate_on
from tests.support.graphs import resnet
from tests.support.runs import partition, run_record

FULL = ToolchainInstance(toolchain="lib")
NARROW = in_precision(FULL, "bfloat16")


def test_reduced_candidates_hold_a_product_and_all_others_are_offered_in_float32() -> None:
    net = resnet(2)
    sources = [CandidateSource(i, None, lambda index: None) for i in (FULL, NARROW)]
    found = enumerate_candidates(net, sources)
    products = {
        number
        for number, index in enumerate(net.operators)
        if net.nodes[index].op in ("nn.conv2d", "matmul")
    }
    assert products and len(products) < len(net.operators)
    narrow = {c.nodes for c in found if c.instance.id == NARROW.id}
    full = {c.nodes for c in found if c.instance.id == FULL.id}
    assert {n for nodes in narrow for n in nodes} >= products
    assert narrow == {nodes for nodes in full if products & set(nodes)}
    other = next(n for n in range(len(net.operators)) if n not in products)
    assert (other,) in full and (other,) not in narrow


def run_of(precision: str, measured: float, accuracy: Accuracy | None) -> Run:
    part = partition(0, 1, toolchain="lib", us=measured, precision=precision, max_rel_error=2e-3)
    return run_record(
        id="r",
        model={"nodes": 2},
        placement=Placement(partitions=(part,), estimated_us=measured, measured_us=measured),
        max_rel_error=4e-3,
        accuracy=accuracy,
    )


def words_of(run: Run) -> str:
    (line,) = fact_lines(run_facts(run), ["Accuracy"])
    return line


def test_words_say_where_what_it_cost_and_what_it_won() -> None:
    about = Accuracy(
        precision="bfloat16",
        tolerance=0.01,
        samples=4,
        max_rel_error=4e-3,
        float32_us=3000.0,
        products=(
            RoundedProduct(operator=0, operations=1e6, error=1e-3, rounded=True),
            RoundedProduct(operator=1, operations=1e6, error=2e-2),
        ),
        tried=(RoundingTrial(toolchain="tvm", rounded=1, emulated_error=3e-3, max_rel_error=4e-3),),
    )
    words = words_of(run_of("bfloat16", 1500.0, about))
    assert "partitions in bf16 1 of 1, within 2.0e-03 each" in words
    assert "error of the whole model 4.0e-03" in words
    assert "tolerance 0.01, kept on 4 sets of inputs" in words
    assert "products that may be rounded 1 of 2; tried with products rounded 1 whole model" in words
    assert "fastest measured in float32 3.00 ms" in words and "against it −50.0 %" in words


def test_nothing_is_said_to_be_won_where_everything_stayed_float32() -> None:
    about = Accuracy(precision="bfloat16", tolerance=0.01, samples=1, float32_us=3000.0)
    words = words_of(run_of("float32", 3000.0, about))
    assert "partitions in float32 1 of 1" in words and "against it" not in words
    assert "none is faster" not in words, "nothing was tried"
    broke = RoundingTrial(toolchain="tvm", rounded=2, max_rel_error=0.03, reason="it breaks it")
    late = RoundingTrial(toolchain="tvm", rounded=1, emulated_error=5e-3, reason="no time")
    for tried, said in (((broke,), True), ((broke, late), False)):
        run = run_of("float32", 3000.0, msgspec.structs.replace(about, tried=tried))
        assert ("none is faster and keeps the tolerance" in words_of(run)) == said


def test_a_whole_model_in_reduced_precision_is_tried_with_the_first() -> None:
    plain = ToolchainInstance(toolchain="a")
    tuned = ToolchainInstance(toolchain="a", config=(("opt", "1"),))
    secondary = {
        name: is_secondary(Contender(name=name, kind="whole-model", cover=(candidate_on(i, (0,)),)))
        for name, i in {
            "plain": plain,
            "tuned": tuned,
            "reduced": in_precision(plain, "bfloat16"),
            "both": in_precision(tuned, "bfloat16"),
        }.items()
    }
    assert secondary == {"plain": False, "tuned": True, "reduced": False, "both": True}
