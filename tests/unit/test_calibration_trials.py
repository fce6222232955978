"""Looking into covers: times at the reference's speed, what fails, what is between partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.build.built import BuiltModule, Kernel, Part
from collage_engine.control.run_control import RunControl
from collage_engine.records.candidate import CoverPart
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.records.precision import in_bfloat16
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials import calibration as in_place
from collage_engine.trials.calibration import Looked, RunCovers
from collage_engine.trials.contender import ContenderResult, Sample
from collage_engine.trials.trial_job import KernelTime

LIB = ToolchainInstance(toolchain="lib")
TVM = ToolchainInstance(toolchain="tvm")


def cover(*instances: ToolchainInstance) -> tuple[CoverPart, ...]:
    return tuple(CoverPart(one, (at,)) for at, one in enumerate(instances))


class Field:
    """A field without children: every kernel takes 10 µs times the machine's slowness."""

    def __init__(self) -> None:
        self.tolerance = 0.0
        self.tolerances: list[float] = []
        self.workers: dict[int, Any] = {}
        self.closed: list[str] = []
        self.slow: Iterator[float] | None = None
        self.ending: dict[str, Exception] = {}
        """By name of a cover: what profiling it raises."""
        self.views: set[tuple[int, ...]] = set()
        """Partitions without a kernel."""

    def build_one(self, _: object, number: int, outcome: ContenderResult, *__: object) -> None:
        parts = outcome.contender.cover
        if not parts:
            outcome.reason = "it does not build"
            return
        outcome.built = BuiltModule(
            parts=tuple(Part(instance=p.instance, operators=p.operators) for p in parts),
            kernels=tuple(
                Kernel(name=f"k{at}", part=at)
                for at, p in enumerate(parts)
                if p.operators not in self.views
            ),
            libraries=(),
            environment={},
            threads=1,
            spin=False,
        )

    def open(self, outcome: ContenderResult) -> None:
        self.tolerances.append(self.tolerance)
        name = outcome.contender.name
        self.workers[id(outcome)] = SimpleNamespace(close=lambda: self.closed.append(name))

    def leave(self, outcome: ContenderResult) -> None:
        self.workers.pop(id(outcome)).close()

    def profile(self, outcome: ContenderResult, _: int) -> list[KernelTime]:
        error = self.ending.get(outcome.contender.name)
        if error is not None:
            raise error
        slow = next(self.slow) if self.slow is not None else 1.0
        assert outcome.built is not None
        calls = [KernelTime(kernel=k.name, us=10.0 * slow) for k in outcome.built.kernels]
        return [
            *calls[:1],
            KernelTime(kernel="to_nhwc", us=4.0 * slow),
            KernelTime(kernel="vm.builtin.alloc_storage", us=9.0),
            *calls[1:],
        ]

    def close(self) -> None:
        self.closed.append("field")


@pytest.fixture
def field(monkeypatch: pytest.MonkeyPatch) -> Field:
    made = Field()
    monkeypatch.setattr(in_place, "Field", lambda *_: made)
    monkeypatch.setattr(
        in_place, "Worker", lambda *_, **__: SimpleNamespace(close=lambda: made.closed.append("b"))
    )
    return made


def run_covers() -> RunCovers:
    model: Any = SimpleNamespace(record=SimpleNamespace(path="model.onnx", shapes={}))
    return RunCovers(model, Sample({}, {}), 1e-4, Path("nowhere"), RunControl())


def test_partitions_and_what_is_between_them_are_told_apart(field: Field) -> None:
    with run_covers() as covers:
        seen = covers.look(cover(LIB, TVM))
    assert seen == Looked(parts={("lib", (0,)): 10.0, ("tvm", (1,)): 10.0}, between_us=4.0)
    assert field.closed == ["b", "field"]  # the reference stays until the end


def test_times_are_those_at_the_references_first_speed(field: Field) -> None:
    with run_covers() as covers:
        covers.look(cover(LIB))
        # The machine slows down, more and more; the reference is profiled before each pass.
        field.slow = iter([1.5, 1.5, 2.0, 2.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0])
        seen = covers.look(cover(LIB, TVM))
    assert isinstance(seen, Looked)
    assert seen.parts == pytest.approx({("lib", (0,)): 10.0, ("tvm", (1,)): 10.0})
    assert seen.between_us == pytest.approx(4.0)
    assert field.closed == ["cover 2", "b", "field"]


def test_partitions_without_a_kernel_take_nothing(field: Field) -> None:
    field.views = {(1,)}
    with run_covers() as covers:
        seen = covers.look(cover(LIB, TVM))
    assert isinstance(seen, Looked)
    assert seen.parts == {("lib", (0,)): 10.0, ("tvm", (1,)): 0.0}


def test_a_cover_of_views_only_is_no_reference_to_divide_by(field: Field) -> None:
    field.views = {(0,)}
    with run_covers() as covers:
        assert covers.look(cover(TVM)) == Looked(parts={("tvm", (0,)): 0.0}, between_us=4.0)
        field.profile = lambda *_: []  # type: ignore[method-assign]
        assert covers.look(cover(TVM)) == Looked(parts={("tvm", (0,)): 0.0}, between_us=0.0)


def test_what_fails_is_a_reason_and_ends_nothing(field: Field) -> None:
    field.ending["cover 2"] = ToolchainError("the child ended with signal 11")
    with run_covers() as covers:
        assert covers.look(()) == "it does not build"
        assert covers.look(cover(LIB)) == "the child ended with signal 11"
        assert field.closed == ["cover 2"]
        assert isinstance(covers.look(cover(TVM)), Looked)


def test_a_reference_that_fails_is_followed_by_the_next_cover(field: Field) -> None:
    with run_covers() as covers:
        covers.look(cover(LIB))
        field.ending["cover 1"] = ToolchainError("the child is gone")
        assert isinstance(covers.look(cover(LIB, TVM)), Looked)
        assert field.closed == ["cover 1"]
        field.slow = iter([3.0] * 10)
        seen = covers.look(cover(TVM))
    assert isinstance(seen, Looked) and seen.parts[("tvm", (0,))] == pytest.approx(10.0)
    assert field.closed == ["cover 1", "cover 3", "b", "field"]


@pytest.mark.parametrize("which", ["cover 1", "cover 2"])
def test_cancelling_is_no_failure_of_a_cover(field: Field, which: str) -> None:
    with run_covers() as covers:
        covers.look(cover(LIB))
        field.ending[which] = Cancelled("stopped by the user")
        with pytest.raises(Cancelled):
            covers.look(cover(TVM))
    assert field.closed == ["cover 2", "b", "field"]


def test_rounding_does_not_keep_a_cover_from_being_timed_but_nonsense_does(field: Field) -> None:
    with run_covers() as covers:
        covers.look(cover(LIB))
        covers.look(cover(LIB, in_bfloat16(TVM)))
        covers.look(cover(TVM))
    assert field.tolerances == [1e-4, 1.0, 1e-4]
