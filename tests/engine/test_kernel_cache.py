"""Compiled kernels are files: hits, misses, damage, folders that cannot be written, eviction."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from collage_engine.lowering import executable
from collage_engine.lowering.build import build_cover
from collage_engine.lowering.compile import Compiled, compile_ahead, has_kernels
from collage_engine.lowering.emit import LoweredParts
from collage_engine.lowering.executable import Executable, compiled_kernels, with_kernel_names
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.virtual_machine import build_target
from collage_engine.machine import processes
from collage_engine.model.importer import import_model
from collage_engine.records.candidate import Candidate
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime import kept_files
from collage_engine.toolchains.runtime.kept_files import (
    digest_of,
    keep_kernel,
    kernel_files,
    read_kernel,
    remove_least_used,
)
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.artifact_cases import MNIST, cover_in_turn


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of kernels."""
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path / "native"))
    monkeypatch.setattr(kept_files, "_not_kept", {})
    return tmp_path / "native"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are compiled from now on, all of them in this process."""
    names: list[str] = []
    compile_ = executable._compile

    def note(name: str, function: Any, target: Any) -> bytes:
        names.append(name)
        return compile_(name, function, target)

    monkeypatch.setattr(executable, "_compile", note)
    monkeypatch.setattr(processes, "allowed_processors", lambda: (0,))
    return names


def scaled(factor: float, size: int = 8, name: str = "A") -> tirx.PrimFunc:
    source = te.placeholder((size,), name=name, dtype="float32")
    result = te.compute((size,), lambda i: source[i] * tirx.const(factor, "float32"), name="B")
    return te.create_prim_func([source, result]).without_attr("global_symbol")


def module_of(*functions: tirx.PrimFunc, name: str = "scale") -> tvm.IRModule:
    """Returns a module whose main applies the functions, one after the other."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    value: Any = x
    with builder.function("main", [x]):
        with builder.dataflow():
            for function in functions:
                kernel = builder.add_func(function, name)
                value = builder.emit(
                    relax.call_tir(kernel, (value,), relax.TensorType((8,), "float32"))
                )
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def run(module: tvm.IRModule) -> np.ndarray:
    machine = relax.VirtualMachine(Executable(module, ""), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(np.arange(8, dtype="float32")))
    values: np.ndarray = result.numpy()
    return values


def times(*factors: float) -> np.ndarray:
    values: np.ndarray = np.arange(8, dtype="float32") * np.prod(factors, dtype="float32")
    return values


def test_a_kernel_is_compiled_once(compiled: list[str]) -> None:
    assert np.array_equal(run(module_of(scaled(3.0))), times(3.0))
    assert len(compiled) == 1
    assert np.array_equal(run(module_of(scaled(3.0, name="other"), name="scale7")), times(3.0))
    assert len(compiled) == 1, "names of variables, and numbers, decide about nothing"
    assert np.array_equal(run(module_of(scaled(3.0), scaled(5.0))), times(15.0))
    assert len(compiled) == 2, "only the new one"


def test_another_target_or_another_compiler_is_another_kernel(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = build_target()
    older = tvm.target.Target({**dict(target.export()), "mcpu": "x86-64-v2"})

    def name(target: Any) -> str:
        return next(iter(with_kernel_names(module_of(scaled(3.0)), target)[1].values()))

    assert name(target) == name(target) != name(older)
    before = name(target)
    monkeypatch.setattr(executable, "_compiler", lambda: "another one")
    assert name(target) != before


@pytest.mark.parametrize("kept", (True, False), ids=("kept", "in a folder that is full"))
def test_all_processors_compile(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str], kept: bool
) -> None:
    if not kept:
        monkeypatch.setattr(kept_files, "keep_kernel", lambda name, code: None)
    monkeypatch.setattr(processes, "allowed_processors", lambda: (0, 1, 2))
    factors = [1.0 + k / 64 for k in range(9)]
    assert np.allclose(run(module_of(*map(scaled, factors))), times(*factors), rtol=1e-6)
    assert compiled == [], "other processes did"
    assert len(list(kernel_files())) == (len(factors) if kept else 0)


def test_what_another_process_fails_at_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "allowed_processors", lambda: (0, 1))
    here = os.getpid()

    def fail(name: str, function: Any, target: Any) -> bytes:
        if os.getpid() != here:
            os._exit(1)
        raise ValueError(f"no code for {name}")

    monkeypatch.setattr(executable, "_compile", fail)
    functions = {"a_1": scaled(2.0), "a_2": scaled(3.0)}
    with pytest.raises(ValueError, match="no code for a_1"):
        compiled_kernels(functions, build_target())


def test_what_is_compiled_ahead_is_there(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str], tmp_path: Path
) -> None:
    model = import_model(MNIST)
    instance = ToolchainInstance(toolchain="tvm", threads=1)
    assert has_kernels(instance) and not has_kernels(ToolchainInstance(toolchain="onnxruntime"))
    groups = [(number,) for number in range(len(model.graph.operators))]
    functions = [partial(function_of, model, instance, group, "one") for group in groups]
    monkeypatch.setattr(processes, "allowed_processors", lambda: (0, 1))

    def fails() -> Function:
        raise ToolchainError("nobody takes it")

    failed, *libraries = compile_ahead([fails, *functions], tmp_path, limit_s=600.0)
    kept = len(list(kernel_files()))
    assert kept > 3 and not failed.exists()
    for make, library in zip(functions, libraries, strict=True):
        function = make()
        shapes = [function.input_type(index).shape for index in function.inputs]
        given = [np.random.default_rng(0).random(shape, np.float32) for shape in shapes]
        with Compiled(function) as anew:
            expected = anew.run(given)
        with monkeypatch.context() as patch:
            patch.setattr(executable, "Executable", None)  # nothing can be built
            with Compiled(function, library) as ready:
                assert all(map(np.array_equal, ready.run(given), expected))
        assert not library.exists()
    assert compiled == [] and len(list(kernel_files())) == kept


def test_work_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "allowed_processors", lambda: (0, 1, 2))

    def work(number: int) -> None:
        if number == 0:
            time.sleep(600.0)
        if number == 1:
            os._exit(1)
        if number == 2:
            raise ValueError("no such work")
        (tmp_path / str(number)).touch()

    processes.on_all_processors(work, 40, limit_s=1.0)
    assert len(list(tmp_path.iterdir())) == 37


def test_a_quota_of_one_processor_leaves_the_work_to_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "allowed_processors", lambda: tuple(range(64)))
    monkeypatch.setattr(processes, "processor_quota", lambda: 0.5)
    processes.on_all_processors(lambda number: (tmp_path / str(number)).touch(), 3)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(processes, "processor_quota", lambda: 1.5)
    processes.on_all_processors(lambda number: (tmp_path / str(os.getpid())).touch(), 3)
    assert 1 <= len(list(tmp_path.iterdir())) <= 2


def test_forked_processes_count_for_what_they_add(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "allowed_processors", lambda: (0, 1, 2, 3))
    held = np.ones(50 << 20, dtype=np.uint8)
    before = processes.tree_private_bytes(os.getpid())
    seen = []

    def work(number: int) -> None:
        own = np.ones(20 << 20, dtype=np.uint8)
        (tmp_path / str(number)).touch()
        time.sleep(60.0 * own[0])

    def look() -> None:
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        seen.append(processes.tree_private_bytes(os.getpid()) - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    processes.on_all_processors(work, 4, limit_s=5.0)
    watcher.join()
    assert held.all() and 60 << 20 < seen[0] < 130 << 20, "four times 20 MiB, not 70 and more"


def test_a_damaged_file_is_compiled_again(compiled: list[str]) -> None:
    run(module_of(scaled(3.0)))
    (file,) = kernel_files()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole[:99] + b"x" + whole[100:]):
        file.write_bytes(damaged)
        compiled.clear()
        assert np.array_equal(run(module_of(scaled(3.0))), times(3.0))
        assert len(compiled) == 1
        assert file.read_bytes() == whole


def test_without_a_folder_that_can_be_written_a_process_compiles_once(
    folder: Path, compiled: list[str]
) -> None:
    folder.write_text("no folder")
    for _ in range(2):
        assert np.array_equal(run(module_of(scaled(3.0))), times(3.0))
    assert len(compiled) == 1
    assert folder.read_text() == "no folder"


def keep(names: Sequence[str], size: int) -> list[Path]:
    """Keeps kernels that were used one after the other, each an hour later."""
    for name in names:
        keep_kernel(digest_of(name), bytes(size))
    files = {file.name: file for file in kernel_files()}
    for hour, name in enumerate(names):
        moment = time.time() - 3600 * (10 + len(names) - hour)
        os.utime(files[digest_of(name)], (moment, moment))
    return [files[digest_of(name)] for name in names]


def test_the_least_recently_used_leave() -> None:
    files = keep("abcdefgh", 1000)
    assert read_kernel(digest_of("a")) == bytes(1000)  # it is the last one used now
    remove_least_used(8 * 1032)
    assert all(file.exists() for file in files), "there is room for all"
    remove_least_used(8 * 1032 - 1)
    assert [file.exists() for file in files] == [True, False, *[True] * 6]
    remove_least_used(3 * 1032)
    assert [file.exists() for file in files] == [True, *[False] * 5, *[True] * 2]
    remove_least_used(0)
    assert not list(kernel_files())


def test_the_first_write_of_a_process_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    files = keep("abcd", 1000)
    monkeypatch.setattr(kept_files, "MOST_BYTES", 4 * 1032)
    monkeypatch.setattr(kept_files, "_looked", [])
    keep_kernel(digest_of("e"), bytes(1000))
    assert [file.exists() for file in files] == [False, True, True, True]


def test_partitions_of_earlier_covers_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, names = import_model(MNIST), list[str]()
    lower = TvmToolchain.lower

    def note(self: TvmToolchain, function: Function) -> Any:
        names.append(function.symbol)
        return lower(self, function)

    monkeypatch.setattr(TvmToolchain, "lower", note)
    halves = cover_in_turn(model, ["tvm", "tvm"])
    mixed = [halves[0], cover_in_turn(model, ["tvm", "onnxruntime"])[1]]
    lowered = LoweredParts()
    inputs = [tvm.runtime.tensor(array) for array in model.random_inputs(0).values()]

    def outputs(cover: list[Candidate]) -> np.ndarray:
        executable = build_cover(model, cover, lowered=lowered).executable
        values: np.ndarray = relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs).numpy()
        return values

    first = outputs(halves)
    assert np.array_equal(outputs(halves), first)
    assert np.allclose(outputs(mixed), first, rtol=1e-4, atol=1e-4)
    assert len(names) == 2
