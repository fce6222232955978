#!/usr/bin/env python3
"""Has unchanged programs call placements: ``onnxruntime.InferenceSession`` opens them.

    COLLAGE_PLACEMENTS=out1:out2 python -m collage_engine.patch PROGRAM [ARGUMENT …]
    COLLAGE_RECORD=calls.jsonl python -m collage_engine.patch -m MODULE [ARGUMENT …]

``COLLAGE_PLACEMENTS`` lists folders that ``collage place`` or ``export`` wrote. A session for a
model whose file has the SHA-256 of one of them runs that placement; sizes that it does not have,
and whatever a placement cannot answer, go to the session that the program asked for, which is
loaded at the first such call. A placement that is ONNX Runtime alone is the session itself, with
the placement's threads. ``COLLAGE_RECORD`` names a file to which each call of each session
adds a line of JSON: the model's SHA-256, the sizes of its open dimensions, and microseconds.
``collage place --from-calls`` reads it. Without these variables nothing is changed.

For programs that start others, put one line into ``sitecustomize.py`` instead:

    import collage_engine.patch; collage_engine.patch.install()

Where the package is not installed, take the copy that every artifact carries, which needs what its
loader needs: ``python out/loader/patch.py PROGRAM``, or in ``sitecustomize.py``

    import runpy; runpy.run_path("/path/to/out/loader/patch.py")["install"]()
"""

from __future__ import annotations

# Every process of a program imports this: what placements alone need is imported when one opens.
import functools
import importlib.util
import os
import sys
import time
import warnings
import weakref
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

PLACEMENTS, RECORD = "COLLAGE_PLACEMENTS", "COLLAGE_RECORD"
"""Environment variables: folders of artifacts, as PATH lists folders; and a file."""
PACKAGE = "onnxruntime"
"""The package whose sessions are replaced."""
CPUINFO = Path("/proc/cpuinfo")
"""Where Linux says what the processor has."""
SHORT_TYPES = {"float32": "float", "float64": "double"}
"""Element types that ONNX Runtime names otherwise than NumPy."""


class NodeArg(NamedTuple):
    """An input or output, as ``get_inputs`` and ``get_outputs`` of a session describe it."""

    name: str
    type: str
    shape: list[int | str | None]


class Placement:
    """A placement that stands for a session.

    Args:
        folder: The artifact.
        other: Runs the session that the program asked for, at sizes that the artifact has not.
    """

    def __init__(self, folder: Path, other: Any) -> None:
        import threading
        from types import SimpleNamespace

        self.folder = folder
        self.turn = threading.RLock()
        self.model = _loader().load(folder, other=other)
        about = self.model.manifest["model"]
        self.meta = SimpleNamespace(custom_metadata_map=about["metadata"], **about["header"])
        self.inputs = [_node(value, about["sizes"]) for value in self.model.inputs]
        self.outputs = [_node(value, about["sizes"]) for value in self.model.outputs]
        on_host = self.model.manifest["device"] == "cpu"
        self.providers = [*([] if on_host else ["CUDAExecutionProvider"]), "CPUExecutionProvider"]
        self.has_texts = any(value.dtype == "string" for value in self.model.outputs)
        self.has_warned = False

    def run(self, wanted: Any, feeds: Any) -> list[Any]:
        """Run on inputs by name; texts are objects, as sessions return them."""
        outputs: list[Any] = self.model.run(wanted or None, feeds)
        if self.has_texts:
            return [
                output.astype(object) if output.dtype.kind in "SU" else output for output in outputs
            ]
        return outputs


def _node(value: Any, sizes: dict[str, Any]) -> NodeArg:
    """Describe an input or output, with the sizes that the model's file leaves open."""
    shape = list(sizes.get(value.name, value.shape or ()))
    return NodeArg(value.name, f"tensor({SHORT_TYPES.get(value.dtype, value.dtype)})", shape)


def _loader() -> Any:
    """Return the artifacts' loader, which lies beside this file or in the package."""
    here = Path(__file__).resolve().parent
    places = (here / "run_artifact.py", here / "machine" / "loader" / "run_artifact.py")
    name = "collage_run_artifact"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, next(filter(Path.is_file, places)))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@functools.cache
def _listed() -> dict[str, Path]:
    """Return the artifacts that the environment lists, by the SHA-256 of their model's file.

    Raises:
        ValueError: One is no artifact.
    """
    folders: dict[str, Path] = {}
    for name in filter(None, os.environ.get(PLACEMENTS, "").split(os.pathsep)):
        folder = Path(name).resolve()
        try:
            loader = _loader()
            manifest = loader.manifest_of(folder)
            about = manifest["model"]
            if any(value.name.endswith("]") for value in loader.values_of(manifest, "inputs")):
                raise ValueError("it takes sequences of tensors, which sessions take otherwise")
        except ValueError as error:
            raise ValueError(f"{PLACEMENTS}: {folder}: {error}") from None
        folders.setdefault(about["sha256"], folder)
    return folders


def _digest(path_or_bytes: Any) -> str:
    """Return the SHA-256 of a model's file; empty: it is none."""
    import hashlib

    if isinstance(path_or_bytes, bytes):
        return hashlib.sha256(path_or_bytes).hexdigest()
    try:
        with Path(os.fspath(path_or_bytes)).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, TypeError):  # the session has its own words for that
        return ""


def _session_threads(folder: Path) -> int | None:
    """Return the threads of a session that is a placement by itself; None: it is none.

    It is one where the placement is ONNX Runtime alone, of the version that the program has: a
    copy of it would cost memory, a start and some microseconds a call, and gain nothing.
    """
    import onnxruntime

    manifest = _loader().manifest_of(folder)
    same = manifest.get("versions", {}).get(PACKAGE) == onnxruntime.__version__
    # Without VNNI its sums of int8 saturate, and the copy is told to compute exactly.
    if not same or not _loader().is_session(manifest) or "vnni" not in CPUINFO.read_text():
        return None
    threads: int = manifest["threads"]
    return threads


class Recorder:
    """Adds a line to a file for each call of a session.

    Args:
        file: The file.
        digest: The SHA-256 of the model's file.
        inputs: The session's inputs, whose open sizes have names.
    """

    def __init__(self, file: str, digest: str, inputs: Any) -> None:
        self._digest = digest
        self._shapes = [(value.name, list(value.shape)) for value in inputs]
        # Lines are written whole, so that several processes may add to the file.
        self._stream = Path(file).open("a", buffering=1)  # noqa: SIM115  # as long as the session

    def note(self, feeds: Any, seconds: float) -> None:
        """Add a call: sizes by dimension, or all sizes of an input with an unnamed one."""
        import json

        import numpy as np

        dims: dict[str, int] = {}
        whole: dict[str, list[int]] = {}
        for name, sizes in self._shapes:
            shape = list(np.shape(feeds[name])) if name in feeds else sizes
            named = [pair for pair in zip(sizes, shape, strict=False) if isinstance(pair[0], str)]
            together = {*dims.items(), *named}
            # Some files give all open sizes one name, "?".
            are_names = len(dict(together)) == len(together)
            if are_names and None not in sizes and len(sizes) == len(shape):
                dims.update(named)
            else:
                whole[name] = shape
        line = {"model": self._digest, "dims": dims, "shapes": whole, "us": seconds * 1e6}
        self._stream.write(json.dumps(line) + "\n")


_UNKNOWN: Any = object
"""Stands for the class of sessions, which follows ``_Opening`` among the bases of what it makes."""


class _Opening(_UNKNOWN):  # type: ignore[misc]
    """What replaces a class of sessions has before that class itself: see ``_replace``.

    A session without a placement and a recorder is the original in all that it does; others become
    of the classes ``placed`` and ``recorded``.
    """

    placed: type
    recorded: type
    _recorder: Recorder
    _placement: Placement
    _arguments: tuple[Any, Any] | None
    """Those of a session that is loaded when the placement lacks something."""

    def __init__(self, path_or_bytes: Any, *more: Any, **named: Any) -> None:
        digest = _digest(path_or_bytes)
        folder = _listed().get(digest)
        threads = None if folder is None else _session_threads(folder)
        if threads is not None:
            self._open_with(threads, path_or_bytes, *more, **named)
        elif folder is None:
            super().__init__(path_or_bytes, *more, **named)
        else:
            own: Any = weakref.ref(self)  # the placement keeps no session
            self._arguments = (path_or_bytes, *more), named
            self._placement = Placement(folder, lambda feeds: own()._run_session(feeds))
            self.__class__ = self.placed
        if digest and os.environ.get(RECORD):
            self._recorder = Recorder(os.environ[RECORD], digest, self.get_inputs())
            self.__class__ = self.recorded

    def _open_with(
        self, threads: int, path_or_bytes: Any, sess_options: Any = None, *more: Any, **named: Any
    ) -> None:
        """Open the session that the program asked for, with another number of threads."""
        import onnxruntime

        options = sess_options or onnxruntime.SessionOptions()
        own, options.intra_op_num_threads = options.intra_op_num_threads, threads
        try:
            super().__init__(path_or_bytes, options, *more, **named)
        finally:
            options.intra_op_num_threads = own  # the program may open others with them


class _Placed(_Opening):
    """What a session with a placement has before the class that it was opened as."""

    def __getattr__(self, name: str) -> Any:
        """Load the session that the program asked for, where a placement lacks something."""
        with self._placement.turn:
            arguments, self._arguments = self._arguments, None
            if arguments is not None:
                try:
                    super(_Opening, self).__init__(*arguments[0], **arguments[1])
                except BaseException:
                    self._arguments = arguments
                    raise
        return object.__getattribute__(self, name)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """Run the placement; where inputs or names do not fit, the session, which may say why."""
        placed = self._placement
        try:
            return placed.run(output_names, input_feed)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, _loader().Damaged):  # an entry, which is loaded only now
                raise
            outputs = super().run(output_names, input_feed, run_options)
            if not placed.has_warned:
                placed.has_warned = True
                warnings.warn(
                    f"a call does not fit {placed.folder} and ran without the placement: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return outputs

    def _run_session(self, feeds: Any) -> Any:
        """Run the session that the program asked for."""
        return super().run(None, feeds)

    def get_inputs(self) -> Any:
        return self._placement.inputs

    def get_outputs(self) -> Any:
        return self._placement.outputs

    def get_modelmeta(self) -> Any:
        return self._placement.meta

    def get_providers(self) -> Any:
        return self._placement.providers

    def io_binding(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse what needs the memory of a session."""
        raise NotImplementedError(
            "io_binding and run_with_iobinding are not possible with the placement "
            f"{self._placement.folder}: call run, or take it out of {PLACEMENTS}"
        )

    run_with_iobinding = io_binding

    def __getstate__(self) -> Any:
        raise TypeError(f"the placement {self._placement.folder} cannot be pickled or copied")


class _Recorded(_Opening):
    """What a session whose calls are recorded has before the class that it was opened as."""

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        start = time.perf_counter()
        outputs = super().run(output_names, input_feed, run_options)
        self._recorder.note(input_feed, time.perf_counter() - start)
        return outputs


class _AfterImport:
    """Replaces the class of sessions when the package is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the package's own spec, whose loader then replaces the class."""
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: Any) -> None:
                execute(module)
                _replace(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _replace(package: Any) -> None:
    """Replace the class of sessions wherever the package has it, by one that inherits it."""
    original = package.InferenceSession
    about = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    about["collage_original"] = original  # with which a loader runs a model's own file
    new: Any = type(original.__name__, (_Opening, original), about)
    new.placed = type(original.__name__, (_Placed, new), about)
    for kind in (new.placed, new):
        kind.recorded = type(original.__name__, (_Recorded, kind), about)
    for module in (package, sys.modules[original.__module__]):
        setattr(module, original.__name__, new)


def install() -> None:
    """Have sessions of this process be placements or recorded, where the environment says so."""
    if not os.environ.get(PLACEMENTS) and not os.environ.get(RECORD):
        return
    if PACKAGE in sys.modules:
        _replace(sys.modules[PACKAGE])
    else:
        sys.meta_path.insert(0, _AfterImport())


def main() -> None:
    """Run a program or a module as Python would, with placements in place of sessions."""
    import runpy

    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"]:
        sys.exit(f"usage: python {sys.argv[0]} PROGRAM [ARGUMENT …] (or -m MODULE [ARGUMENT …])")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
