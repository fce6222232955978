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

An artifact is code: run it only if you trust whoever made it. Before anything of it is loaded, the
SHA-256 of every file is compared with the manifest's. Whoever can change a file can change its hash
too; sign the folder where that matters.

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
import os
import time
import types
import zipfile
from pathlib import Path

FORMAT, FORMAT_VERSION = "collage-artifact", 2
"""What the manifest says that it is."""
MANIFEST = "manifest.json"
TEXT_BYTES = 256
"""Bytes of a text at most: it is UTF-8, filled up with zeros, in one more dimension of a tensor."""
WEIGHTS_FOLDER = "COLLAGE_WEIGHTS_FOLDER"
"""Environment variable by which the toolchains' runtimes find files of weights."""
OPEN_SIZE = -1
"""Stands in an output's shape for a size that depends on the data, so that each run has its own;
the shape is null where even the number of dimensions does."""


class Damaged(ValueError):
    """The folder is not what its manifest says, or that is no manifest of this version."""


def manifest_of(folder: str | Path) -> dict:
    """Return the artifact's manifest; see ``verify`` for its files.

    Raises:
        Damaged: It is no manifest of this version.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes()) if path.is_file() else None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(f"{MANIFEST} is no manifest of an artifact")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise Damaged(
            f"it is an artifact of version {manifest.get('format_version')!r:.40}, and this loader "
            f"takes version {FORMAT_VERSION} only: export it again"
        )
    return manifest


def verify(folder: str | Path, manifest, samples: bool = True) -> None:
    """Compare every file with its hash; nothing of the folder is loaded before.

    Without ``samples``, those may be missing.

    Raises:
        Damaged: A file is missing or has changed, or the manifest has no hash of one that would be
            loaded.
    """
    listed, entries = beside("entries"), beside("entries").entries_of(manifest)
    optional = {name for entry in entries for name in listed.sample_files(entry)}
    needed = {name for entry in entries for name in listed.module_files(entry)} | optional
    needed |= {
        about["file"] for kind in ("libraries", "requires") for about in manifest.get(kind, ())
    }
    for name in needed - manifest["files"].keys():
        raise Damaged(f"the manifest has no hash of {name!r:.80}, which would be loaded")
    for name, about in manifest["files"].items():
        path = Path(folder) / name
        if not path.is_file():  # opening a pipe could wait for ever
            if name in optional and not samples and not os.path.lexists(path):
                continue
            raise Damaged(f"{name:.80} is missing or no regular file")
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != about["sha256"]:
                raise Damaged(f"{name:.80} has changed since it was exported")


def set_environment(manifest):
    """Sets thread counts and spinning, which the libraries read when they load.

    One setting for all runtimes, the one the artifact was measured with, whatever the shell says:
    its threads must neither outnumber the others' nor spin in their time. To run it otherwise,
    change the manifest.
    """
    os.environ.update(manifest["environment"])


def run_python_parts(folder, manifest):
    """Runs what ``model.so`` calls in Python, where a toolchain had no C++ headers when built."""
    for about in manifest.get("requires", []):
        path = Path(folder) / about["file"]
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, {"__name__": "collage_python_part", "__file__": str(path)})


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
    parser.add_argument("--no-huge-pages", action="store_true", help="leave its memory as it is")
    options = parser.parse_args(argv)
    folder = Path(options.folder)
    try:
        return run(folder, options)
    except Exception as error:
        lines = str(error).strip().splitlines()
        text = f"{folder}: {(lines[-1] if lines else repr(error))[:500]}"
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
