"""Bad input of every kind, through the command line: each gets a sentence that says what to do.

One line on standard error that names the file, the node or the option; the exit status; no stack
trace; nothing half-written.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

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


def model_of(*nodes: onnx.NodeProto, sizes=(1, 8, 1), more=()) -> onnx.ModelProto:
    def value(name: str, kind=TensorProto.FLOAT, shape=sizes):
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [value("x"), *(value(*extra) for extra in more)]
    graph = helper.make_graph(list(nodes), "bad", inputs, [value("y", shape=None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# -- models ------------------------------------------------------------------------------


def test_not_an_onnx_file(here, refused):
    (here / "notes.onnx").write_text("these are notes\n" * 9)
    assert "notes.onnx is not an ONNX file" in refused("place", "notes.onnx", "-o", "o", status=1)


def test_no_file(refused):
    assert "gone.onnx" in refused("place", "gone.onnx", "-o", "o", status=2)


def test_truncated(here, refused):
    whole = zoo.mnist().SerializeToString()
    (here / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    assert "cut.onnx is not an ONNX file, or only a part of one" in refused(
        "place", "cut.onnx", "-o", "o", status=1
    )


def test_external_data_missing(here, refused):
    onnx.save(zoo.mnist(), "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=9)
    (here / "w.bin").unlink()
    said = refused("place", "m.onnx", "-o", "o", status=1)
    assert "w.bin" in said and "missing" in said


def test_an_operator_that_nobody_knows(here, refused):
    node = helper.make_node("Spectrum", ["x"], ["y"], name="spectrum", domain="com.acme")
    model = model_of(node)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    save(model, here / "m.onnx")
    said = refused("place", "m.onnx", "-o", "o", status=1)
    assert "Spectrum of com.acme" in said and "'spectrum'" in said and "m.onnx" in said


def test_a_loop_whose_number_of_turns_depends_on_the_data(here, refused):
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    ok = helper.make_tensor_value_info("ok", TensorProto.BOOL, ())
    relu = helper.make_node("Relu", ["x"], ["b"])
    turn = helper.make_tensor_value_info("turn", TensorProto.INT64, ())
    go = helper.make_tensor_value_info("go", TensorProto.BOOL, ())
    on = helper.make_node("Identity", ["go"], ["ok"])
    body = helper.make_graph([on, relu], "body", [turn, go], [ok, out])
    node = helper.make_node("Loop", ["", "c"], ["y"], name="choice", body=body)
    save(model_of(node, more=[("c", TensorProto.BOOL, ())]), here / "m.onnx")
    said = refused("place", "m.onnx", "-o", "o", status=1)
    assert "how often the loop 'choice' turns depends on the data" in said


def test_dynamic_shapes_without_sizes(here, refused):
    save(zoo.build("dynamic_batch"), here / "m.onnx")
    assert "--shape image=1,3,8,8" in refused("place", "m.onnx", "-o", "o", status=1)
    said = refused("place", "m.onnx", "-o", "o", "--shape", "picture=1,3,8,8", status=2)
    assert "--shape picture" in said and "'image'" in said


def test_no_toolchain_for_a_node(here, refused):
    save(zoo.build("several"), here / "m.onnx")
    said = refused("place", "m.onnx", "-o", "o", "--toolchains", "onednn", status=1)
    assert "'argmax_1' (ArgMax)" in said and "oneDNN has no ArgMax" in said


# -- pins --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        ("expp=tvm", "matches no node of the model; near are exp"),
        ("exp=tvn", "there is no toolchain 'tvn'; known are tvm, onnxruntime, onednn"),
        ("exp", "is not a pin: write 'GLOB[,GLOB]=WHAT'"),
    ],
)
def test_wrong_pins(here, refused, pin, says):
    save(zoo.build("tiny"), here / "m.onnx")
    said = refused("place", "m.onnx", "-o", "o", "--pin", pin, status=2)
    assert repr(pin) in said and says in said


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        (["exp=tvm", "exp=!tvm"], "the pins 'exp=tvm' and 'exp=!tvm' cannot hold together"),
        (["exp=@gpu"], "there is only cpu"),
        (["relu,add=exactly"], "'relu,add=exactly' cannot be honoured"),
        (["exp=onednn"], "onednn is not among the toolchains of this run (tvm, "),
    ],
)
def test_pins_that_cannot_be(here, refused, pins, says):
    save(zoo.build("tiny"), here / "m.onnx")
    options = [word for pin in pins for word in ("--pin", pin)]
    said = refused(
        "place", "m.onnx", "-o", "o", "--toolchains", "tvm,onnxruntime", *options, status=1
    )
    assert says in said


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
        (["--toolchains", "cudmm"], "--toolchains: there is no toolchain 'cudmm'"),
        (["--toolchains", ","], "name at least one"),
        (["--threads", "none"], "'none' is no positive whole number"),
        (["--budget", "soon"], "'soon' is no duration: write 90s, 10m or 1h"),
        (["--tune-budget", "-1s"], "--tune-budget"),
        (["--tolerance", "0"], "'0' is no positive number"),
        (["--tolerance", "nan"], "'nan' is no positive number"),
        (["--shape", "x"], "'x' is no shape: write NAME=1,3,224,224"),
        (["--shape", "x=1,0"], "is fixed to"),
        (["--shape", "x=1", "--shape", "x=2"], "two different shapes for the input 'x'"),
        (["--shape", "x=99999999999,99999999999"], "larger than any memory"),
        (["--tolerance", "2"], "'2' is no bound on a relative error: write 0.01 for 1 %"),
        (["--precision", "float8"], "invalid choice: 'float8'"),
        (["--precision", "int8"], "--precision int8: the model has no QuantizeLinear"),
        (["--target", "toaster"], "--target toaster"),
        (["--inputs", "gone.npz"], "--inputs gone.npz: No such file"),
        (["--inputs", "m.onnx"], "--inputs m.onnx is no .npz file"),
        (["--placement", "gone.json"], "--placement gone.json: No such file"),
        (["--placement", "m.onnx"], "--placement m.onnx is no JSON"),
        (["--session", "none/s.collage"], "there is no folder none"),
        (["--session", "m.onnx"], "would overwrite a file"),
        (["--nonsense"], "there is no option --nonsense"),
        (
            ["--thread", "1", "--treads", "2"],
            "there is no option --treads (did you mean --threads?)",
        ),
    ],
)
def test_wrong_options_of_place(here, refused, options, says):
    path = save(zoo.build("tiny"), here / "m.onnx")
    before = path.read_bytes()
    assert says in refused("place", "m.onnx", "-o", "o", *options, status=2)
    assert path.read_bytes() == before


def test_inputs_that_do_not_fit(here, refused):
    save(zoo.build("tiny"), here / "m.onnx")
    np.savez("a.npz", x=np.zeros((1, 5), np.float32))
    np.savez("b.npz", y=np.zeros((1, 4), np.float32))
    np.savez("c.npz", x=np.zeros((1, 4), np.float64))
    for file, says in (("a", "[1, 5]"), ("b", "no input 'y'"), ("c", "float64")):
        said = refused(
            "place", "m.onnx", "-o", "o", "--toolchains", "tvm", "--inputs", f"{file}.npz", status=2
        )
        assert says in said


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
        (["explain", "text", "1"], 1, "text is not a Collage session"),
        (["explain", "S", "99"], 2, "there is no node 99: operators are 0…3"),
        (["explain", "S", "rely"], 2, "no node 'rely'; near are relu"),
        (["compare", "S", "last", "first"], 2, "there is no run 'first'; runs are r"),
        (["export", "S", "-o", "full"], 1, "full is not empty"),
        (["export", "S", "-o", "o", "--run", "first"], 2, "there is no run 'first'"),
        (
            ["report", "S", "-o", "r.pdf"],
            2,
            "must end in .html, .md, .csv, .shapes.csv",
        ),
        (["report", "S", "-o", "none/r.html"], 1, "cannot write none/r.html"),
        (["run", "gone"], 2, "gone is not a folder"),
        (["run", "full"], 1, "full is no artifact"),
        (["candidates", "text"], 1, "text is not an ONNX file"),
        (["search", "gone.json"], 2, "gone.json"),
        (["search", "text"], 2, "JSON"),
        (["store", "import", "gone"], 1, "gone"),
        (["store", "import", "text"], 1, "no export of a measurement store"),
        (["store", "export", "none/x"], 1, "none/x cannot be written"),
        (["store"], 2, "ACTION"),
        ([], 2, "COMMAND"),
        (["plaice"], 2, "invalid choice: 'plaice'"),
    ],
)
def test_the_other_commands(here, refused, session, arguments, status, says):
    (here / "text").write_text("nothing of use\n" * 40)
    (here / "full").mkdir()
    (here / "full" / "x").touch()
    arguments = [str(session) if a == "S" else a for a in arguments]
    assert says in refused(*arguments, status=status)


# -- sessions of other versions ----------------------------------------------------------


def test_a_session_of_another_version_is_one_sentence_and_stays(here, session, refused):
    copy = here / "other.collage"
    shutil.copyfile(session, copy)
    with sqlite3.connect(copy) as db:
        db.execute("update meta set value = '99' where key = 'format'")
    db.close()
    before = copy.read_bytes()
    assert "session format 99" in refused("explain", "other.collage", "0", status=1)
    save(zoo.build("tiny"), here / "m.onnx")
    said = refused("place", "m.onnx", "-o", "o", "--session", "other.collage", status=2)
    assert "--session: the session would overwrite a file" in said
    assert copy.read_bytes() == before


def test_a_working_folder_that_is_gone_is_one_sentence(session, tmp_path, monkeypatch, capfd):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["place", str(session.parent / "tiny.onnx"), "-o", "out"]) == 1
    assert "the current folder does not exist any more" in capfd.readouterr().err


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


def test_a_session_on_a_full_disk_keeps_the_old_one(session, full_disk):
    from collage_engine.records.errors import SessionError
    from collage_engine.session.file import load_session, save_session

    before = session.read_bytes()
    document = load_session(session)
    full_disk()
    with pytest.raises(SessionError, match="No space left on device"):
        save_session(document, session)
    assert session.read_bytes() == before
    assert sorted(p.name for p in session.parent.iterdir()) == ["out", "s.collage", "tiny.onnx"]


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


def test_a_full_disk_under_the_whole_run(cache, session, tmp_path):
    """A small file system for the artifact: what was there stays, nothing half is left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        out = disk / "out"
        done = collage(
            f"place {session.parent / 'tiny.onnx'} -o {out}",
            *("--toolchains", "tvm", "--session", disk / "s.collage"),
            *("--budget", "5s", "--threads", "1"),
            cache=cache,
        )
        assert done.returncode == 1
        said = done.stderr.strip().splitlines()
        assert any(str(out) in line and "No space left" in line for line in said), said
        assert "Traceback" not in done.stderr
        assert not out.exists()
        assert not list(disk.iterdir())
        exported = collage(f"export {session} -o {disk / 'again'}", cache=cache)
        assert exported.returncode == 1 and "No space left" in exported.stderr
        assert not (disk / "again").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_store_that_cannot_be_written(cache, session, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    done = collage(f"store import {session}", cache=blocked / "cache")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


# -- toolchains and streams --------------------------------------------------------------

CRASHING = """
import os, sys
class Bad:
    def __init__(self): os.kill(os.getpid(), 11)
"""


def test_a_toolchain_that_crashes_on_load_costs_itself_only(cache, session, tmp_path):
    """Its class kills the process that loads it; the others work, and a placement is made."""
    (tmp_path / "bad_toolchain.py").write_text(CRASHING)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "import collage_engine.toolchains.registry as r\n"
        "r.TOOLCHAINS['bad'] = 'bad_toolchain:Bad'\n"
        "r._probe_command = lambda name: [sys.executable, '-c',\n"
        "    'import sys; from collage_engine.toolchains import registry; '\n"
        "    'registry._main(sys.argv[1])', name]\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    listed = collage("toolchains --json", cache=cache, PYTHONPATH=path)
    assert listed.returncode == 0, listed.stderr
    states = {t["name"]: t for t in json.loads(listed.stdout)["toolchains"]}
    assert not states["bad"]["available"]
    assert "crashed when loaded" in states["bad"]["reason"]
    assert states["tvm"]["available"] and states["onnxruntime"]["available"]
    for state in states.values():
        assert set(state) >= {"name", "version", "available", "reason", "install", "devices"}
    model = session.parent / "tiny.onnx"
    asked = collage(
        f"place {model} -o {tmp_path / 'o'} --toolchains bad,tvm",
        cache=cache,
        PYTHONPATH=path,
    )
    assert asked.returncode == 1
    assert "toolchain bad is not available here: it crashed when loaded" in asked.stderr
    placed = collage(f"candidates {model}", cache=cache, PYTHONPATH=path)
    assert placed.returncode == 0, placed.stderr
    assert "tvm" in placed.stdout


def test_output_into_a_closed_pipe_and_a_plain_terminal(cache, session):
    model = session.parent / "tiny.onnx"
    command = f"{sys.executable} -m collage_engine candidates {model} | head -1"
    environment = {**os.environ, "COLLAGE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert piped.stdout.startswith("toolchain") and "Error" not in piped.stderr
    plain = collage(f"explain {session} 0", cache=cache, PYTHONIOENCODING="ascii")
    assert plain.returncode == 0, plain.stderr
    assert "relu" in plain.stdout and "\x1b" not in plain.stdout
