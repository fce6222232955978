"""Bad input of every kind, through the command line: each gets a sentence that says what to do.

One line on standard error that names the file, the node or the option; the exit status; no stack
trace; nothing half-written.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from collage_engine.cli.main import main
from tests import zoo
from tests.support.caches import fresh_cache
from tests.support.command import collage
from tests.support.json_schemas import assert_fits
from tests.support.kept_children import kept_children

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return fresh_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def here(tmp_path, monkeypatch, cache) -> Path:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(cache))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def one_engine() -> Iterator[None]:
    with kept_children():
        yield


@pytest.fixture
def refused(here, capfd, one_engine):
    """Run the command line in a folder; what it says when it refuses, as one line."""

    def run(*arguments: str, status: int) -> str:
        before = sorted(p.relative_to(here) for p in here.rglob("*"))
        try:
            ended = main([str(a) for a in arguments])
        except SystemExit as error:  # argparse
            ended = int(error.code or 0)
        said = capfd.readouterr().err.strip().splitlines()
        assert ended == status, said
        assert not any("Traceback" in line for line in said)
        assert said[-1].startswith("collage"), said
        after = sorted(p.relative_to(here) for p in here.rglob("*"))
        assert after == before, "something was written"
        return said[-1]

    return run


@pytest.fixture(scope="module")
def session(tmp_path_factory, cache) -> Path:
    """A session with one run of a tiny model."""
    folder = tmp_path_factory.mktemp("session")
    onnx.save(zoo.build("tiny"), folder / "tiny.onnx")
    done = collage(
        f"place {folder / 'tiny.onnx'} -o {folder / 'out'} --budget 5s "
        f"--threads 1 --toolchains tvm --session {folder / 's.collage'}",
        cache=cache,
    )
    assert done.returncode == 0, done.stderr
    return folder / "s.collage"


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


# -- models ------------------------------------------------------------------------------


def test_not_an_onnx_file(here, refused):
    (here / "notes.onnx").write_text("these are notes\n" * 9)
    assert "notes.onnx is not an ONNX file" in refused("place", "notes.onnx", "-o", "o", status=1)


def test_no_file(refused):
    assert "gone.onnx" in refused("place", "gone.onnx", "-o", "o", status=2)


def test_no_toolchain_for_a_node(here, refused):
    save(zoo.build("several"), here / "m.onnx")
    said = refused("place", "m.onnx", "-o", "o", "--toolchains", "onednn", status=1)
    assert "'argmax_1' (ArgMax)" in said and "oneDNN has no ArgMax" in said


@pytest.mark.parametrize(
    ("options", "details", "says"),
    [
        (
            ["--pin", "relu32=tvm", "--pin", "relu32=!tvm"],
            {"pins": ["relu32=tvm", "relu32=!tvm"]},
            "relu32",
        ),
        (
            ["--allow-runtimes", "tvm", "--pin", "*=onednn"],
            {"constraints": ["allow"], "pins": ["*=onednn"]},
            "only the runtimes tvm",
        ),
    ],
)
def test_what_cannot_be_honoured_is_in_the_document(
    here, capfd, one_engine, options, details, says
):
    save(zoo.mnist(), here / "m.onnx")
    assert main(["place", "m.onnx", "-o", "o", "--json", *options]) == 1
    told = capfd.readouterr()
    document = json.loads(told.out)
    assert_fits("place", "infeasible", document)
    infeasible = document["infeasible"]
    assert {name: infeasible[name] for name in details} == details
    assert says in told.err and not (here / "o").exists()


# -- options and files -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--toolchains", ","], "name at least one"),
        (["--tune-budget", "-1s"], "--tune-budget"),
        (["--tolerance", "0"], "tolerance: Expected `float` > 0.0"),
        (["--shape", "x=1", "--shape", "x=2"], "two different values for 'x'"),
        (["--shape", "x=99999999999,99999999999"], "larger than any memory"),
        (["--tolerance", "2"], "tolerance: Expected `float` < 1.0"),
        (["--precision", "int8"], "--precision int8: the model has no QuantizeLinear"),
        (["--target", "gpu"], "--target gpu: known targets are"),
        (["--inputs", "gone.npz"], "--inputs gone.npz: No such file"),
        (["--session", "none/s.collage"], "there is no folder none"),
        (["--session", "m.onnx"], "would overwrite a file"),
        (["--objective", "throughput", "--dim", "batch=1,2"], "one shape at a time"),
        (["--nonsense"], "collage place: unrecognized arguments: --nonsense (collage place --help"),
    ],
)
def test_wrong_options_of_place(here, refused, options, says):
    path = save(zoo.build("tiny"), here / "m.onnx")
    before = path.read_bytes()
    assert says in refused("place", "m.onnx", "-o", "o", *options, status=2)
    assert path.read_bytes() == before


def test_an_output_folder_that_is_not_ours(here, refused):
    save(zoo.build("tiny"), here / "m.onnx")
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("years of work")
    assert "full is not empty" in refused("place", "m.onnx", "-o", "full", status=1)
    assert "m.onnx is a file" in refused("place", "m.onnx", "-o", "m.onnx", status=1)
    assert (here / "full" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["explain", "gone.collage", "1"], 1, "gone.collage"),
        (["explain", "text", "1"], 1, "text is not a readable Collage session"),
        (["explain", "S", "99"], 2, "there is no node 99: operators are 0…3"),
        (["explain", "S", "rely"], 2, "no node 'rely'; near are relu"),
        (["compare", "S", "last", "first"], 2, "there is no run 'first'; runs are r"),
        (["export", "S", "-o", "full"], 1, "full is not empty"),
        (["export", "S"], 2, "name a folder with -o"),
        (["export", "S", "-o", "o", "--onnxruntime", "none/a.onnx"], 2, "there is no folder none"),
        (["run", "full", "--trace", "none/t.json"], 2, "there is no folder none"),
        (["check", "gone", "--against", "gone", "--junit", "none/j"], 2, "there is no folder none"),
        (["diagnose", "gone", "--runtime", "x", "--session", "none/s"], 2, "is no folder none"),
        (["export", "S", "-o", "o", "--run", "first"], 2, "there is no run 'first'"),
        (
            ["report", "S", "-o", "r.pdf"],
            2,
            "must end in .html, .shapes.csv, .csv",
        ),
        (["report", "S", "-o", "none/r.html"], 2, "none/r.html: there is no folder none"),
        (["run", "gone"], 2, "gone is not a folder"),
        (["run", "full"], 1, "full: it has no manifest.json, so it is no artifact"),
        (["candidates", "text"], 1, "text is not an ONNX file"),
        (["place", "S", "-o", "o"], 1, "is a session, not the model: give the ONNX file"),
        (["search", "gone.json"], 2, "gone.json"),
        (["search", "text"], 2, "JSON"),
        (["store", "import", "gone"], 1, "gone"),
        (["store", "import", "text"], 1, "no export of a measurement store"),
        (["store", "export", "none/x"], 1, "none/x cannot be written"),
        (["store"], 2, "ACTION"),
    ],
)
def test_the_other_commands(here, refused, session, arguments, status, says):
    (here / "text").write_text("nothing of use\n" * 40)
    (here / "full").mkdir()
    (here / "full" / "x").touch()
    arguments = [str(session) if a == "S" else a for a in arguments]
    assert says in refused(*arguments, status=status)


# -- a full disk -------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch):
    """From now on, nothing that is written in Python fits."""

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill() -> None:
        monkeypatch.setattr(Path, "write_bytes", no_room)
        monkeypatch.setattr(os, "replace", no_room)

    return fill


@pytest.mark.parametrize("kind", ["html", "csv", "json", "svg", "graphml"])
def test_a_report_on_a_full_disk(refused, session, full_disk, kind):
    full_disk()
    said = refused("report", session, "-o", f"r.{kind}", status=1)
    assert f"r.{kind}" in said and "No space left on device" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["toolchains", "--json"], ["store", "info"]])
def test_standard_output_on_a_full_disk(cache, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "collage_engine", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=280,
            cwd=ROOT,
            env={**os.environ, "COLLAGE_CACHE_DIR": str(cache)},
        )
    assert done.returncode == 1
    assert done.stderr.strip() == "collage: No space left on device"


# -- toolchains and streams --------------------------------------------------------------


def test_output_into_a_closed_pipe_and_a_plain_terminal(cache, session):
    model = session.parent / "tiny.onnx"
    command = f"{sys.executable} -m collage_engine candidates {model} | head -1"
    environment = {**os.environ, "COLLAGE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert piped.stdout.startswith("toolchain") and "Error" not in piped.stderr
    plain = collage(f"explain {session} 0", cache=cache, PYTHONIOENCODING="ascii")
    assert plain.returncode == 0, plain.stderr
    assert "relu" in plain.stdout and "\x1b" not in plain.stdout
