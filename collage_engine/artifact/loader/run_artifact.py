#!/usr/bin/env python3
"""Runs a Collage Explorer artifact and checks it against its sample.

Needs the Python packages apache-tvm and numpy, and what the manifest says under "requires".

    python run_artifact.py [DIR] [--benchmark] [--json] [--inputs FILE.npz] [--save FILE.npz]
                           [--entry N] [--streams N] [--no-huge-pages]

DIR is the artifact's folder (default: the one above this file). From your own program:

    model = load("DIR")                       # before anything else imports tvm
    outputs = model({"input": array})         # a list of arrays, in the model's output order
    model.huge_pages                          # bytes of its memory there, seconds, or why none

An artifact for several shapes has an entry for each (see entries.py beside this file). The model
picks the entry by the inputs' shapes and loads it at its first use; in memory, each entry that is
loaded has weights of its own. Where the artifact was made with --nearest, inputs may be smaller,
and are padded. load("DIR", entry=0) loads one entry alone.
load("DIR", streams=4) is a pool of instances that any number of threads may call at once (see
streams.py beside this file); so is load("DIR") of an artifact that was made for throughput.

Loading runs the sample once, then puts what the model holds in memory on huge pages where the
system has them (see huge_pages.py beside this file). load("DIR", huge_pages=False), the option
--no-huge-pages or COLLAGE_HUGE_PAGES=0 in the environment leave both out.

An artifact is code: run it only if you trust whoever made it. Before anything of it is loaded its
manifest is checked: the format's version, the SHA-256 of every file, that all that will be loaded
is listed and lies in the folder, and that it sets known environment variables only. Whoever can
change the folder can change this file too; a signature of the manifest (``collage run --verify``)
tells.

Exit status: 0 the outputs agree with the sample, 1 they do not or something failed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # this folder: what lies beside this file must not stand for a library
if __name__ == "__main__":
    # TVM imports PyTorch wherever it is installed, which takes seconds and 180 MB for nothing.
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes its import fail

import argparse
import ctypes
import hashlib
import json
import math
import os
import re
import stat
import time
import types
import zipfile
from pathlib import Path

FORMAT, FORMAT_VERSION = "collage-artifact", 2
"""What the manifest says that it is; both loaders and the program take this version, and those
before it."""
MANIFEST = "manifest.json"
KNOWN_ENDINGS = (
    "_BIND_THREADS",
    "_BLOCKTIME",
    "_DYNAMIC",
    "_NUM_THREADS",
    "_SPINCOUNT",
    "_SPIN_COUNT",
    "_THREADING_LAYER",
    "_WAIT_POLICY",
)
"""How the name ends of an environment variable that a manifest may set: numbers of threads, and
whether they spin. Each library has its own prefix. The loader in C++ has the same list."""
TEXT_BYTES = 256
"""Bytes of a text at most: it is UTF-8, filled up with zeros, in one more dimension of a tensor."""
WEIGHTS_FOLDER = "COLLAGE_WEIGHTS_FOLDER"
"""Environment variable by which the toolchains' runtimes find files of weights."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{1,60}")


def is_known(variable: str) -> bool:
    """Return whether a manifest may set an environment variable of this name."""
    return bool(_VARIABLE.fullmatch(variable)) and variable.endswith(KNOWN_ENDINGS)


OPEN_SIZE = -1
"""Stands in an output's shape for a size that depends on the data, so that each run has its own;
the shape is null where even the number of dimensions does."""
_VALUE = re.compile(r"[A-Za-z0-9_,]{1,32}")
"""What a variable may be set to: a number or a word, never a path."""
LARGEST_MANIFEST = 64 << 20
"""Bytes of the largest manifest that is read; chosen: those of the largest models have a tenth."""
_MOST_STREAMS = 4096
"""Instances that run at once, at most; chosen, above the cores of any one machine."""
_MOST_THREADS = 4096
"""Threads of an instance, at most; chosen likewise."""
_MOST_ELEMENTS = 1 << 40
"""Elements of an input or output, at most; chosen, beyond any machine's memory. The loader in C++
counts their bytes in 64 bits."""
_MOST_AXES = 64
"""Dimensions of an input or output, at most: NumPy's own limit."""
LIBRARY_LISTS = ("plugins.xml",)
"""Files that a runtime reads where they lie beside its library, to learn which others to load
(OpenVINO does). The loader in C++ has the same list."""
_LARGEST_TOLERANCE = 1.0
"""Of a relative error; outputs that differ by more have nothing to do with each other."""


class Damaged(ValueError):
    """The folder is not what its manifest says, or the manifest says what it must not."""


def open_listed(folder, name):
    """Open a file of the folder by its name in the manifest, for reading bytes.

    Raises:
        Damaged: It is missing, outside of the folder, or no regular file.
    """
    path = Path(folder) / name
    inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts
    try:
        inside = inside and path.resolve().is_relative_to(Path(folder).resolve())
    except (ValueError, OSError):  # a zero byte, half a character, links in a circle
        raise Damaged(f"the manifest names {name!r:.80}, which no file can be called") from None
    if not inside:
        raise Damaged(f"the manifest names {name!r:.80}, outside the folder")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe could wait for ever
            raise Damaged(f"{name:.80} is no regular file")
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except FileNotFoundError:
        raise Damaged(f"{name:.80} is missing") from None
    except OSError as error:
        raise Damaged(f"{name:.80} cannot be read: {error.strerror}") from None


def manifest_of(folder: str | Path) -> dict:
    """Return the artifact's manifest, checked for what it says; see ``verify`` for its files.

    Raises:
        Damaged: It is no manifest of this version, or says what it must not.
    """
    folder = Path(folder)
    with open_listed(folder, MANIFEST) as stream:
        data = stream.read(LARGEST_MANIFEST + 1)
    try:
        manifest = json.loads(data) if len(data) <= LARGEST_MANIFEST else None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(f"{MANIFEST} is no manifest of an artifact")
    version = manifest.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise Damaged(
            f"it is an artifact of version {version!r:.40}; this is version {FORMAT_VERSION}: "
            "export it again"
        )
    _check_manifest(manifest)
    return manifest


def _check_manifest(manifest):
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(about, dict) and isinstance(about.get("sha256"), str) for about in files.values()
    ):
        raise Damaged("the manifest has no hashes of its files")
    _check_environment(manifest.get("environment"))
    entries = manifest.get("entries")
    if "entries" in manifest and (
        not isinstance(entries, list) or not entries or not all(map(_is_entry, entries))
    ):
        raise Damaged("the manifest does not describe its entries")
    _check_counts(manifest)
    if entries is None and manifest.keys() & {"module", "sample", "dims", "padding"}:
        raise Damaged("the manifest describes parts of entries, and has none")
    needed = []
    for entry in beside("entries").entries_of(manifest):
        needed += _check_entry(entry)
    for name in needed:
        if not isinstance(name, str) or name not in files:
            raise Damaged(f"the manifest has no hash of {name!r:.80}, which would be loaded")
    if entries is not None:
        for kind in ("inputs", "outputs"):
            if len({tuple(about["name"] for about in entry[kind]) for entry in entries}) > 1:
                raise Damaged(f"the manifest's entries have different {kind}")
        _check_padding(manifest.get("padding", {}), entries)


def _check_counts(manifest):
    """Check the numbers of instances and of threads, which the loaders start."""
    for each in (manifest, *manifest.get("entries", ())):
        for key, most in (("streams", _MOST_STREAMS), ("threads", _MOST_THREADS)):
            number = each.get(key, 1)
            if type(number) is not int or not 1 <= number <= most:
                raise Damaged(f"the manifest names {number!r:.40} {key}")


def _check_environment(variables):
    if not isinstance(variables, dict):
        raise Damaged("the manifest has no environment")
    for name, value in variables.items():
        if not is_known(name):
            raise Damaged(
                f"the manifest sets the environment variable {name!r:.80}, which no artifact does"
            )
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise Damaged(f"the manifest sets {name} to {value!r:.80}, which no artifact does")


def _check_entry(entry):
    """Check what an entry says; returns the names of the files that would be loaded for it."""
    _check_environment(entry.get("environment"))
    for kind, smallest in (("inputs", 0), ("outputs", OPEN_SIZE)):
        values = entry.get(kind)
        if not isinstance(values, list) or not all(_is_value(each, smallest) for each in values):
            raise Damaged(f"the manifest does not describe its {kind}")
    parts = [entry.get(kind, []) for kind in ("requires", "libraries")]
    if not all(
        isinstance(part, list) and all(isinstance(each, dict) for each in part) for part in parts
    ):
        raise Damaged("the manifest does not say what it requires")
    own = [about["tolerance"] for about in entry["outputs"] if "tolerance" in about]
    for tolerance in (entry.get("tolerance"), *own):
        if (
            isinstance(tolerance, bool)
            or not isinstance(tolerance, (int, float))
            or not 0 <= tolerance <= _LARGEST_TOLERANCE
        ):
            raise Damaged(f"the manifest's tolerance is {tolerance!r:.40}, which compares nothing")
    pieces = entry["module"]["pieces"] if "module" in entry else ["model.so"]
    samples = beside("entries").sample_files(entry)
    return [*pieces, *samples, *(each.get("file") for part in parts for each in part)]


_OF_EACH_ENTRY = {"inputs", "outputs", "environment", "tolerance"}
"""What each entry says itself."""


def _is_entry(entry):
    """Tells whether this describes an entry of an artifact for several shapes, values aside.

    An entry has no entries of its own: nobody would check what those name.
    """
    if not isinstance(entry, dict) or not entry.keys() >= _OF_EACH_ENTRY:
        return False
    if entry.keys() & {"entries", "files", "requires", "libraries"}:
        return False
    module, sample, dims = entry.get("module"), entry.get("sample"), entry.get("dims")
    return (
        isinstance(module, dict)
        and isinstance(module.get("sha256"), str)
        and isinstance(module.get("pieces"), list)
        and all(isinstance(piece, str) for piece in module["pieces"])
        and isinstance(sample, dict)
        and all(isinstance(sample.get(kind), str) for kind in ("inputs", "outputs"))
        and isinstance(dims, dict)
        and all(type(size) is int and size >= 0 for size in dims.values())
    )


def _check_padding(padding, entries):
    """Check that padding goes along dimensions of every entry, on axes that their values have."""
    entries_module = beside("entries")
    for dim, about in padding.items() if isinstance(padding, dict) else [("", None)]:
        if not isinstance(about, dict) or not all(dim in entry["dims"] for entry in entries):
            raise Damaged("the manifest does not say how inputs are padded")
        for kind in ("inputs", "outputs"):
            axes = about.get(kind)
            known = entries_module.axes_of(entries, dim, kind) or {}
            expected = [[name, axis] for name, found in known.items() for axis in found]
            if axes != expected:
                raise Damaged(
                    f"the manifest pads {dim!r:.80} along other axes than its {kind} have"
                )


def _is_value(about, smallest):
    if not (
        isinstance(about, dict)
        and isinstance(about.get("name"), str)
        and isinstance(about.get("dtype"), str)
    ):
        return False
    shape = about.get("shape", ())
    if shape is None:
        return smallest == OPEN_SIZE
    if not isinstance(shape, list) or len(shape) > _MOST_AXES:
        return False
    if not all(type(e) is int and smallest <= e <= _MOST_ELEMENTS for e in shape):
        return False
    return math.prod(max(e, 1) for e in shape) <= _MOST_ELEMENTS


def verify(folder: str | Path, manifest, samples: bool = True) -> None:
    """Compare every file with its hash; nothing of the folder is loaded before.

    Without ``samples``, those may be missing.

    Raises:
        Damaged: A file is missing, has changed, or is a library that the manifest does not list.
    """
    entries = beside("entries")
    optional = {
        name
        for entry in ([] if samples else entries.entries_of(manifest))
        for name in entries.sample_files(entry)
    }
    for name, about in manifest["files"].items():
        if name in optional and not os.path.lexists(Path(folder) / name):
            continue
        with open_listed(folder, name) as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != about["sha256"]:
                raise Damaged(f"{name:.80} has changed since it was exported")
    _check_libraries(folder, manifest["files"])


def _brings_code(name):
    """Tells whether a file of this name is a library, or says which are to be loaded.

    The case counts for nothing, as on disks that do not tell ``libm.so`` from ``LIBM.SO``.
    """
    return ".so" in name.lower() or name.lower() in LIBRARY_LISTS


def _check_libraries(folder, listed):
    """Check that a library that ``model.so`` needs is found only where the manifest has it.

    The system looks for it in the folder and, before that, in folders below it that are named after
    the processor (``glibc-hwcaps``, ``tls`` and others). A runtime looks there for lists of more.
    """

    def fail(error):
        raise Damaged(f"{error.filename} cannot be read: {error.strerror}")

    for place, folders, files in os.walk(folder, onerror=fail):
        inside = Path(place).relative_to(folder)
        for name in folders:
            if os.path.islink(Path(place) / name):
                raise Damaged(f"it holds the folder {str(inside / name)!r:.80}, which is a link")
        for name in files:
            path = str(inside / name)
            if _brings_code(name) and path not in listed:
                raise Damaged(
                    f"it holds the library {path!r:.80}, which the manifest does not list"
                )


def set_environment(manifest):
    """Sets thread counts and spinning, which the libraries read when they load.

    One setting for all runtimes, the one the artifact was measured with, whatever the shell says:
    its threads must neither outnumber the others' nor spin in their time. To run it otherwise,
    change the manifest.
    """
    os.environ.update(manifest["environment"])


def listed_source(folder, manifest, name):
    """Returns a Python file's compiled code, made from the bytes whose hash the manifest holds."""
    with open_listed(folder, name) as stream:
        source = stream.read()
    if hashlib.sha256(source).hexdigest() != manifest["files"][name]["sha256"]:
        raise Damaged(f"{name} has changed since it was exported")
    return compile(source, str(Path(folder) / name), "exec")


def run_python_parts(folder, manifest):
    """Runs what ``model.so`` calls in Python, where a toolchain had no C++ headers when built."""
    for about in manifest.get("requires", []):
        code = listed_source(folder, manifest, about["file"])
        place = str(Path(folder) / about["file"])
        exec(code, {"__name__": "collage_python_part", "__file__": place})


def load_cuda(folder):
    """Loads TVM's library for NVIDIA devices, where TVM has not loaded it.

    It passes over it in silence where the loader does not find CUDA's runtime: the artifact has
    a copy.
    """
    import tvm

    if tvm.runtime.device("cuda", 0).exist:
        return
    try:
        ctypes.CDLL(CUDART, ctypes.RTLD_GLOBAL)
    except OSError:
        ctypes.CDLL(str(folder / CUDART), ctypes.RTLD_GLOBAL)
    runtime = Path(tvm.base._LOADED_LIBS["tvm_runtime"]._name).resolve()
    ctypes.CDLL(str(runtime.with_name("libtvm_runtime_cuda.so")))


CUDART = "libcudart.so.13"


def beside(name):
    """Returns a module of this file's folder by its name, never a compiled copy of it."""
    known = sys.modules.get(f"collage_{name}")
    place = Path(__file__).resolve().with_name(f"{name}.py")
    if known is not None and known.__file__ == str(place):
        return known
    module = types.ModuleType(f"collage_{name}")
    module.__file__ = str(place)
    sys.modules[module.__name__] = module
    exec(compile(place.read_bytes(), str(place), "exec"), module.__dict__)
    return module


def numpy_dtype(name):
    """Returns the NumPy type of an element type's name, ``bfloat16`` among them."""
    import numpy as np

    if name == "string":
        return np.dtype(f"S{TEXT_BYTES}")
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def with_elements(inputs, names):
    """Returns inputs by the manifest's names; a sequence goes by the names of its elements."""
    found = {}
    for name, value in inputs.items():
        if name in names or not isinstance(value, list):
            found[name] = value
            continue
        elements = {f"{name}[{place}]": each for place, each in enumerate(value)}
        wanted = [each for each in names if each.startswith(f"{name}[")]
        if wanted and len(wanted) != len(elements):
            raise ValueError(f"{name!r} must have {len(wanted)} tensors, not {len(elements)}")
        found.update(elements)
    return found


def encoded(values):
    """Return texts of fixed width for an array of Python strings or bytes."""
    import numpy as np

    array = np.asarray(values)
    every = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]
    for each in every:
        if len(each) > TEXT_BYTES or each.endswith(b"\0"):
            raise ValueError(
                f"the text {each[:20]!r} has {len(each)} bytes or ends with a zero byte; at most "
                f"{TEXT_BYTES} bytes are supported"
            )
    return np.array(every, dtype=f"S{TEXT_BYTES}").reshape(array.shape)


def read_npz(path, kinds):
    """Returns the arrays of an .npz file by name, with the element types of the manifest."""
    import numpy as np

    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member[:-4] if member.endswith(".npy") else member
            with archive.open(member) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
            dtype = numpy_dtype(kinds[name]) if name in kinds else array.dtype
            if array.dtype != dtype and array.dtype.kind == "V":
                array = array.view(dtype)
            found[name] = array
    return found


class Model:
    """A loaded entry of an artifact; call it with arrays by input name.

    Args:
        folder: The artifact, whose files were checked.
        manifest: What it says of the entry; the manifest itself where there is one only.
        huge_pages: Whether its memory is put on huge pages.
        private: Whether its module must be another file than that of an earlier instance.
    """

    def __init__(self, folder, manifest, huge_pages=True, private=False):
        self.manifest = manifest
        start = time.perf_counter()
        resident = resident_bytes()
        import tvm
        from tvm.runtime.vm import VirtualMachine

        self._tvm = tvm
        kind = self.manifest.get("device", "cpu")
        if kind == "cuda":
            load_cuda(folder)
        self.device = tvm.runtime.device(kind, 0)
        unless = None if huge_pages else "not wanted"
        if kind != "cpu":
            unless = "it runs on a device"
        tensors = []
        if unless is None:  # before the model is there, so as not to count among its memory
            try:
                sample = beside("entries").sample_files(manifest)[0]
                tensors = self.bind(read_npz(folder / sample, self.kinds("inputs")))
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                unless = f"the sample cannot be read: {error}"
        pages = beside("huge_pages").HugePages(unless)
        os.environ[WEIGHTS_FOLDER] = str(folder)
        with beside("entries").module_file(folder, manifest, private) as module:
            library = tvm.runtime.load_module(str(module))
        self.vm = VirtualMachine(library, self.device)
        self.main = self.vm["main"]
        self.load_seconds = time.perf_counter() - start
        """Without the check of the files, the first run and the huge pages."""
        self.first_result_seconds = None
        """Loading and the first run; None until there was one."""
        if not pages.reason:
            self.first_run(tensors)
        self.huge_pages = pages.collapse()
        """(bytes, seconds, reason): what of its memory lies on huge pages, or why nothing."""
        self.memory_bytes = None
        """What loading it, with the first run where there was one, added to the process's resident
        memory; the first entry brings the runtimes with it. None: the system does not say."""
        if resident is not None:
            self.memory_bytes = max(0, resident_bytes() - resident)

    def first_run(self, tensors):
        """Run the module for the first time, which may take longer than every later one."""
        start = time.perf_counter()
        result = self.main(*tensors)
        self.wait()
        self.first_result_seconds = self.load_seconds + time.perf_counter() - start
        return result

    def kinds(self, *which):
        """Returns the element types of "inputs" or "outputs", by name."""
        return {about["name"]: about["dtype"] for of in which for about in self.manifest[of]}

    def wait(self):
        """Waits until the device is done; calls return before it is."""
        if self.manifest.get("device", "cpu") != "cpu":
            self.device.sync()

    def bind(self, inputs):
        """Returns the tensors of the inputs, in the model's order."""
        import numpy as np

        tensors = []
        inputs = with_elements(inputs, self.kinds("inputs"))
        for about in self.manifest["inputs"]:
            name, shape = about["name"], tuple(about["shape"])
            if name not in inputs:
                raise ValueError(f"input {name!r} is missing")
            array = np.asarray(inputs[name])
            is_text = about["dtype"] == "string"
            if is_text and array.dtype.kind in "OSU":
                array = encoded(array)
            if array.shape != shape or array.dtype != numpy_dtype(about["dtype"]):
                raise ValueError(
                    f"input {name!r} must be {about['dtype']}{list(shape)}, "
                    f"not {array.dtype}{list(array.shape)}"
                )
            dtype = about["dtype"]
            if is_text:
                dtype, shape = "uint8", (*shape, TEXT_BYTES)
                array = np.frombuffer(array.tobytes(), np.uint8)
            tensor = self._tvm.runtime.empty(shape, dtype, self.device)
            tensor.copyfrom(np.ascontiguousarray(array).reshape(shape))
            tensors.append(tensor)
        return tensors

    def __call__(self, inputs):
        """Run the module on one array per input; one array per output, in the manifest's order.

        Texts are arrays of Python strings. An input that is a sequence of tensors is a list; the
        tensors of an output that is one have entries of their own, NAME[0], NAME[1] and so on.
        """
        import numpy as np

        tensors = self.bind(inputs)
        first = self.first_result_seconds is None
        result = self.first_run(tensors) if first else self.main(*tensors)
        kinds = [about["dtype"] for about in self.manifest["outputs"]]
        tensors = [result] if len(kinds) == 1 else list(result)
        outputs = []
        for tensor, kind in zip(tensors, kinds, strict=True):
            array = tensor.numpy()
            dtype = numpy_dtype(kind)
            if kind == "string":
                texts = array.reshape(-1).view(dtype).reshape(array.shape[:-1])
                outputs.append(np.char.decode(texts, "utf-8") if texts.size else texts)
                continue
            outputs.append(array if array.dtype == dtype else array.view(dtype))
        return outputs


class Shapes:
    """An artifact for several shapes: picks the entry by the inputs' shapes, and loads it then."""

    def __init__(self, folder, manifest, huge_pages=True, private=False):
        self.manifest = manifest
        self.entries = beside("entries").entries_of(manifest)
        self._make = lambda number: Model(folder, self.entries[number], huge_pages, private)
        self._models = {}

    def model(self, number):
        """Returns the model of an entry, loaded where it is not yet."""
        if number not in self._models:
            self._models[number] = self._make(number)
        return self._models[number]

    def __call__(self, inputs):
        """Run the entry for these inputs; one array per output, in the manifest's order.

        Raises:
            ValueError: There is no entry for their shapes.
        """
        import numpy as np

        entries, padding = beside("entries"), self.manifest.get("padding", {})
        shapes = {name: np.shape(array) for name, array in inputs.items()}
        number, sizes = entries.pick(self.entries, shapes, padding)
        if not sizes:
            return self.model(number)(inputs)
        entry = self.entries[number]
        outputs = self.model(number)(entries.padded(inputs, entry))
        return entries.cut(outputs, entry, sizes, padding)


def resident_bytes():
    """Returns the process's resident memory in bytes; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def load(folder, huge_pages=True, samples=False, entry=None, streams=None):
    """Load an artifact. Its environment is set first, so call this before importing tvm.

    Args:
        folder: The artifact.
        huge_pages: Whether its memory is put on huge pages.
        samples: Whether its samples must be there.
        entry: The number of the only entry to load, of an artifact for several shapes.
        streams: How many instances run at once; None: as many as the artifact was made for, one
            without a pool where it says nothing.

    Returns:
        A ``Model``; ``Shapes`` where there are several entries; a ``Pool`` of these with streams.
    """
    folder = Path(folder).resolve()
    manifest = manifest_of(folder)
    verify(folder, manifest, samples)
    entries = beside("entries").entries_of(manifest)
    if entry is not None and not 0 <= entry < len(entries):
        raise ValueError(f"there is no entry {entry}: the artifact has {len(entries)}")
    if entry is not None:
        manifest = entries[entry]
    kind = Shapes if "entries" in manifest else Model
    set_environment(manifest)
    run_python_parts(folder, manifest)
    streams = manifest.get("streams") if streams is None else streams
    if streams is None:
        return kind(folder, manifest, huge_pages)

    def make(number):
        return kind(folder, manifest, huge_pages, private=number > 0)

    return beside("streams").Pool(make, streams, manifest.get("threads", 1))


def check_padding(folder):
    """Finds the dimensions of the inputs that can be padded without changing any result.

    Each entry's sample is padded to the next larger entry along one dimension, run there and
    compared with its own sample's outputs.

    Returns:
        (padding, refused): as the manifest has it, and why not for the other dimensions.
    """
    entries_module = beside("entries")
    model = load(folder, huge_pages=False, samples=True)
    entries, padding, refused = model.entries, {}, {}
    for dim in entries[0]["dims"]:
        if not all(dim in entry["dims"] for entry in entries):
            refused[dim] = "not every shape was named by its size"
            continue
        axes = {kind: entries_module.axes_of(entries, dim, kind) for kind in ("inputs", "outputs")}
        pairs = entries_module.neighbours(entries, dim)
        odd = entries_module.unexplained_axis(entries, "outputs")
        if not pairs or not axes["inputs"]:
            refused[dim] = "no two shapes differ in it alone"
            continue
        if axes["outputs"] is None or odd is not None:
            where = f"axis {odd[1]} of the output {odd[0]!r}" if odd else "an output's axis"
            refused[dim] = f"{where} follows no single dimension"
            continue
        about = {
            kind: [[name, axis] for name, along in found.items() for axis in along]
            for kind, found in axes.items()
        }
        worst, tolerance = 0.0, min(entry["tolerance"] for entry in entries)
        for small, large in pairs:
            kinds = model.model(small).kinds("inputs", "outputs")
            inputs, outputs = (
                read_npz(Path(folder) / name, kinds)
                for name in entries_module.sample_files(entries[small])
            )
            wider = entries_module.padded(inputs, entries[large])
            found = model.model(large)(wider)
            size = entries[small]["dims"][dim]
            kept = entries_module.cut(found, entries[large], {dim: size}, {dim: about})
            truth = [outputs[each["name"]] for each in entries[small]["outputs"]]
            worst = max(worst, compare(kept, truth)[1])
        if worst <= tolerance:
            padding[dim] = {**about, "max_rel_error": worst}
        else:
            refused[dim] = (
                f"padding changes the results by {worst:.2g}, which is above {tolerance:.2g}"
            )
    return padding, refused


def compare(outputs, truth):
    """Return max|y-r| and max|y-r| / max|r|, each the worst of all outputs."""
    import numpy as np

    worst_abs = worst_rel = 0.0
    for computed, true in zip(outputs, truth, strict=True):
        if computed.shape != true.shape:
            return float("inf"), float("inf")
        if true.dtype.kind in "SU":
            if not np.array_equal(encoded(computed), encoded(true)):
                return float("inf"), float("inf")
            continue
        if true.dtype.kind in "iu" and true.dtype.itemsize == 8:  # beyond what float64 tells apart
            y, r = computed.astype(np.longdouble), true.astype(np.longdouble)
        else:
            y, r = computed.astype(np.float64), true.astype(np.float64)
        finite = np.isfinite(r)
        same = (y == r) | (np.isnan(y) & np.isnan(r))
        if not same[~finite].all() or not np.isfinite(y[finite]).all():
            return float("inf"), float("inf")
        if finite.any():
            error = float(np.abs(y[finite] - r[finite]).max())
            scale = float(np.abs(r[finite]).max())
            if true.dtype.kind == "b" or (true.dtype.kind in "iu" and true.dtype.itemsize > 1):
                # Of whole numbers the share counts that differs.
                scale = error / float((y != r).mean()) if error else 0.0
            worst_abs = max(worst_abs, error)
            worst_rel = max(worst_rel, error / scale if scale > 0 else error)
    return worst_abs, worst_rel


def wrong_output(outputs, truth, manifest):
    """Return which output is farther from the truth than it may be; None: all are near enough."""
    for about, computed, true in zip(manifest["outputs"], outputs, truth, strict=True):
        absolute, relative = compare([computed], [true])
        bound = about.get("tolerance", manifest["tolerance"])
        if relative <= bound:
            continue
        name = printable(f"{about['name']:.80}")
        if bound:
            return f"max_rel_error of {name!r} {relative:.2g} is above {bound:.2g}"
        return f"{name!r} is off by {absolute:.6g} in {about['dtype']}"
    return None


def time_calls(model, inputs, seconds=2.0, least=10):
    """Returns the seconds of single calls, after two to warm up."""
    tensors = model.bind(inputs)
    for _ in range(2):
        model.main(*tensors)
    model.wait()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < least or (time.perf_counter() < end and len(taken) < 10000):
        start = time.perf_counter()
        model.main(*tensors)
        model.wait()
        taken.append(time.perf_counter() - start)
    return taken


def main(argv=None):
    """Check the folder's files and run its module from the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=str(Path(__file__).resolve().parent.parent))
    parser.add_argument("--benchmark", action="store_true", help="time it too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--inputs", metavar="FILE.npz", help="run on these inputs instead")
    parser.add_argument("--save", metavar="FILE.npz", help="write the outputs here")
    parser.add_argument("--entry", type=int, metavar="N", help="run this entry only, from 0")
    parser.add_argument("--streams", type=int, metavar="N", help="run N instances at once")
    parser.add_argument("--check-padding", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-huge-pages", action="store_true", help="leave its memory as it is")
    options = parser.parse_args(argv)
    folder = Path(options.folder)
    try:
        if options.check_padding:
            print(json.dumps(check_padding(folder)))
            return 0
        return run(folder, options)
    except Exception as error:
        lines = str(error).strip().splitlines()
        text = f"{folder}: {(lines[-1] if lines else repr(error))[:1000]}"
        print(printable(text), file=sys.stderr)
        return 1


def printable(text):
    """Returns a text without control characters, by which a name could change the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def run(folder, options):
    """Run an artifact's modules on its samples, or on other inputs; the exit status."""
    huge_pages = not options.no_huge_pages
    model = load(folder, huge_pages, not options.inputs, options.entry, options.streams)
    first = model.first if hasattr(model, "streams") else model
    entries = beside("entries").entries_of(first.manifest)
    if options.inputs:
        return run_inputs(folder, options, model, entries)
    reports = [run_sample(folder, options, model, number) for number in range(len(entries))]
    if options.json:
        report = reports[0] if len(reports) == 1 else {"artifact": str(folder), "entries": reports}
        print(json.dumps(report))
    return 0 if all(report["agrees"] for report in reports) else 1


def run_inputs(folder, options, model, entries):
    """Run one set of inputs from a file; the exit status."""
    kinds = {
        about["name"]: about["dtype"]
        for entry in entries
        for kind in ("inputs", "outputs")
        for about in entry[kind]
    }
    inputs = read_npz(options.inputs, kinds)
    outputs = model(inputs)
    names = [about["name"] for about in entries[0]["outputs"]]
    found = dict(zip(names, outputs, strict=True))
    if options.save:
        write_npz(options.save, found)
    shapes = {name: list(array.shape) for name, array in found.items()}
    report: dict = {"artifact": str(folder), "outputs": shapes}
    if isinstance(model, Model):
        report |= {"load_s": model.load_seconds, "first_result_s": model.first_result_seconds}
        report |= {"huge_pages": model.huge_pages._asdict()}
        if options.benchmark:
            report["latency_us"] = latencies(model, inputs)
    if options.json:
        print(json.dumps(report))
        return 0
    print("\n".join(printable(f"{name} {shape}") for name, shape in shapes.items()))
    if "latency_us" in report:
        print_latency(model, report["latency_us"])
    return 0


def write_npz(path, arrays):
    """Write arrays by name, uncompressed."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


def run_sample(folder, options, model, number):
    """Run an entry on its sample; says how it did, also on standard output without ``--json``."""
    pooled = hasattr(model, "streams")
    if pooled:  # an instance is loaded in the thread that it belongs to
        one = model.apply(lambda each: model_of(each, number)).result()
    else:
        one = model_of(model, number)
    manifest, kinds = one.manifest, one.kinds("inputs", "outputs")
    inputs, sample = (
        read_npz(folder / name, kinds) for name in beside("entries").sample_files(manifest)
    )
    outputs = model(inputs)
    names = [about["name"] for about in manifest["outputs"]]
    if options.save:
        write_npz(options.save, dict(zip(names, outputs, strict=True)))
    for name in names:
        if name not in sample:
            raise Damaged(f"the sample has no output {name!r:.80}")
    truth = [sample[name] for name in names]
    worst_abs, worst_rel = compare(outputs, truth)
    wrong = wrong_output(outputs, truth, manifest)
    report: dict = {
        "artifact": str(folder),
        "load_s": one.load_seconds,
        "first_result_s": one.first_result_seconds,
        "huge_pages": one.huge_pages._asdict(),
        "memory_bytes": one.memory_bytes,
        "max_abs_error": worst_abs,
        "max_rel_error": worst_rel,
        "tolerance": manifest["tolerance"],
        "agrees": wrong is None,
    }
    if wrong is not None:
        report["wrong"] = wrong
    if "dims" in manifest:
        report["dims"] = manifest["dims"]
    if options.benchmark and pooled:
        report["streams"] = model.streams
        report["expected_runs_per_s"] = expected_of(manifest, "runs_per_s")
        report["runs_per_s"] = runs_per_second(model, number, inputs)
    elif options.benchmark:
        report["latency_us"] = latencies(one, inputs)
    if not options.json:
        print_report(one, report)
    return report


def model_of(model, number):
    """Returns the model of an entry, where there are several."""
    return model.model(number) if isinstance(model, Shapes) else model


def latencies(model, inputs):
    """Returns the percentiles of single calls in µs, with what the artifact's maker measured."""
    taken = sorted(time_calls(model, inputs))
    count = len(taken)
    return {
        "median": taken[count // 2] * 1e6,
        "p20": taken[count // 5] * 1e6,
        "p80": taken[count * 4 // 5] * 1e6,
        "p50": taken[count // 2] * 1e6,
        "p90": taken[count * 9 // 10] * 1e6,
        "p99": taken[count * 99 // 100] * 1e6,
        "count": count,
        "expected": expected_of(model.manifest, "latency_us"),
    }


def expected_of(manifest, figure):
    """Returns a figure that the artifact's maker measured; None where there is no such number."""
    about = manifest.get("expected")
    number = about.get(figure) if isinstance(about, dict) else None
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return number if 0 < number <= sys.float_info.max else None


def runs_per_second(pool, number, inputs, seconds=2.0):
    """Runs of an entry that all instances of a pool finish in a second, each without a pause."""

    def work(model, begin):
        one = model_of(model, number)
        tensors = one.bind(inputs)
        for _ in range(2):
            one.main(*tensors)
        one.wait()
        begin()
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            one.main(*tensors)
            count += 1
        one.wait()
        return count / (time.perf_counter() - start)

    return sum(pool.at_once(work))


def print_report(model, report):
    """Print what ``run_sample`` found out."""
    if "dims" in report:
        sizes = " ".join(f"{name}={size}" for name, size in report["dims"].items())
        print(f"{printable(sizes)}:")
    print(
        f"max_abs_error {report['max_abs_error']:.3g}  max_rel_error "
        f"{report['max_rel_error']:.3g}  (tolerance {report['tolerance']:.3g}): "
        + ("agrees with the sample" if report["agrees"] else f"DIFFERS: {report['wrong']}")
    )
    if report["memory_bytes"] is not None:
        print(f"{report['memory_bytes'] / 1e6:.1f} MB of memory, with what was loaded for it")
    pages = model.huge_pages
    if pages.bytes:
        print(f"{pages.bytes / 1e6:.1f} MB on huge pages, moved in {pages.seconds * 1e3:.0f} ms")
    else:
        print(f"nothing on huge pages: {pages.reason}")
    if "runs_per_s" in report:
        expected = report["expected_runs_per_s"]
        print(
            f"{report['runs_per_s']:.1f} runs per second by {report['streams']} instances"
            + (f" ({expected:.1f} expected)" if expected else "")
        )
    if "latency_us" in report:
        print_latency(model, report["latency_us"])


def print_latency(model, latency):
    """Print how long loading, the first and later calls take."""
    expected = latency["expected"]
    print(
        f"loaded in {model.load_seconds * 1e3:.0f} ms, first result after "
        f"{model.first_result_seconds * 1e3:.0f} ms"
    )
    print(
        f"median {latency['median']:.1f} us  p90 {latency['p90']:.1f} us  "
        f"p99 {latency['p99']:.1f} us  ({latency['count']} calls"
        + (f", {expected:.1f} us expected)" if expected else ")")
    )


if __name__ == "__main__":
    sys.exit(main())
