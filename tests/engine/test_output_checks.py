"""Every output of a placement is held to what its own kind allows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.candidates.catalog import may_lose_nan
from collage_engine.candidates.inputs import (
    model_samples,
    own_tolerances,
    representative_inputs,
    run_tolerance,
    unchecked,
)
from collage_engine.lowering import reference
from collage_engine.lowering.accuracy import MOST_UNSETTLED, wrong_by
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.built import MODULE_FILE
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import original_outputs, run_onnx
from collage_engine.lowering.rounding_noise import rounding_noise
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.machine.run_control import RunControl
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.stages.samples import draw_samples, sample_warnings
from collage_engine.run.task import RunSamples, RunTask
from collage_engine.support.errors import ArtifactError, MeasureError, ModelError, ToolchainError
from collage_engine.support.files import write_npz
from collage_engine.timing.bench import check
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import (
    TrialBench,
)
from collage_engine.trials.race import Race
from collage_engine.trials.trial_job import OpenPlacement, TrialJob, turned
from tests.support.artifact_cases import MNIST, compile_loader, cover_in_turn
from tests.support.written import written

Importing = Callable[..., ImportedModel]


@pytest.fixture
def imported(tmp_path: Path) -> Importing:
    def make(text: str, **weights: Any) -> ImportedModel:
        path = tmp_path / "m.onnx"
        onnx.save(written(text, weights), path)
        return import_model(str(path))

    return make


# -- what each output is allowed -------------------------------------------------------


def test_each_output_has_the_tolerance_of_its_own_type_and_way(imported: Importing) -> None:
    """One float16 value somewhere loosens nothing that does not come from it."""
    model = imported(
        """(float[2,5] x) => (
            float[2,5] plain, float16[2,5] narrow, float[2,5] wide, int64[2,1] class, bool[2,5] mask
        ) {
            plain = Relu(x)
            half = Cast<to=10>(x)
            narrow = Exp(half)
            wide = Cast<to=1>(narrow)
            class = ArgMax<axis=1>(narrow)
            mask = Greater(x, zero)
        }""",
        zero=np.float32(0),
    )
    expected = {"plain": 1e-4, "narrow": 1e-2, "wide": 1e-2, "class": 0.0, "mask": 0.0}
    assert own_tolerances(model, RunSettings()) == expected
    found = run_tolerance(model, RunSettings(), model.random_inputs(0))
    assert found.by_output == expected and found.value == 1e-2
    asked = run_tolerance(model, RunSettings(tolerance=0.3), model.random_inputs(0))
    assert {name: asked.of(name) for name in expected} == {
        name: 0.3 if bound else 0.0 for name, bound in expected.items()
    }


def test_only_what_stands_for_a_float_may_be_a_step_off(imported: Importing) -> None:
    model = imported(
        """(float[3,4] x) => (uint8[4,3] turned, float[3,4] d, uint8[3] class, float[3,4] plain) {
            q = QuantizeLinear(x, scale, zero)
            turned = Transpose<perm=[1, 0]>(q)
            d = DequantizeLinear(q, scale, zero)
            arg = ArgMax<axis=1, keepdims=0>(d)
            class = Cast<to=2>(arg)
            plain = Relu(x)
        }""",
        scale=np.float32(0.05),
        zero=np.uint8(128),
    )
    found = own_tolerances(model, RunSettings())
    assert found["class"] == 0.0 and found["plain"] == 1e-4
    assert 1 / 255 < found["turned"] == found["d"] < 1e-2


@pytest.mark.parametrize(
    ("true", "came", "dtype", "wrong"),
    [
        ([1900000001, 7], [1900000015, 7], "int32", "off by 14 in int32"),
        ([2**53 + 1], [2**53], "int64", "off by 1 in int64"),
        ([49998], [49999], "int64", "off by 1 in int64"),
        ([True, False], [True, True], "bool", "off by 1 in bool"),
        ([b"a", b"b"], [b"a", b"c"], "S1", "another text"),
        ([3, 4], [3, 4], "int32", None),
        ([np.nan, -np.inf, 1.0], [np.nan, -np.inf, 1.0], "float32", None),
        ([np.nan, 1.0], [np.inf, 1.0], "float32", "not finite in the same places"),
        ([np.inf, 1.0], [-np.inf, 1.0], "float32", "not finite in the same places"),
        ([1.0, 1.0], [np.nan, 1.0], "float32", "not finite in the same places"),
        ([1.0], [1.001], "float32", "relative error 0.001, 0.0001 is allowed"),
    ],
)
def test_the_judgement_of_one_output(
    true: list[object], came: list[object], dtype: str, wrong: str | None
) -> None:
    truth, computed = np.array(true, dtype), np.array(came, dtype)
    name = "string" if dtype.startswith("S") else dtype
    bound = 1e-4 if name.startswith("float") else 0.0
    said = wrong_by(error_of(computed, truth), bound, name)
    assert (said is None) if wrong is None else (said or "").startswith(wrong)


# -- ties ------------------------------------------------------------------------------


def test_exact_ties_are_no_rounding_noise() -> None:
    """Of equal scores the first one counts, also after weights, and also among fractions."""
    scores = np.array([[3, 7, 7, 1, 7, 2], [0.3, 0.3, 0.1, 0.3, 0.2, 0.3]], np.float32)
    model = written(
        """(float[2,6] s) => (int64[2,1] first, int64[2,3] ids, float[2,6] hard) {
            m = Mul(s, two)
            a = Add(m, bias)
            first = ArgMax<axis=1>(a)
            v, ids = TopK<axis=1>(a, k)
            hard = Hardmax<axis=1>(a)
        }""",
        {"two": np.float32(2), "bias": np.full(6, 0.1, np.float32), "k": np.array([3])},
    )
    first, ids, _ = run_onnx(model, {"s": scores})
    assert first.ravel().tolist() == [1, 0] and ids[0].tolist() == [1, 2, 4]
    assert rounding_noise(model, {"s": scores}, 1e-4) == [0.0, 0.0, 0.0]


def test_noise_never_loosens_a_whole_number(imported: Importing) -> None:
    """Two scores that differ in the last bit only: the index moves, and must be right still."""
    equal = np.repeat(np.random.default_rng(3).standard_normal((64, 1)), 8, 1).astype("f4")
    model = imported(
        """(float[4,64] x) => (int64[4,1] best, float[4,8] hard) {
            s = MatMul(x, w)
            best = ArgMax<axis=1>(s)
            apart = Sub(s, far)
            hard = Hardmax<axis=1>(s)
        }""",
        w=equal * (1 + np.arange(8, dtype="f4") * np.float32(1e-7)),
        far=np.float32(1),
    )
    found = run_tolerance(model, RunSettings(), model.random_inputs(0))
    assert found.of("best") == 0.0 and "best" not in found.noise


def test_a_large_map_may_differ_where_the_reference_hangs_on_the_last_bit(
    imported: Importing,
) -> None:
    """Classes of pixels: a share of them, however far apart, and never more than a hundredth."""
    weights = np.random.default_rng(3).standard_normal((8, 1, 1, 1)).astype("f4")
    near = np.concatenate([weights, weights * np.float32(1 + 2e-5)])  # some pixels are near ties
    model = imported(
        """(float[1,1,128,128] x) => (int64[1,1,128,128] map) {
            s = Conv(x, w, b)
            map = ArgMax<axis=1>(s)
        }""",
        w=near,
        b=np.random.default_rng(4).standard_normal(16).astype("f4") * np.float32(1e-6),
    )
    found = run_tolerance(model, RunSettings(), model.random_inputs(0))
    allowed = found.of("map")
    assert 1 / 128**2 <= allowed <= MOST_UNSETTLED
    truth = original_outputs(model, model.random_inputs(0))["map"]
    computed = truth.copy()
    computed.reshape(-1)[: int(allowed * truth.size)] += 9
    assert wrong_by(error_of(computed, truth), allowed, "int64") is None
    computed.reshape(-1)[: int(allowed * truth.size) + 1] = -1
    assert "of the values differ" in (wrong_by(error_of(computed, truth), allowed, "int64") or "")


# -- samples that check something ------------------------------------------------------


def defined_on_some(imported: Importing, operators: Sequence[str], *more: str) -> ImportedModel:
    """A model of unary operators in a row, whose last value is also turned into whole numbers."""
    values = ["x", *(f"v{k}" for k in range(len(operators)))]
    last = values[-1]
    nodes = [f"{b} = {op}({a})" for op, a, b in zip(operators, values, values[1:], strict=False)]
    given = {"class": f"class = ArgMax<axis=1>({last})", "x2": "x2 = Neg(x)"}
    kinds = {"class": "int64[2,1]"}
    outputs = ", ".join(f"{kinds.get(name, 'float[2,6]')} {name}" for name in (*more, last))
    every = " ".join([*nodes, *(given[name] for name in more)])
    return imported(f"(float[2,6] x) => ({outputs}) {{ {every} }}")


@pytest.mark.parametrize(
    "operators",
    [["Log"], ["Sqrt", "Log"], ["Neg", "Exp", "Log"], ["Acos"], ["Acosh"], ["Asin", "Log"]],
)
def test_random_inputs_are_drawn_until_every_output_is_finite(
    imported: Importing, operators: list[str]
) -> None:
    model = defined_on_some(imported, operators, "class")
    (found,) = model_samples(model, RunSettings())
    assert not found.not_finite
    assert all(np.isfinite(array).all() for array in found.truth.values())
    again = representative_inputs(model, RunSettings())
    np.testing.assert_array_equal(again["x"], found.inputs["x"])
    other, more = model_samples(model, RunSettings(), further=1)
    assert not more.not_finite and (other.inputs["x"] != more.inputs["x"]).all()


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        ("(float[4,9] x) => (int64[4,1] y) { y = ArgMax <axis = 1> (x) }", "halves"),
        ("(float[4,9] x) => (float[4,9] y) { a = Relu(x) y = Hardmax(a) }", "halves"),
        ("(float[4,9] x) => (float[4,9] y) { a = Tanh(x) y = Hardmax(a) }", ""),
        ("(float[4,9] x) => (int64[4,9] y) { a = Floor(x) y = Cast <to = 7> (a) }", "large"),
        ("(float[4,9] x) => (int64[4,9] y) { a = Mul(x, x) y = Cast <to = 7> (a) }", ""),
        ("(int64[4,9] x) => (int64[4,9] y) { y = Sub(x, x) }", "whole"),
    ],
)
def test_ties_casts_and_whole_numbers_have_a_sample(
    imported: Importing, graph: str, kind: str
) -> None:
    """What goes through a Tanh, or grows, hangs on the last bit, or is beyond the type."""
    model = imported(graph)
    first, *others = (sample.inputs["x"] for sample in model_samples(model, RunSettings()))
    assert len(others) == bool(kind)
    assert np.abs(first).max() < 6 or kind == "whole"
    for values in others:
        assert (values != first).mean() > 0.9 and (2 * values % 1 == 0).all()
        assert np.abs(values).max() > {"halves": 1, "large": 1e15, "whole": 2**55}[kind]


def test_a_toolchain_that_says_so_may_lose_nan(imported: Importing) -> None:
    """That alone makes no candidate wrong; what else differs, and others that lose NaN, are."""
    truth = np.array([np.nan, 1.0, np.inf], np.float32)
    for computed, right in (([2, 1, np.inf], True), ([2, 3, np.inf], False), ([2, 1, 0], False)):
        array = np.array(computed, np.float32)
        error = error_of(array, truth, loses_nan=True)
        assert (wrong_by(error, 1e-4, "float32") is None) == right
        assert wrong_by(error_of(array, truth), 1e-4, "float32") is not None
    model = imported("(float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
    function = function_of(model, ToolchainInstance(toolchain="onednn"), [0], "relu")
    found = check(function, [np.zeros((1, 3))], [np.full((1, 3), np.nan)], loses_nan=True)
    assert found is None
    losing = {
        name: may_lose_nan(model.graph, ToolchainInstance(toolchain=name), [0])
        for name in ("onednn", "openvino", "onnxruntime", "tvm")
    }
    assert losing == {"onednn": True, "openvino": True, "onnxruntime": False, "tvm": False}


@pytest.mark.parametrize("runs", [True, False])
def test_a_number_that_chooses_a_branch_is_one_that_it_is_compared_with(
    imported: Importing, runs: bool
) -> None:
    size = "four" if runs else "three"  # into which the input's eight values do not fit
    model = imported(
        f"""(float[8] x, int64 rate) => (float[n, m] y)
        <int64 wide = {{16000}}, int64[2] four = {{-1, 4}}, int64[2] three = {{-1, 3}}> {{
            is_wide = Equal(rate, wide)
            y = If (is_wide) <
                then_branch = yes () => (float[n, m] a) {{ a = Reshape(x, {size}) }},
                else_branch = no () => (float[n, m] b) {{ b = Reshape(x, three) }}
            >
        }}"""
    )
    if runs:
        assert [sample.inputs["rate"] for sample in model_samples(model, RunSettings())] == [16000]
        return
    with pytest.raises(ModelError, match="cannot be run for reference"):
        model_samples(model, RunSettings())


@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
def test_what_a_class_is_made_of_is_looked_at_where_the_evaluating_toolchain_refuses(
    imported: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = defined_on_some(imported, ["Exp", "Neg", "Log"], "class")

    def refuse(*_: Any) -> Any:
        raise RuntimeError("not implemented")

    monkeypatch.setattr(reference, "run_onnx", refuse)
    assert unchecked(model_samples(model, RunSettings())) == {"v2": 1.0, "class": 1.0}


def test_a_second_sample_may_check_what_the_first_does_not(
    imported: Importing, tmp_path: Path
) -> None:
    model = defined_on_some(imported, ["Log"])
    both = np.stack([np.full((2, 6), -1, np.float32), np.full((2, 6), 2, np.float32)])
    np.savez(tmp_path / "i.npz", x=both)
    settings = RunSettings(inputs_npz=(tmp_path / "i.npz").read_bytes())
    samples = model_samples(model, settings)
    assert [each.not_finite for each in samples] == [{"v0": 1.0}, {}]
    assert unchecked(samples) == {}
    half = np.where(np.arange(12).reshape(2, 6) < 3, -1, 2).astype(np.float32)
    np.savez(tmp_path / "i.npz", x=half)
    settings = RunSettings(inputs_npz=(tmp_path / "i.npz").read_bytes())
    assert unchecked(model_samples(model, settings)) == {"v0": 0.25}
    assert sample_warnings({"v0": 0.25}, settings) == []  # the user knows these inputs
    assert "25%" in sample_warnings({"v0": 0.25}, RunSettings())[0]


def test_the_stage_warns_of_what_is_unchecked_and_refuses_to_export_it(
    imported: Importing,
) -> None:
    model = defined_on_some(imported, ["Exp", "Neg", "Log"], "class")
    warned: list[str] = []

    def draw(out: str | None, settings: RunSettings) -> RunSamples:
        opened = SimpleNamespace(model=model)
        task = cast(RunTask, SimpleNamespace(open_model=opened, settings=settings, out=out))
        control = RunControl()
        found = draw_samples(task, control)
        warned[:] = control.warnings
        return found

    with pytest.raises(MeasureError, match=r"--inputs .* --unchecked"):
        draw("out", RunSettings())
    for out, settings in ((None, RunSettings()), ("out", RunSettings(unchecked=True))):
        found = draw(out, settings)
        assert found.not_finite == {"v2": 1.0, "class": 1.0}
        assert found.sample.unchecked == {"v2", "class"} and "'v2'" in warned[0]
    fine = defined_on_some(imported, ["Log"])
    model = fine
    assert not draw("out", RunSettings()).sample.unchecked and not warned


def test_no_error_is_told_of_outputs_that_were_not_checked(
    imported: Importing, tmp_path: Path
) -> None:
    model = defined_on_some(imported, ["Log"], "x2")
    inputs = {"x": np.full((2, 6), -1, np.float32)}
    truth = original_outputs(model, inputs)
    cover = tuple(cover_in_turn(model, ["onnxruntime"]))
    for unseen, error in ((frozenset({"v0"}), 0.0), (frozenset({"v0", "x2"}), None)):
        sample = Sample(inputs, truth, {}, unseen)
        with TrialBench(model, [sample], 1e-4, tmp_path / str(error)) as bench:
            race = Race(bench)
            found = race.try_cover(Contender(name="a", kind="collage", cover=cover))
        assert (found.max_rel_error, found.reason) == (error, None)


def test_a_candidate_whose_values_are_all_nan_has_no_error(imported: Importing) -> None:
    model = defined_on_some(imported, ["Log"])
    function = function_of(model, ToolchainInstance(toolchain="tvm"), (0,), "log")
    nothing = np.full((2, 6), np.nan, np.float32)
    assert check(function, [nothing], [nothing]) is None
    one = nothing.copy()
    one[0, 0] = 1.0
    assert check(function, [one], [one]) == 0.0
    with pytest.raises(MeasureError, match="not finite in the same places"):
        check(function, [one], [nothing])


# -- whole placements ------------------------------------------------------------------


def division(imported: Importing) -> tuple[ImportedModel, dict[str, np.ndarray]]:
    """Row numbers by an integer division beside a float output, and inputs for it."""
    model = imported(
        "(int32[6] ids, float[8] x) => (int32[6] rows, float[8] y)"
        " { rows = Div(ids, seven) y = Relu(x) }",
        seven=np.array(7, np.int32),
    )
    large = [777777777, 1111111111, 1900000001, 123456789, 2000000003, 999999999]
    return model, {"ids": np.array(large, np.int32), "x": np.linspace(-1, 1, 8, dtype=np.float32)}


def test_a_placement_that_computes_whole_numbers_in_floats_is_refused(
    imported: Importing, tmp_path: Path
) -> None:
    """OpenVINO divides int32 in float32: a relative error of 5e-8, and another row."""
    model, inputs = division(imported)
    truth = original_outputs(model, inputs)
    assert truth["rows"].tolist() == [i // 7 for i in inputs["ids"].tolist()]
    tolerance = run_tolerance(model, RunSettings(), inputs)
    sample = Sample(inputs, truth, tolerance.by_output)
    cover = tuple(cover_in_turn(model, ["openvino"]))
    with TrialBench(model, [sample], tolerance.value, tmp_path) as bench:
        race = Race(bench)
        found = race.try_cover(Contender(name="openvino", kind="whole-model", cover=cover))
    assert found.reason is not None
    assert found.reason.startswith("wrong numbers in the output 'rows': off by ")
    assert found.reason.endswith(" in int32")


def test_loaders_hold_whole_numbers_to_their_own_bound(imported: Importing, tmp_path: Path) -> None:
    model, inputs = division(imported)
    truth = original_outputs(model, inputs)
    tolerance = run_tolerance(model, RunSettings(), inputs)
    write_module(build_cover(model, cover_in_turn(model, ["onnxruntime"])), tmp_path / "built")
    for name, shift, said in (("y", 0, ""), ("rows", 14, "off by 14 in"), ("y", 1, "is above")):
        stated = truth[name].copy()
        stated[4] += shift
        contents = ArtifactContents(
            inputs=inputs,
            outputs={**truth, name: stated},
            tolerance=tolerance.value,
            by_output=tolerance.by_output,
        )
        out = write_artifact(model, tmp_path / "built", tmp_path / f"out{shift}", contents)
        for loader in ([compile_loader()], [sys.executable, out / "loader/run_artifact.py"]):
            told = subprocess.run([*loader, out], capture_output=True, text=True)
            assert told.returncode == (1 if shift else 0), told.stderr
            assert ("DIFFERS" in told.stdout) == bool(shift)
        if shift:
            with pytest.raises(ArtifactError, match=f"'{name}'.*{said}"):
                run_artifact(out)
        else:
            assert run_artifact(out)["max_abs_error"] == 0.0


# -- after the rounds ------------------------------------------------------------------


def test_outputs_are_compared_after_every_round(tmp_path: Path) -> None:
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    (tmp_path / "s").mkdir()
    truth = original_outputs(model, inputs)
    write_npz(tmp_path / "s" / "inputs.npz", inputs)
    write_npz(tmp_path / "s" / "outputs.npz", truth)
    job = TrialJob()
    write_module(build_cover(model, cover_in_turn(model, ["onnxruntime"])), tmp_path / "built")
    placement = OpenPlacement(
        module=str(tmp_path / "built" / MODULE_FILE),
        samples=(str(tmp_path / "s"),),
        inputs=tuple((name, kind.dtype) for name, kind in model.inputs),
        outputs=tuple((name, kind.dtype) for name, kind in model.outputs),
        bounds=dict.fromkeys(truth, 1e-4),
    )
    job.open(placement)
    once = partial(job.round, warm_s=0.0, seconds=1e-9)  # the call that is timed is compared itself
    assert len(once()) == 1
    wrong = {name: array + np.float32(1) for name, array in truth.items()}
    write_npz(tmp_path / "s" / "outputs.npz", wrong)
    with pytest.raises(ToolchainError, match=r"wrong numbers in the output .* after 4 calls"):
        once()


def test_other_inputs_have_the_same_values_elsewhere() -> None:
    given = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "ids": np.array([[1, 2], [3, 4]]),
        "length": np.array([3, 5]),
    }
    other = turned(given)
    assert other["x"].tolist() == [[5, 4, 3], [2, 1, 0]]
    assert other["ids"] is given["ids"]  # where floats tell two samples apart, indices stay
    del given["x"]
    other = turned(given)
    assert other["ids"].tolist() == [[4, 3], [2, 1]] and other["length"].tolist() == [3, 5]
