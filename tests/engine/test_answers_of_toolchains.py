"""A toolchain that raises or answers nonsense is left out of the catalog, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from collage_engine.candidates.catalog import CandidateCatalog, runtime_facts
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.faults import FaultTracker
from collage_engine.partition.patterns import anything, op
from collage_engine.partition.rules import composite_rules
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance, ToolchainState
from collage_engine.support.errors import UsageError
from collage_engine.toolchains import registry
from tests.example_toolchain.toolchain import ExampleToolchain
from tests.support.toolchain_models import convolutions

NAME = "hostile"


def _raise(*_: Any) -> Any:
    raise ValueError("\x1b]0;title\x07this was never\ngoing to work")


def _exit(*_: Any) -> Any:
    raise SystemExit(3)


class Hostile(ExampleToolchain):
    """The example, but for the methods that a test replaces."""

    about = ExampleToolchain.about.__class__(name=NAME, title="Hostile", licence="MIT")


class Unloadable(Hostile):
    """Its class cannot be made."""

    def __init__(self) -> None:
        raise SystemExit("no licence found")


def _instance(**changes: Any) -> Any:
    return ToolchainInstance(**{"toolchain": NAME, **changes})


ANSWERS: dict[str, tuple[str, Any, str]] = {
    "instances raises": ("instances", _raise, "ValueError: going to work"),
    "instances exits": ("instances", _exit, "SystemExit: 3"),
    "instances is None": ("instances", lambda *_: None, "its instances are None"),
    "instances are words": ("instances", lambda *_: ("a", "b"), "Expected `object`"),
    "an instance of tvm": (
        "instances",
        lambda *_: (_instance(toolchain="tvm"),),
        "an instance of another toolchain",
    ),
    "a configuration that is a number": (
        "instances",
        lambda *_: (_instance(config=5),),
        "Expected `array`",
    ),
    "two instances alike": ("instances", lambda *_: (_instance(),) * 2, "one name"),
    "supports raises": ("supports", _raise, "ValueError: going to work"),
    "supports says yes": ("supports", lambda *_: True, "it says True about an operator"),
    "no rules": ("partition_spec", lambda *_: None, "its partition spec is None"),
    "rules that raise": ("partition_spec", _raise, "ValueError: going to work"),
    "a predicate that raises": (
        "partition_spec",
        lambda *_: composite_rules(
            "hostile", [("hostile.relu", op("nn.relu", anything()), _raise)]
        ),
        "going to work",
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[OpenModel]:
    onnx.save(convolutions(), tmp_path / "model.onnx")
    opened = OpenModel(str(tmp_path / "model.onnx"), {})
    yield opened
    opened.close()


@pytest.fixture
def faults() -> FaultTracker:
    return FaultTracker()


@pytest.fixture
def catalog_with(model: OpenModel, faults: FaultTracker, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes the catalog of a hostile toolchain and of TVM."""

    def catalog(attribute: str = "", value: Any = None, cls: str = "Hostile") -> CandidateCatalog:
        monkeypatch.setitem(registry.TOOLCHAINS, NAME, f"{__name__}:{cls}")
        state = ToolchainState(name=NAME, available=True, version="1", targets=("cpu",))
        monkeypatch.setitem(registry._probed, NAME, state)
        if attribute:
            monkeypatch.setattr(Hostile, attribute, value)
        return model.catalog(RunSettings(toolchains=(NAME, "tvm")), faults=faults)

    registry.get.cache_clear()
    yield catalog
    registry.get.cache_clear()


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_leaves_the_toolchain_out_with_the_reason(
    catalog_with, faults, name
):
    attribute, answer, says = ANSWERS[name]
    catalog = catalog_with(attribute, answer)
    assert set(catalog.instances) == {"tvm"} and catalog.candidates
    (state,) = (state for state in catalog.states if state.name == NAME)
    assert not state.available and says in state.reason, state.reason
    assert state.reason.isprintable() and faults.left_out.keys() == {NAME}


def test_a_class_that_ends_the_process_costs_itself_only(catalog_with, faults):
    catalog = catalog_with(cls="Unloadable")
    assert set(catalog.instances) == {"tvm"}
    assert "cannot be loaded" in faults.left_out[NAME]
    assert "no licence found" in faults.left_out[NAME]


def test_a_reason_of_many_lines_becomes_one(catalog_with):
    catalog = catalog_with("supports", lambda *_: "\n it dances no\n" + "x" * 100_000)
    refusals = catalog.without_candidates[NAME].values()
    assert {(each.kind, each.detail) for each in refusals} == {("judged", "it dances no")}


def test_settings_name_toolchains_that_exist(model):
    """A limit names toolchains that are known, also where the run does not look for them."""
    settings = RunSettings(toolchains=("tvm",), allow_runtimes=("tvm", "openblas"))
    model.catalog(settings)
    for field in ("toolchains", "allow_runtimes"):
        with pytest.raises(UsageError, match="there is no toolchain 'TVM'; known are tvm,"):
            model.catalog(msgspec.structs.replace(settings, **{field: ("TVM",)}))


@pytest.mark.parametrize(
    "libraries",
    [_raise, lambda *_: None, lambda *_: (_library("/nowhere.so"),), lambda *_: (5,)],
    ids=["raises", "none", "no file", "numbers"],
)
def test_libraries_that_are_none_end_no_run(catalog_with, faults, libraries):
    catalog_with("runtime_libraries", libraries)
    assert not any(NAME in fact for fact in runtime_facts([NAME, "tvm"], 8))
    assert not faults.left_out


def _library(file: str) -> RuntimeLibrary:
    return RuntimeLibrary(file=file, name="x.so", toolchain=NAME, version="1", licence="MIT")
