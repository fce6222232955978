"""What the user writes on the command line, and what wrong usage gets.

Deployment constraints from the command line to the search.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import zipfile

import numpy as np
import pytest

from collage_engine.candidates.catalog import runtime_facts
from collage_engine.cli.main import main
from collage_engine.cli.options import settings_from, shape
from collage_engine.cli.parser import build_parser
from collage_engine.planning import deployment_limits as limits
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout, ToolchainInstance
from collage_engine.support.errors import UsageError
from collage_engine.support.files import resource
from collage_engine.toolchains import registry
from tests.support.covers import candidate_on
from tests.support.plain_toolchain import PlainToolchain


def test_shapes():
    assert shape("data:0=1,3,224,224") == ("data:0", (1, 3, 224, 224))
    assert shape("texts[0]=2,3") == ("texts[0]", (2, 3))
    for wrong in ("x", "x=", "x=1,a", "=1", "x[]=1,", "=2,0x"):
        with pytest.raises(argparse.ArgumentTypeError):
            shape(wrong)


def place(*more: str) -> argparse.Namespace:
    return build_parser().parse_args(["place", "m.onnx", "-o", "out", *more])


def test_place_options_become_settings(tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"conv1": "tvm"}))
    inputs = tmp_path / "x.npz"
    np.savez(inputs, x=np.zeros(3))
    options = f"""--toolchains 'onednn, tvm' --threads 2 --budget 2m --shape x=1,3
        --placement {mine} --inputs {inputs} --allow-runtimes tvm,onednn --max-runtimes 1
        --max-artifact-size 200M --licences 'Apache-2.0, BSD'"""
    settings = settings_from(place(*shlex.split(options)))
    assert settings.toolchains == ("onednn", "tvm")
    assert (settings.threads, settings.budget_s) == (2, 120.0)
    assert settings.shapes == {"x": (1, 3)}
    assert settings.placements == ({"conv1": "tvm"},)
    assert settings.inputs_npz == inputs.read_bytes()
    assert settings.allow_runtimes == ("tvm", "onednn") and settings.max_runtimes == 1
    assert settings.max_artifact_bytes == 200_000_000
    assert settings.licences == ("Apache-2.0", "BSD")
    assert settings_from(place()) == RunSettings()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "JSON object"),
        (b"[" * 100_000, "JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON object"),
        (b"[1]", "JSON object"),
        (b'{"a": 1}', "JSON object"),
    ],
)
def test_wrong_placement_files_say_what_is_wrong(tmp_path, content, says):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as refused:
        settings_from(place("--placement", str(path)))
    assert str(refused.value).startswith(f"--placement {path}") and len(str(refused.value)) < 600


@pytest.mark.parametrize("option", ["--placement", "--inputs"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, option):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, says in (
        ("folder", "it is a folder" if option == "--placement" else "no test_data_set_"),
        ("pipe", "it is a pipe, socket or device"),
        ("circle", "Too many levels"),
        ("absent", "No such file"),
    ):
        with pytest.raises(UsageError, match=says) as refused:
            settings_from(place(option, str(tmp_path / name)))
        assert str(refused.value).startswith(f"{option} {tmp_path / name}: ")


def archived(*paths) -> dict[str, bytes]:
    """What is sent of the files and folders that are given by ``--inputs``, by its name."""
    options = [word for path in paths for word in ("--inputs", str(path))]
    with zipfile.ZipFile(io.BytesIO(settings_from(place(*options)).inputs_npz)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_inputs_may_be_several_files_and_folders_of_test_data(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3, np.float32))
    for number in (0, 1):
        folder = tmp_path / "data" / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        (folder / "input_0.pb").write_bytes(b"tensor %d" % number)
        (folder / "output_0.pb").write_bytes(b"output %d" % number)
        (folder / "other_0.pb").write_bytes(b"not read")
    assert archived(tmp_path / "a.npz", tmp_path / "data") == {
        "0.npz": (tmp_path / "a.npz").read_bytes(),
        "1/test_data_set_0/input_0.pb": b"tensor 0",
        "1/test_data_set_1/input_0.pb": b"tensor 1",
        "1/test_data_set_0/output_0.pb": b"output 0",
        "1/test_data_set_1/output_0.pb": b"output 1",
    }
    assert list(archived(folder)) == ["0/input_0.pb", "0/output_0.pb"]
    assert list(archived(folder / "input_0.pb")) == ["0/input_0.pb"]


def test_arrays_by_themselves_are_put_into_archives(tmp_path):
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.ones(3, np.float32))
    content = (tmp_path / "x.npy").read_bytes()
    assert archived(tmp_path / "x.npy") == {".npy": content}
    assert archived(tmp_path) == {"x.npy": content, "y.npy": content}


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02}q\x00.", b"x" * 5000])
def test_inputs_that_are_no_archive_are_refused(tmp_path, content):
    path = tmp_path / "i.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"i\.npz is no \.npz file"):
        settings_from(place("--inputs", str(path)))


@pytest.mark.parametrize(
    "arguments",
    [[], ["place"], ["place", "m.onnx"], ["place", "m", "-o", "d", "--threads", "0"], ["nonsense"]],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--help says what it takes" in said


def test_every_equivalent_that_the_page_for_newcomers_names_exists():
    page = resource("coming-from.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row[2])]
    assert len(spans) > 40
    for span in spans:
        words = shlex.split(span)
        if words[0].startswith("--"):
            words = ["collage", "place", "m.onnx", "-o", "out", *words]
        if words[0] == "collage":
            build_parser().parse_args(words[1:])
        else:
            assert span.startswith("collage_engine.load")


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


def test_settings_and_facts_become_constraints(toolchains):
    facts = runtime_facts(toolchains, 100) | {"launch": 0.3, "pair:tvm:ort": 1.0}
    found = limits.runtime_limits(
        RunSettings(max_runtimes=2, max_artifact_bytes=104, licences=("bsd", "Apache-2.0")), facts
    )
    assert found is not None
    assert found.base_bytes == 100 and found.bytes_of(["ort", "dnn"]) == 108
    assert found.licences is not None and "BSD-3-Clause" in found.licences
    assert "MIT" not in found.licences


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
