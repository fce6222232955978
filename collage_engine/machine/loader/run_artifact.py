#!/usr/bin/env python3
"""Runs a Collage Explorer artifact and checks it against its sample.

Needs the Python packages apache-tvm and numpy, and what the manifest says under "requires".

    python run_artifact.py [DIR] [--benchmark]

DIR is the artifact's folder (default: the one above this file). From your own program:

    model = load("DIR")                       # the first one decides about the threads
    outputs = model(array)                    # or model(input=array), or model({"input": array})
    outputs[0], outputs["logits"]             # by the model's output order, or by name
    model.run(None, {"input": array})         # as ONNX Runtime's sessions are called

An artifact for several shapes is a folder with an artifact for each of them, complete by itself,
and a manifest above them. The model picks the one for the inputs' shapes and loads it at its first
use. Fewer rows are padded with zeros where it is proved that a batch does not mix them. Where the
artifact was made with --others, any other size runs the model's own file, on the Python package of
ONNX Runtime or OpenVINO that the manifest names; model.stats() counts such calls.
load("DIR", streams=4) is a pool of instances that any number of threads may call at once; so is
load("DIR") of an artifact that was made for throughput.

After its second run a model's memory is put on huge pages where the system leaves them to programs,
unless COLLAGE_HUGE_PAGES=0 is in the environment.

An artifact is code: run it only if you trust its author. Before a module is loaded, the
SHA-256 of every file beside it is compared with its manifest's. A person who can change a file can
change its hash too; sign the folder where that matters.

Exit status: 0 the outputs agree with the sample, 1 they do not or something failed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # this folder: what lies beside this file must not stand for a library

import abc
import argparse
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import math
import mmap
import os
import queue
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

FORMAT, FORMAT_VERSION = "collage-artifact", 6
"""What the manifest says that it is."""
MANIFEST, MODULE = "manifest.json", "model.so"
SAMPLES = ("sample_input.npz", "sample_output.npz")
"""Files of inputs and true outputs."""
TEXT_BYTES = 256
"""Bytes of a text at most: it is UTF-8, filled up with zeros, in one more dimension of a tensor."""
WEIGHTS_FOLDER = "COLLAGE_WEIGHTS_FOLDER"
"""Environment variable by which the toolchains' runtimes find files of weights."""
LOADING = threading.Lock()
"""Held while a module is loaded, which reads its weights in the folder of the environment."""
SHARED_WEIGHTS = "ffi.Module.load_from_bytes.collage.weights"
"""Global function by which TVM loads modules whose weights lie in files (``with_weights``)."""
CUDART = "libcudart.so.13"
POOLED = 2
"""TVM's number of the allocator that keeps what is freed (``VirtualMachine.POOLED_ALLOCATOR``)."""
HUGE_PAGES = "COLLAGE_HUGE_PAGES"
"""Environment variable: 0 leaves the memory of models as it is."""
HUGE_PAGE_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
"""Of Linux (``madvise(2)``), the second from 6.1 on."""
REGION = re.compile(
    r"^(\w+)-(\w+) rw-p \w+ \S+ 0 +(?:\[heap\]|\[anon:[^\n]*)?\n(?:(?!Rss)[^\n]*\n)*Rss: +(\d+) kB",
    re.M,
)
"""A region of private memory that belongs to no file, in ``/proc/self/smaps``."""
BENCHMARK_S = 2.0
"""Seconds of calls that are timed; chosen."""

T = TypeVar("T")

# -- the folder ------------------------------------------------------------------------


class Damaged(ValueError):
    """The folder is not what its manifest says, or that is no manifest of this version."""


def manifest_of(folder: str | Path) -> dict[str, Any]:
    """Return the artifact's manifest; see ``verify`` for its files.

    Raises:
        Damaged: There is none, or it is no manifest of this version.
    """
    path = Path(folder) / MANIFEST
    if not path.parent.is_dir():
        raise Damaged("there is no such folder")
    if not path.is_file():
        raise Damaged(f"it has no {MANIFEST}, so it is no artifact")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(f"{MANIFEST} is no manifest of an artifact")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise Damaged(
            f"it is an artifact of version {manifest.get('format_version')}, and this loader "
            f"takes version {FORMAT_VERSION} only: export it again"
        )
    return manifest


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify(folder: str | Path, manifest: Mapping[str, Any]) -> None:
    """Compare every file with its hash; nothing of the folder is loaded before.

    Of several shapes, these are the manifests of each.

    Raises:
        Damaged: A file is missing or has changed.
    """
    for name, about in manifest["files"].items():
        path = Path(folder) / name
        if not path.is_file():  # opening a pipe could wait for ever
            raise Damaged(f"{name} is missing or no regular file")
        if sha256(path) != about["sha256"]:
            raise Damaged(f"{name} has changed since it was exported")


def opened(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder that may be loaded: its files are as they were.

    What ``model.so`` calls in Python, where a toolchain had no C++ headers when built, has run.
    """
    manifest = manifest_of(folder)
    verify(folder, manifest)
    for about in manifest.get("requires", ()):
        path = Path(folder) / about["file"]
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, {"__name__": "collage_python_part", "__file__": str(path)})
    return manifest


@contextlib.contextmanager
def hidden(package: str) -> Iterator[None]:
    """Make the import of a package fail inside the ``with`` block, unless it was before."""
    hides = package not in sys.modules
    if hides:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hides:
            del sys.modules[package]


def load_runtime(folder: Path, kind: str) -> None:
    """Load TVM's runtime into this process; its compiler and its Python package are not needed.

    Args:
        folder: The artifact, which has a copy of CUDA's runtime where one is needed.
        kind: ``cpu`` or ``cuda``.

    Raises:
        ImportError: The package apache-tvm is not installed.
    """
    # It imports PyTorch wherever that is installed, which takes seconds and 180 MB for nothing.
    with hidden("torch"):
        import tvm_ffi  # loads the library that the others need
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the Python package apache-tvm is not installed")
    libraries = Path(spec.submodule_search_locations[0], "lib")
    for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        if (libraries / name).is_file():
            ctypes.CDLL(str(libraries / name), ctypes.RTLD_GLOBAL)
    if kind == "cuda" and tvm_ffi.get_global_func("device_api.cuda", True) is None:
        try:
            ctypes.CDLL(CUDART, ctypes.RTLD_GLOBAL)
        except OSError:
            ctypes.CDLL(str(folder / CUDART), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(libraries / "libtvm_runtime_cuda.so"))


def with_weights(data: bytes) -> Any:
    """Return the module for which another one stands that names files of weights.

    Args:
        data: Fields behind their lengths: the kind of the module; then its bytes, in which every
            second field is the name of a file, whose content belongs there.
    """
    import tvm_ffi

    fields: list[Any] = []
    end = 0
    while end < len(data):
        begin, end = end + 8, end + 8 + int.from_bytes(data[end : end + 8], "little")
        fields.append(data[begin:end])
    kind, *pieces = fields
    for number in range(1, len(pieces), 2):
        path = Path(os.environ[WEIGHTS_FOLDER], "weights", pieces[number].decode())
        with path.open("rb") as file:
            pieces[number] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    load = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{kind.decode()}")
    return load(b"".join(pieces))


@contextlib.contextmanager
def module_file(folder: Path, private: bool) -> Iterator[Path]:
    """Give the file of a module, to be loaded inside the ``with`` block.

    A private one is a copy beside links to what it loads: the same file is loaded once in a
    process, with one state.
    """
    if not private:
        yield folder / MODULE
        return
    with tempfile.TemporaryDirectory(prefix="collage-module-") as scratch:
        for file in folder.iterdir():
            if file.name != MODULE:
                Path(scratch, file.name).symlink_to(file)
        yield shutil.copyfile(folder / MODULE, Path(scratch, MODULE))


# -- huge pages ------------------------------------------------------------------------


def private_regions() -> list[tuple[int, int, int]]:
    """Return begin, end and resident bytes of the process's memory that huge pages are for.

    There are none where the system or the user wants no huge pages.
    """
    try:
        wanted = "[never]" not in (HUGE_PAGE_SETTINGS / "enabled").read_text()
        wanted = wanted and (HUGE_PAGE_SETTINGS / "hpage_pmd_size").is_file()
        text = Path("/proc/self/smaps").read_text(errors="replace")
    except OSError:
        return []
    if not wanted or os.environ.get(HUGE_PAGES, "").strip() == "0":
        return []
    regions = REGION.findall(text)
    return [(int(begin, 16), int(end, 16), int(used) << 10) for begin, end, used in regions]


def use_huge_pages(before: list[tuple[int, int, int]]) -> None:
    """Put private memory that appeared since on huge pages.

    Weights and intermediate values lie on pages of 4 KiB where a system leaves larger ones to
    programs. A model touches more of them per run than the processor's address caches hold, and on
    a virtual machine each miss walks two page tables. It takes about 3 ms a MB, once. What is
    hardly in use (stacks, reserved arenas) stays as it is.

    Args:
        before: What ``private_regions`` found before the model was there.
    """
    ends, begins = {begin: end for begin, end, _ in before}, {e: begin for begin, e, _ in before}
    size = int((HUGE_PAGE_SETTINGS / "hpage_pmd_size").read_text())
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end, used in private_regions():
        # A region that was there grows at its end (the heap) or at its begin (mapped memory).
        first = -(-ends.get(begin, begin) // size) * size
        length = begins.get(end, end) // size * size - first
        if length > 0 and used >= (end - begin) / 2:
            madvise(first, length, MADV_COLLAPSE)
            madvise(first, length, MADV_HUGEPAGE)  # what is freed and taken again


# -- values ----------------------------------------------------------------------------


def numpy_dtype(name: str) -> Any:
    """Return the NumPy type of an element type's name, ``bfloat16`` among them."""
    import numpy as np

    if name == "string":
        return np.dtype(f"S{TEXT_BYTES}")
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def with_elements(inputs: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return inputs by the manifest's names; a sequence goes by the names of its elements."""
    arrays = {}
    for name, value in inputs.items():
        if name in names or not isinstance(value, list):
            arrays[name] = value
            continue
        elements = {f"{name}[{number}]": each for number, each in enumerate(value)}
        wanted = [each for each in names if each.startswith(f"{name}[")]
        if wanted and len(wanted) != len(elements):
            raise ValueError(f"{name!r} must have {len(wanted)} tensors, not {len(elements)}")
        arrays.update(elements)
    return arrays


def encoded(values: Any) -> Any:
    """Return texts of fixed width for an array of Python strings or bytes."""
    import numpy as np

    array = np.asarray(values)
    every = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]
    for each in every:
        if len(each) > TEXT_BYTES:
            raise ValueError(
                f"the text {each[:20].decode(errors='replace')!r}… has {len(each)} bytes, and at "
                f"most {TEXT_BYTES} are supported"
            )
        if each.endswith(b"\0"):
            raise ValueError("a text that ends with a zero byte is not supported")
    return np.array(every, dtype=f"S{TEXT_BYTES}").reshape(array.shape)


def read_npz(path: Path, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the arrays of an .npz file by name, with the element types of the manifest."""
    import numpy as np

    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        if array.dtype.kind == "V" and name in kinds:  # NumPy has no name for bfloat16
            arrays[name] = array.view(numpy_dtype(kinds[name]))
    return arrays


# -- models ----------------------------------------------------------------------------


class Value(NamedTuple):
    """An input or output of a model."""

    name: str
    shape: tuple[int | None, ...] | None
    """None in it: a size that differs from call to call; None: so does the number of dimensions."""
    dtype: str


class Outputs(list[Any]):
    """The outputs of a call in the model's order; ``outputs["logits"]`` is one of them, too."""

    def __init__(self, names: Sequence[str], arrays: Any) -> None:
        super().__init__(arrays)
        self.names = names

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"there is no output {key!r}; there are {', '.join(self.names)}")
            key = self.names.index(key)
        return super().__getitem__(key)


class Called(abc.ABC):
    """The ways in which every loaded artifact is called.

    Who inherits it has a ``manifest`` and computes the outputs in ``_outputs``.
    """

    manifest: Mapping[str, Any]

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Name, shape and element type of each input, in the model's order."""
        return values_of(self.manifest, "inputs")

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """Name, shape and element type of each output, in the model's order."""
        return values_of(self.manifest, "outputs")

    @cached_property
    def _input_names(self) -> dict[str, None]:
        return dict.fromkeys(about.name for about in self.inputs)

    @cached_property
    def _output_names(self) -> tuple[str, ...]:
        return tuple(about.name for about in self.outputs)

    def __call__(self, *arrays: Any, **named: Any) -> Outputs:
        """Run on one array per input; return one per output.

        Texts are arrays of Python strings. An input that is a sequence of tensors is a list; the
        tensors of an output that is one have entries of their own, NAME[0], NAME[1] and so on.

        Args:
            arrays: The inputs in the model's order; or a single dictionary of inputs by name.
            named: Inputs by name.

        Raises:
            ValueError: An input is missing, unknown, given twice, or of another type or shape.
        """
        return Outputs(self._output_names, self._outputs(self._by_name(arrays, named)))

    def _by_name(self, arrays: Any, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inputs of a call by the manifest's names."""
        names = self._input_names
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            given = arrays[0]
            if given.keys() == names.keys() and not named:
                return given
        elif len(arrays) > len(names):
            raise ValueError(f"{len(arrays)} inputs are given; the model has {len(names)}")
        else:
            given = dict(zip(names, arrays, strict=False))
        for name in given.keys() & named.keys():
            raise ValueError(f"input {name!r} is given twice")
        given = with_elements({**given, **named}, names)
        for name in given:
            if name not in names:
                raise ValueError(f"the model has no input {name!r}; it has {', '.join(names)}")
        return given

    def run(self, wanted: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Do what ``InferenceSession.run`` of ONNX Runtime does.

        Args:
            wanted: Names of the outputs to return; None: all of them.
            feeds: An array for each input's name.
        """
        outputs = self._outputs(self._by_name((feeds,), {}))
        if wanted is None:
            return outputs
        return [Outputs(self._output_names, outputs)[name] for name in wanted]

    @abc.abstractmethod
    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, given all inputs by name."""


def values_of(manifest: Mapping[str, Any], which: str) -> tuple[Value, ...]:
    """Return the "inputs" or "outputs" of a manifest, of all its shapes together."""
    values = []
    for same in zip(*(each[which] for each in manifest.get("entries", [manifest])), strict=True):
        shapes = [about["shape"] for about in same]
        shape = None
        if None not in shapes:
            shape = tuple(
                sizes[0] if len(set(sizes)) == 1 and sizes[0] >= 0 else None
                for sizes in zip(*shapes, strict=True)
            )
        values.append(Value(same[0]["name"], shape, same[0]["dtype"]))
    return tuple(values)


class Input:
    """A model's input: the tensor that each call fills, and what may be put into it.

    Args:
        about: The manifest's entry.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        import numpy as np
        import tvm_ffi

        self.name, self.shape = about["name"], tuple(about["shape"])
        self.kind, self.dtype = about["dtype"], numpy_dtype(about["dtype"])
        self._is_text = self.kind == "string"
        stored = ((*self.shape, TEXT_BYTES), "uint8") if self._is_text else (self.shape, self.kind)
        make = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        kind = tvm_ffi.Shape(stored[0]), tvm_ffi.dtype(stored[1])
        self.tensor = make(*kind, tvm_ffi.device("cpu", 0), None)
        count = math.prod(self.shape) * self.dtype.itemsize
        memory = (ctypes.c_char * count).from_address(self.tensor.data_ptr())
        self._memory = np.ndarray(self.shape, self.dtype, memory)

    def fill(self, value: Any) -> None:
        """Copy a value into the tensor.

        Args:
            value: An array, or what NumPy makes one of: lists may hold any numbers of the same
                kind, arrays of another element type only such as lose nothing by the conversion.
        """
        import numpy as np

        array = np.asarray(value)
        if array is not value and np.can_cast(array.dtype, self.dtype, "same_kind"):
            array = array.astype(self.dtype)
        if array.dtype != self.dtype or array.shape != self.shape:
            array = self._converted(array)
        self._memory[...] = array

    def _converted(self, array: Any) -> Any:
        """Return an array of the input's own type.

        Raises:
            ValueError: Its shape is another one, or the conversion would lose something.
        """
        if self._is_text and array.dtype.kind in "OSU":
            array = encoded(array)
        if array.shape == self.shape and array.dtype.kind in "iuf" and self.dtype.kind in "iuf":
            import numpy as np

            with np.errstate(invalid="ignore", over="ignore"):
                own = array.astype(self.dtype)
                if np.array_equal(own.astype(array.dtype), array):
                    return own
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"input {self.name!r} must be {self.kind}{list(self.shape)}, "
                f"not {array.dtype}{list(array.shape)}"
            )
        return array


class Model(Called):
    """A loaded artifact for one shape; of calls from several threads each waits its turn.

    Args:
        folder: The artifact, which was ``opened`` after its environment was set.
        manifest: Its manifest.
        private: Whether its module must be another file than that of an earlier instance.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], private: bool = False) -> None:
        self.manifest = manifest
        start = time.perf_counter()
        self._resident = resident_bytes()
        kind = self.manifest.get("device", "cpu")
        load_runtime(folder, kind)
        import tvm_ffi

        self._on_host = kind == "cpu"
        self._before = private_regions() if self._on_host else []
        with LOADING, module_file(folder, private) as module:
            os.environ[WEIGHTS_FOLDER] = str(folder)
            tvm_ffi.register_global_func(SHARED_WEIGHTS, with_weights, override=True)
            library = tvm_ffi.load_module(str(module))
        self.library = library
        """The module, which imports those of the runtimes."""
        self._machine = library["vm_load_executable"]()
        host = (tvm_ffi.DLDeviceType.kDLCPU, 0, POOLED)
        device = () if self._on_host else (tvm_ffi.DLDeviceType.kDLCUDA, 0, POOLED)
        self._machine["vm_initialization"](*map(int, (*device, *host)))
        self.main = self._machine["main"]
        self._turn = threading.Lock()
        self._inputs = [Input(about) for about in manifest["inputs"]]
        self._dtypes = [numpy_dtype(about["dtype"]) for about in manifest["outputs"]]
        self._field = tvm_ffi.get_global_func("ffi.ArrayGetItem")
        if not self._on_host:
            self._to_device = tvm_ffi.get_global_func("vm.builtin.to_device")
            self._device = tvm_ffi.device("cuda", 0)
            self._synchronise = tvm_ffi.get_global_func("runtime.Device_StreamSync")
        self.load_seconds = time.perf_counter() - start
        """Without the check of the files and the first run."""
        self.first_result_seconds: float | None = None
        """Loading and the first run, which may take longer than later ones; None: none was."""
        self._is_warm = False
        self.memory_bytes = 0
        """What loading it and its first run added to the process's resident memory, with the
        runtimes where it was the first."""

    def bind(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Copy inputs into the model's own tensors; return these, in the model's order."""
        for about in self._inputs:
            if about.name not in inputs:
                raise ValueError(f"input {about.name!r} is missing")
            about.fill(inputs[about.name])
        tensors = [about.tensor for about in self._inputs]
        return tensors if self._on_host else [self._copied(tensor, "cuda") for tensor in tensors]

    def _copied(self, tensor: Any, kind: str) -> Any:
        """Return a copy of a tensor on the device, or on the host."""
        import tvm_ffi

        return self._to_device(tensor, tvm_ffi.device(kind, 0).dlpack_device_type(), 0, "global")

    def user_call(self, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        """Return what runs some inputs as a user does, to be timed.

        On the processor it copies inputs and outputs; on a device these stay where they are.
        """
        if self._on_host:
            return partial(self.run, None, inputs)
        return partial(self.invoke, self.bind(inputs))

    def set_instrument(self, instrument: Any) -> None:
        """Have a function called before and after each call of TVM's virtual machine."""
        self._machine["set_instrument"](instrument)

    def invoke(self, tensors: list[Any]) -> Any:
        """Run the module on bound inputs, and wait until the device is done."""
        if self._is_warm and self._on_host:
            return self.main(*tensors)
        start = time.perf_counter()
        result = self.main(*tensors)
        if not self._on_host:  # calls return before the device is done
            self._synchronise(self._device, 0)
        if self.first_result_seconds is None:
            self.first_result_seconds = self.load_seconds + time.perf_counter() - start
            self.memory_bytes = max(0, resident_bytes() - self._resident)
        elif not self._is_warm:
            self._is_warm = True
            if self._before:  # a program that calls once would pay for what others gain later
                use_huge_pages(self._before)
        return result

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        with self._turn:
            return self.arrays(self.invoke(self.bind(inputs)))

    def arrays(self, result: Any) -> list[Any]:
        """Return what the module has returned as arrays of their own, in the model's order."""
        if len(self._dtypes) == 1:
            return [self._copy(result, self._dtypes[0])]
        return [self._copy(self._field(result, i), dtype) for i, dtype in enumerate(self._dtypes)]

    def _copy(self, tensor: Any, dtype: Any) -> Any:
        """Return an output as an array of its own: the tensor may be an input or a constant."""
        import numpy as np

        if not self._on_host:
            tensor = self._copied(tensor, "cpu")
        if dtype.kind not in "SV":
            return np.from_dlpack(tensor).copy()
        import tvm_ffi

        # NumPy takes neither texts from a tensor nor types that it only has from ml_dtypes.
        is_text = dtype.kind == "S"
        item = np.dtype(np.uint8) if is_text else np.dtype(f"uint{8 * dtype.itemsize}")
        view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
        same = view(tensor, tvm_ffi.Shape(tensor.shape), tvm_ffi.dtype(item.name), 0)
        array = np.from_dlpack(same).copy()
        if is_text:
            texts = array.reshape(-1).view(dtype).reshape(array.shape[:-1])
            return np.char.decode(texts, "utf-8") if texts.size else texts
        return array.view(dtype)


def shapes_of(entry: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an entry's inputs, by name."""
    return {about["name"]: tuple(about["shape"]) for about in entry["inputs"]}


def shape_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return shapes as one text, such as ``x [1, 3, 224, 224], y [1]``."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


RUNTIMES = ("onnxruntime", "openvino")
"""Packages of which one runs a model's own file; both are toolchains of the same name."""


def is_session(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a placement is what a session of ONNX Runtime makes of the model's own file.

    It is not where that lists weights as inputs, which a session does not take as constants.
    """
    parts = manifest.get("placement", {}).get("partitions", ())
    kinds = [(part["toolchain"], dict(part["config"])) for part in parts]
    if kinds != [(RUNTIMES[0], {})] or manifest.get("streams") is not None:
        return False
    names = {about["name"] for about in manifest["inputs"] + manifest["outputs"]}
    return names.issuperset(manifest["model"].get("sizes", ()))


class OwnFile:
    """The model's own file, whose sizes are open, on a runtime's Python package.

    It is loaded at the first call; of calls from several threads each waits its turn.

    Args:
        file: The ONNX file.
        runtime: One of ``RUNTIMES``.
        threads: Threads of the runtime.
    """

    def __init__(self, file: Path, runtime: str, threads: int) -> None:
        self._file, self._runtime, self._threads = file, runtime, threads
        self._turn = threading.Lock()

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Run it on inputs by name; return the outputs in the model's order."""
        with self._turn:
            return self._run(inputs)

    @cached_property
    def _run(self) -> Callable[[Mapping[str, Any]], list[Any]]:
        return self._openvino() if self._runtime == "openvino" else self._onnxruntime()

    def _onnxruntime(self) -> Callable[[Mapping[str, Any]], list[Any]]:
        if "onnxruntime" not in sys.modules:  # what a program imports itself is its own choice
            os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        kind = onnxruntime.InferenceSession
        kind = getattr(kind, "collage_original", kind)  # where patch.py replaced it
        session = kind(self._file, options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)

    def _openvino(self) -> Callable[[Mapping[str, Any]], list[Any]]:
        import numpy as np

        # The package, where the program has not imported it, writes an identifier into the user's
        # home folder by this one, and reports its import to its maker.
        with hidden("openvino_telemetry"):
            import openvino
            from openvino.frontend import FrontEndManager

        # The package uses a copy that an artifact has loaded before, which reads no ONNX itself.
        (reader,) = Path(openvino.__file__).parent.glob("libs/libopenvino_onnx_frontend.so*")
        manager = FrontEndManager()
        manager.register_front_end("onnx", str(reader))
        frontend = manager.load_by_framework("onnx")
        model = frontend.convert(frontend.load(str(self._file)))
        settings = {
            "INFERENCE_NUM_THREADS": self._threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = openvino.Core().compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()

        def run(inputs: Mapping[str, Any]) -> list[Any]:
            request.infer({name: np.asarray(value) for name, value in inputs.items()})
            return [request.get_output_tensor(k).data.copy() for k in range(len(compiled.outputs))]

        return run


class Shapes(Called):
    """An artifact for several shapes: picks the entry by the inputs' shapes, and loads it then.

    Args:
        folder: The artifact.
        manifest: Its manifest.
        private: Whether modules must be other files than those of an earlier instance.
        other: Runs other shapes, given inputs by name; None: the model's own file does where the
            artifact has it, and else they are refused.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        private: bool = False,
        other: Callable[[Mapping[str, Any]], Sequence[Any]] | None = None,
    ) -> None:
        self.manifest = manifest
        self._folder, self._private, self._other = folder, private, other
        about = manifest.get("others")
        if (
            about
            and (other is None or about["runtime"] == "openvino")
            and importlib.util.find_spec(about["runtime"])
        ):
            file = folder / about["file"]
            self._other = OwnFile(file, about["runtime"], manifest["threads"])
        self._models: dict[int, Model] = {}
        self._turn = threading.Lock()
        shapes = [shapes_of(entry) for entry in manifest["entries"]]
        self._numbers = {tuple(of.values()): number for number, of in enumerate(shapes)}
        self._calls: list[dict[str, Any]] = [
            {"inputs": of, "calls": 0, "padded": 0} for of in shapes
        ]
        self._other_calls: Counter[str] = Counter()
        if len(self._numbers) == 1:
            self._entry(0)

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Run the entry for these inputs; ValueError: there is none for their shapes."""
        import numpy as np

        rows = None
        try:
            number = self._numbers[tuple([inputs[name].shape for name in self._input_names])]
        except (KeyError, AttributeError):  # another shape, or what NumPy makes an array of
            shapes = {name: np.shape(array) for name, array in inputs.items()}
            known = self._numbers.get(tuple([shapes.get(name, ()) for name in self._input_names]))
            if known is None:
                rows, known = self._larger(shapes)
            if known is None:
                return self._run_other(inputs, shapes)
            number = known
        with self._turn:
            self._calls[number]["calls"] += 1
            self._calls[number]["padded"] += rows is not None
            model = self._entry(number)
        if rows is None:
            return model._outputs(inputs)  # whose names were checked
        sizes = self._calls[number]["inputs"]
        padded = {name: np.zeros(sizes[name], np.asarray(inputs[name]).dtype) for name in inputs}
        for name, array in padded.items():
            array[:rows] = inputs[name]
        return [output[:rows] for output in model._outputs(padded)]

    def _larger(self, shapes: Mapping[str, Sequence[int]]) -> tuple[int | None, int | None]:
        """Return the rows of a batch, and the smallest entry to which it pays to pad it."""
        batch = self.manifest.get("padding")
        rows = {shape[0] if shape else 0 for shape in shapes.values()}
        if batch is None or len(rows) != 1:
            return None, None
        (least,) = rows
        larger = []
        for number, entry in enumerate(self.manifest["entries"]):
            size = entry["dims"][batch]
            fits = {name: (size, *shape[1:]) for name, shape in shapes.items()} == shapes_of(entry)
            pays_from = entry.get("pays_from", 1) if self._other else 1
            if fits and pays_from <= least < size:
                larger.append((size, least, number))
        return min(larger)[1:] if larger else (None, None)

    def _entry(self, number: int) -> Model:
        """Return the model of an entry, which is loaded now unless it was before."""
        if number not in self._models:
            name = self.manifest["entries"][number]["folder"]
            manifest = opened(self._folder / name) if name else self.manifest
            self._models[number] = Model(self._folder / name, manifest, self._private)
        return self._models[number]

    def _run_other(
        self, inputs: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[Any]:
        """Run inputs for which there is no entry; the first time say so.

        Raises:
            ValueError: An input is missing, or nothing runs other shapes.
        """
        missing = next((name for name in self._input_names if name not in inputs), None)
        if missing is not None:
            raise ValueError(f"input {missing!r} is missing")
        text = shape_text(shapes)
        if self._other is None:
            has = "; ".join(shape_text(shapes_of(entry)) for entry in self.manifest["entries"])
            package = self.manifest.get("others", {}).get("runtime")
            needs = f"; for other sizes it needs {package}" if package else ""
            raise ValueError(f"the artifact has no entry for {text}; it has {has}{needs}")
        with self._turn:
            first = not self._other_calls
            self._other_calls[text] += 1
        if first:
            warnings.warn(
                f"{self._folder} has no entry for {text}: such calls run the model's own file, and "
                f"stats() counts them; to add one, place the model with {self._option(shapes)}",
                RuntimeWarning,
                stacklevel=2,
            )
        return list(self._other(inputs))

    def _option(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """Return how ``collage place`` is told of shapes beside those that it was told."""
        sizes = self.manifest["model"].get("sizes", {})
        pairs = [zip(sizes.get(name, ()), shape, strict=False) for name, shape in shapes.items()]
        left_open = [(of, size) for pair in pairs for of, size in pair if not isinstance(of, int)]
        named = dict(left_open)
        if not named or None in named or len(named) < len({*left_open}):  # some names are all "?"
            return f"--shapes FILE and {shape_text(shapes)} in it"
        return " ".join(f"--dim {of}=…,{size}" for of, size in named.items())

    def stats(self) -> dict[str, Any]:
        """Return how often each entry was called, and with which other shapes how often.

        Returns:
            ``entries``: for each its ``inputs``, ``calls``, and how many of these were ``padded``;
            ``others``: by the inputs' shapes the calls that ran the model's own file.
        """
        with self._turn:
            entries = [dict(calls) for calls in self._calls]
            return {"entries": entries, "others": dict(self._other_calls)}


# -- several instances -----------------------------------------------------------------


class Pool(Called):
    """Instances of a model, each in a thread of its own; call it, from any thread, as one of them.

    Args:
        make: Makes the instance of a number, in the thread that it belongs to, which is bound to
            processors of its own where there are enough: the runtimes start their threads there.
            The instances are made one after the other.
        streams: How many.
        threads: Threads of each instance.
        manifest: That of the artifact, where the pool is called as a model.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        streams: int,
        threads: int,
        manifest: dict[str, Any] | None = None,
    ) -> None:
        self.manifest = manifest or {}
        self.streams = streams
        self._threads = [ThreadPoolExecutor(1) for _ in range(streams)]
        self._instances: list[Any] = []
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        processors = sorted(os.sched_getaffinity(0))
        try:
            for number, thread in enumerate(self._threads):
                if len(processors) >= streams * threads:
                    mine = processors[number * threads : (number + 1) * threads]
                    thread.submit(os.sched_setaffinity, 0, mine).result()
                self._instances.append(thread.submit(make, number).result())
                self._free.put(number)
        except BaseException:
            self.close()
            raise

    def with_one(self, function: Callable[[Any], T]) -> T:
        """Call a function with the first instance that is free, in its thread."""
        number = self._free.get()
        try:
            return self._threads[number].submit(function, self._instances[number]).result()
        finally:
            self._free.put(number)

    def at_once(self, function: Callable[[Any], T]) -> list[T]:
        """Call a function with every instance at the same time; return its results in order."""
        pairs = zip(self._threads, self._instances, strict=True)
        return [each.result() for each in [thread.submit(function, one) for thread, one in pairs]]

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        return self.with_one(lambda model: model(inputs))

    def close(self) -> None:
        """End the threads, after what was submitted before."""
        for thread in self._threads:
            thread.shutdown()


def load(
    folder: str | Path,
    streams: int | None = None,
    other: Callable[[Mapping[str, Any]], Sequence[Any]] | None = None,
) -> Model | Shapes | Pool:
    """Load an artifact. Its environment is set first, so call this before importing tvm.

    Args:
        folder: The artifact.
        streams: How many instances run at once; None: as many as the artifact was made for, one
            without a pool where it says nothing.
        other: Runs inputs, given by name, of shapes that the artifact has not; None: the model's
            own file does where the artifact was made with --others, else they are refused.

    Returns:
        A ``Model``; ``Shapes`` where there are several; a ``Pool`` of these with streams.
    """
    folder = Path(folder).resolve()
    manifest = manifest_of(folder)
    # Thread counts and spinning are read when the libraries load. It is one setting for all of
    # them, the one the artifact was measured with, whatever the shell says: their threads must
    # neither outnumber the others' nor spin in their time.
    os.environ.update(manifest["environment"])
    opened(folder)
    if other is not None and "entries" not in manifest:
        only = {"folder": "", "inputs": manifest["inputs"], "outputs": manifest["outputs"]}
        manifest = {**manifest, "entries": [only]}

    def instance(private: bool) -> Model | Shapes:
        if "entries" in manifest:
            return Shapes(folder, manifest, private, other)
        return Model(folder, manifest, private)

    streams = manifest.get("streams") if streams is None else streams
    if streams is None:
        return instance(False)
    threads = manifest.get("threads", 1)
    return Pool(lambda number: instance(number > 0), streams, threads, manifest)


def resident_bytes() -> int:
    """Return the process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- the check -------------------------------------------------------------------------


def read_sample(folder: str | Path, manifest: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the inputs of an artifact's sample by name, and its true outputs in order."""
    kinds = {about["name"]: about["dtype"] for about in manifest["inputs"] + manifest["outputs"]}
    inputs, outputs = (read_npz(Path(folder, name), kinds) for name in SAMPLES)
    return inputs, [outputs[about["name"]] for about in manifest["outputs"]]


def error_of(computed: Any, true: Any, loses_nan: bool = False) -> tuple[float, float]:
    """Return the largest absolute and the largest relative error of an output.

    They are ``max|y−r|`` and ``max|y−r| / max|r|``; of whole numbers and booleans, unless they have
    8 bits and may stand for floats, the second one is the share of values that differ. Both are
    infinite where the shapes differ, or where ``y`` is not finite and ``r`` is. Places where the
    truth itself is not finite must agree in kind and do not count further. Where the truth is all
    zero the absolute error stands for the relative one.

    Args:
        computed: The computed values ``y``.
        true: The true values ``r``.
        loses_nan: Whether NaN may have become something else, as the toolchain says.
    """
    import numpy as np

    far = float("inf"), float("inf")
    if computed.shape != true.shape:
        return far
    if true.dtype.kind in "SU":  # texts are right or wrong
        return (0.0, 0.0) if np.array_equal(encoded(computed), encoded(true)) else far
    is_long = true.dtype.kind in "iuf" and true.dtype.itemsize == 8
    y, r = (each.astype(np.longdouble if is_long else np.float64) for each in (computed, true))
    finite = np.isfinite(r)
    same = (y == r) | (np.isnan(r) & (loses_nan | np.isnan(y)))
    if not same[~finite].all() or not np.isfinite(y[finite]).all():
        return far
    error = float(np.abs(y[finite] - r[finite]).max(initial=0.0))
    if true.dtype.kind == "b" or (true.dtype.kind in "iu" and true.dtype.itemsize > 1):
        return error, float(1.0 - same.mean()) if error else 0.0
    scale = float(np.abs(r[finite]).max(initial=0.0))
    return error, error / scale if scale > 0 else error


def compared(
    manifest: Mapping[str, Any], outputs: Sequence[Any], truth: Sequence[Any]
) -> tuple[list[tuple[float, float]], str | None]:
    """Return the errors of outputs, and what is wrong with them or None."""
    wrong, errors = None, []
    loses_nan = bool(manifest.get("placement", {}).get("nan_losses"))
    for about, computed, true in zip(manifest["outputs"], outputs, truth, strict=True):
        absolute, relative = error_of(computed, true, loses_nan)
        errors.append((absolute, relative))
        bound = about.get("tolerance", manifest["tolerance"])
        if wrong is None and not relative <= bound:
            wrong = f"max_rel_error of {about['name']!r} {relative:.2g} is above {bound:.2g}"
            if not bound:
                wrong = f"{about['name']!r} is off by {absolute:.6g} in {about['dtype']}"
    return errors, wrong


def check(model: Model | Pool, inputs: dict[str, Any], truth: list[Any]) -> dict[str, Any]:
    """Run an artifact for one shape on its sample; returns what there is to say."""
    one: Any = model.at_once(lambda instance: instance)[0] if isinstance(model, Pool) else model
    manifest = one.manifest
    errors, wrong = compared(manifest, model(inputs), truth)
    return {
        "load_s": one.load_seconds,
        "first_result_s": one.first_result_seconds,
        "memory_bytes": one.memory_bytes,
        "max_abs_error": max((error[0] for error in errors), default=0.0),
        "max_rel_error": max((error[1] for error in errors), default=0.0),
        "tolerance": manifest["tolerance"],
        "threads": manifest["threads"],
        "wrong": wrong,
    }


def benchmark(model: Model | Pool, inputs: dict[str, Any]) -> dict[str, Any]:
    """Time an artifact for one shape: single calls, or all instances of a pool at once."""
    expected = model.manifest["expected"]

    def rate(one: Model) -> float:
        start = time.perf_counter()
        return (1 + len(seconds_of_calls(one, inputs))) / (time.perf_counter() - start)

    if isinstance(model, Pool):
        figures = {"streams": model.streams, "runs_per_s": sum(model.at_once(rate))}
        return figures | {"expected_runs_per_s": expected.get("runs_per_s")}
    taken = sorted(seconds_of_calls(model, inputs))
    shares = {"median": 50, "low": 20, "high": 80, "p50": 50, "p90": 90, "p99": 99}
    figures = {f"{n}_us": taken[len(taken) * share // 100] * 1e6 for n, share in shares.items()}
    return figures | {"repeats": len(taken), "expected_us": expected.get("latency_us")}


def seconds_of_calls(
    model: Model, inputs: dict[str, Any], seconds: float = BENCHMARK_S, least: int = 10
) -> list[float]:
    """Return the seconds of each call that is begun within some time, and of so many at least."""
    call = model.user_call(inputs)
    call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def run(folder: Path, timed: bool) -> bool:
    """Run an artifact on its sample, or each of several, and print what there is to say.

    Returns:
        Whether all outputs agree with the samples.
    """
    manifest = manifest_of(folder)
    agree = True
    if "entries" in manifest:
        verify(folder, manifest)
    for entry in manifest.get("entries", [{}]):
        model: Any = load(folder / entry.get("folder", ""))
        inputs, truth = read_sample(folder / entry.get("folder", ""), model.manifest)
        report = check(model, inputs, truth) | (benchmark(model, inputs) if timed else {})
        agree = agree and report["wrong"] is None
        for name, size in entry.get("dims", {}).items():
            print(f"{name}={size} ", end="")
        print(f"DIFFERS: {report['wrong']}" if report["wrong"] else "agrees with the sample")
        for key, value in report.items():
            if isinstance(value, (int, float)):
                print(f"  {key} {value:.6g}")
    return agree


def main(argv: Sequence[str] | None = None) -> int:
    """Check the folder's files and run its module from the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=str(Path(__file__).resolve().parent.parent))
    parser.add_argument("--benchmark", action="store_true", help="time it too")
    options = parser.parse_args(argv)
    folder = Path(options.folder)
    try:
        return 0 if run(folder, options.benchmark) else 1
    except Exception as error:
        lines = str(error).strip().splitlines()
        print(f"{folder}: {lines[-1] if lines else repr(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
