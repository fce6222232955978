"""The checks of toolchains find what is wrong, and say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from collage_engine.records.toolchain import Target, ToolchainInstance, ToolchainState
from collage_engine.run.conformance import run
from collage_engine.run.conformance.run import Finding, examine
from collage_engine.run.conformance.subject import Subject
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains import registry
from tests.example_toolchain.toolchain import ExampleToolchain
from tests.support.measure_real_targets import Crasher


class Careless(ExampleToolchain):
    """Breaks a promise in nearly every check that needs no child process."""

    about = msgspec.structs.replace(ExampleToolchain.about, colour="purple")

    def probe(self) -> ToolchainState:
        return ToolchainState(name="example", available=False)

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        return super().instances(Target(), precision)

    def supports(self, graph: Any, index: Any, instance: ToolchainInstance) -> str | None:
        reason = super().supports(graph, index, instance)
        return None if reason is None else "no\nreason"

    def runtime_libraries(self) -> Any:
        return [msgspec.structs.replace(self.own_library(), file="/nowhere/libx.so")]


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Subject:
    monkeypatch.setattr(registry, "get", lambda name: Careless())
    subject = Subject("example", tmp_path)
    subject.__dict__["state"] = Careless().probe()
    return subject


@pytest.mark.parametrize(
    "check, said",
    [
        ("about is complete", "'purple' is not of the form #rrggbb"),
        ("probe answers", "gives no reason"),
        ("instances are distinct", "example has 1 threads, the run 2"),
        ("supports gives reasons", "supports() says 'no\\nreason', which is neither None"),
        ("libraries are there", "there is no file /nowhere/libx.so"),
    ],
)
def test_a_broken_promise_is_a_sentence(careless: Subject, check: str, said: str) -> None:
    finding = examine(check, careless)
    assert finding.outcome == "failed"
    assert said in finding.text


class Misspelt(ExampleToolchain):
    """Means to read profiles, and has a method that no capability has."""

    def read_profiles(self) -> None: ...


class Own(ExampleToolchain):
    """Has methods of its own that resemble none."""

    def weights_of(self) -> None: ...


@pytest.mark.parametrize(
    "cls, outcome, said",
    [
        (Misspelt, "failed", "read_profiles, which is nearly read_profile of ReadsProfiles"),
        (Own, "passed", "inside"),
    ],
)
def test_a_method_that_is_nearly_a_capabilitys_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cls: type, outcome: str, said: str
) -> None:
    monkeypatch.setattr(registry, "get", lambda name: cls())
    finding = examine("capabilities are named right", Subject("example", tmp_path))
    assert finding.outcome == outcome and said in finding.text


class NeedsItsPackage(ExampleToolchain):
    """Cannot say what it supports without the package that is missing."""

    def supports(self, graph: Any, index: Any, instance: ToolchainInstance) -> str | None:
        raise ToolchainError("the package is not installed")


@pytest.mark.parametrize("available, outcome", [(False, "skipped"), (True, "failed")])
def test_only_a_toolchain_that_is_not_here_may_need_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, available: bool, outcome: str
) -> None:
    monkeypatch.setattr(registry, "get", lambda name: NeedsItsPackage())
    subject = Subject("example", tmp_path)
    subject.__dict__["state"] = ToolchainState(name="example", available=available)
    finding = examine("supports gives reasons", subject)
    assert (finding.outcome, finding.text) == (outcome, "the package is not installed")


class Wrong(ExampleToolchain):
    """Compiles something else than it is asked for."""

    def plan(self, function: Any) -> tuple[dict[str, Any], bytes]:
        plan, weights = super().plan(function)
        return plan, (np.frombuffer(weights, np.float32) * np.float32(1.1)).tobytes()


def test_wrong_numbers_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "get", lambda name: Wrong())
    subject = Subject("example", tmp_path)
    subject.__dict__["state"] = ToolchainState(name="example", available=True, version="1")
    finding = examine("results are right", subject)
    assert finding.outcome == "failed"
    assert "the outputs are wrong by" in finding.text and "model perceptron" in finding.text


@pytest.mark.parametrize(
    "check, after", [("supports gives reasons", 0), ("libraries are there", 1)]
)
def test_what_rests_on_a_failed_check_is_not_made(
    monkeypatch: pytest.MonkeyPatch, check: str, after: int
) -> None:
    def found(each: str, subject: Subject) -> Finding:
        return Finding(each, "failed" if each == check else "passed", "said")

    monkeypatch.setattr(run, "examine", found)
    told: list[Finding] = []
    run.run_checks("example", told.append)
    made = [finding.check for finding in told]
    assert made == list(run.CHECKS)[: len(made)] and check in made
    assert (made[-1] != check) == bool(after)


def test_a_toolchain_that_cannot_be_loaded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(name: str) -> Any:
        raise ToolchainError("no module named x")

    monkeypatch.setattr(registry, "get", get)
    (finding,) = run.check_toolchain("example", lambda finding: None)
    assert (finding.outcome, finding.text) == ("failed", "no module named x")


def end_the_process(name: str, send: Any) -> None:
    """In place of the checks: the second one ends the child."""
    send(Finding("about is complete", "passed", "fine"))
    Crasher().lower(None)  # type: ignore[arg-type]


def test_a_toolchain_that_ends_the_process_fails_the_check_that_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "JOB", f"{__name__}:end_the_process")
    told: list[Finding] = []
    found = run.check_toolchain("tvm", told.append)
    assert found == told
    assert [finding.outcome for finding in found] == ["passed", "failed"]
    assert found[1].check == "probe answers" and "ended the process" in found[1].text
