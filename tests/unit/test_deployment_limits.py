"""Deployment constraints from the command line to the search."""

from __future__ import annotations

import argparse

import pytest

from collage_engine.candidates.catalog import runtime_facts
from collage_engine.cli.options import settings_from
from collage_engine.cli.parser import build_parser
from collage_engine.planning import deployment_limits as limits
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout, ToolchainInstance
from collage_engine.toolchains import registry
from tests.support.covers import candidate_on
from tests.support.plain_toolchain import PlainToolchain


def place(*more: str) -> argparse.Namespace:
    return build_parser().parse_args(["place", "m.onnx", "-o", "out", *more])


def test_options_become_settings():
    settings = settings_from(
        place(
            "--allow-runtimes",
            "tvm,onednn",
            "--max-runtimes",
            "1",
            "--max-artifact-size",
            "200M",
            "--licences",
            "Apache-2.0, BSD",
        )
    )
    assert settings.allow_runtimes == ("tvm", "onednn") and settings.max_runtimes == 1
    assert settings.max_artifact_bytes == 200_000_000
    assert settings.licences == ("Apache-2.0", "BSD")
    assert settings_from(place()) == RunSettings()


@pytest.fixture
def toolchains(monkeypatch, tmp_path):
    """Two toolchains with libraries of 3 and 5 bytes, one without."""

    def library(name, count, licence):
        path = tmp_path / f"lib{name}.so"
        path.write_bytes(b"x" * count)
        return RuntimeLibrary(
            file=str(path), name=path.name, toolchain=name, version="1", licence=licence
        )

    class Licensed(PlainToolchain):
        def __init__(self, name: str, licence: str, *libraries: RuntimeLibrary) -> None:
            self.about = ToolchainAbout(name=name, title=name, licence=licence)
            self.libraries = libraries

        def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
            return self.libraries

    known = {
        "ort": Licensed("ort", "MIT", library("ort", 3, "MIT")),
        "dnn": Licensed("dnn", "", library("dnn", 5, "BSD-3-Clause AND Apache-2.0")),
        "tvm": Licensed("tvm", "Apache-2.0"),
    }
    monkeypatch.setattr(registry, "get", known.__getitem__)
    return tuple(known)


def test_what_runtimes_bring_is_found(toolchains):
    facts = runtime_facts(toolchains, 100)
    assert facts == {
        "weights-bytes": 100.0,
        "runtime-bytes:ort": 3.0,
        "runtime-licence:ort:MIT": 1.0,
        "runtime-bytes:dnn": 5.0,
        "runtime-licence:dnn:BSD-3-Clause": 1.0,
        "runtime-licence:dnn:Apache-2.0": 1.0,
        "runtime-bytes:tvm": 0.0,
        "runtime-licence:tvm:Apache-2.0": 1.0,
    }


def test_settings_and_facts_become_constraints(toolchains):
    facts = runtime_facts(toolchains, 100) | {"launch": 0.3, "pair:tvm:ort": 1.0}
    found = limits.runtime_limits(
        RunSettings(max_runtimes=2, max_artifact_bytes=104, licences=("bsd", "Apache-2.0")), facts
    )
    assert found is not None
    assert found.base_bytes == 100 and found.bytes_of(["ort", "dnn"]) == 108
    assert found.licences is not None and "BSD-3-Clause" in found.licences
    assert "MIT" not in found.licences
    by_library = ToolchainInstance(toolchain="tvm", config=(("library", "dnn"),))
    found = limits.runtime_limits(RunSettings(max_runtimes=1), facts, [by_library])
    assert found is not None and found.needs == {"tvm[library=dnn]": ("tvm", "dnn")}


TWO = "it uses 2 runtimes; at most 1 are allowed"
DNN = "dnn is under {}, which is not allowed"


@pytest.mark.parametrize(
    ("cover", "asked", "says"),
    [
        ("ort ort", {"max_runtimes": 1, "max_artifact_bytes": 104}, ""),
        ("dnn", {}, ""),
        ("ort tvm", {"max_runtimes": 1, "max_artifact_bytes": 104}, TWO),
        (
            "ort dnn",
            {"max_runtimes": 1, "max_artifact_bytes": 104},
            f"{TWO}; it takes 0.000108 MB; at most 0.000104 MB are allowed",
        ),
        (
            "dnn",
            {"licences": ("MIT",)},
            f"{DNN.format('Apache-2.0')}; {DNN.format('BSD-3-Clause')}",
        ),
        (
            "dnn",
            {"licences": ("MIT",), "allow_runtimes": ("tvm",)},
            "it uses dnn, which is not allowed",
        ),
    ],
)
def test_a_baseline_beyond_the_limits_is_barred(toolchains, cover, asked, says):
    found = limits.runtime_limits(RunSettings(**asked), runtime_facts(toolchains, 100))
    parts = [
        candidate_on(ToolchainInstance(toolchain=name), (number,))
        for number, name in enumerate(cover.split())
    ]
    assert limits.export_refusal(parts, found) == (f"beyond the limits: {says}" if says else None)
