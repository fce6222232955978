"""The entries of an artifact for several shapes: which one runs some inputs, and its module's file.

An entry has what the manifest of an artifact for one shape has: inputs, outputs, environment,
sample, tolerance. Its module stands in pieces, each a file that is named by its SHA-256, so that
weights which are packed alike in several entries lie in the folder once.

Standard library and NumPy only: artifacts carry this file beside their loader.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
"""An entry, or a whole manifest."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by name of the input or output."""
MODULE_FILE = "model.so"
_BLOCK = 1 << 20
"""Bytes that are copied at once; chosen."""


class NoSuchShape(ValueError):
    """No entry of the artifact takes inputs of these shapes."""


def entries_of(manifest: Entry) -> list[Entry]:
    """Returns the artifact's entries, each with what it shares with the others.

    An artifact without ``entries`` has one.
    """
    if "entries" not in manifest:
        return [dict(manifest)]
    if not manifest["entries"]:
        raise ValueError("the manifest has no entries")
    shared = {key: value for key, value in manifest.items() if key != "entries"}
    return [{**shared, **entry} for entry in manifest["entries"]]


def shapes_of(entry: Entry, kind: str = "inputs") -> Shapes:
    """Returns the shapes of an entry's inputs or outputs, by name."""
    return {about["name"]: tuple(about["shape"] or ()) for about in entry[kind]}


def sample_files(entry: Entry) -> tuple[str, str]:
    """Return names of the files with an entry's sample inputs and outputs."""
    sample = entry.get("sample", {})
    inputs = sample.get("inputs", "sample_input.npz")
    return inputs, sample.get("outputs", "sample_output.npz")


def module_files(entry: Entry) -> list[str]:
    """Return the names of the files that an entry's module stands in, in order."""
    return list(entry["module"]["pieces"]) if "module" in entry else [MODULE_FILE]


def shape_text(shapes: Shapes) -> str:
    """Return shapes as one text, such as ``x [1, 3, 224, 224], y [1]``."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


# -- dimensions ------------------------------------------------------------------------


def axes_of(entries: Sequence[Entry], dim: str, kind: str) -> dict[str, list[int]] | None:
    """Return where a dimension's size stands among the inputs or outputs of all entries.

    Args:
        entries: The artifact's entries.
        dim: A dimension that they name.
        kind: "inputs" or "outputs".

    Returns:
        The axes by name of the value: those whose extent differs between entries and is the
        dimension's size in each of them; None where an axis is that of two dimensions.
    """
    found: dict = {}
    names = _common_dims(entries)
    for value in shapes_of(entries[0], kind):
        extents = [shapes_of(entry, kind)[value] for entry in entries]
        if len({len(each) for each in extents}) > 1:
            return None
        for axis in range(len(extents[0])):
            along = [each[axis] for each in extents]
            follows = [d for d in names if along == [entry["dims"][d] for entry in entries]]
            if len(set(along)) < 2 or dim not in follows:
                continue
            if len(follows) > 1:
                return None
            found.setdefault(value, []).append(axis)
    return found


def _common_dims(entries):
    """Returns the dimensions that every entry has a size of."""
    return [dim for dim in entries[0].get("dims", {}) if all(dim in e["dims"] for e in entries)]


def unexplained_axis(entries: Sequence[Entry], kind: str = "outputs") -> tuple[str, int] | None:
    """(name, axis) of a value whose extent differs by no single dimension's size, or None."""
    explained = {
        (name, axis)
        for dim in _common_dims(entries)
        for name, axes in (axes_of(entries, dim, kind) or {}).items()
        for axis in axes
    }
    for name, first in shapes_of(entries[0], kind).items():
        for axis in range(len(first)):
            along = {shapes_of(entry, kind)[name][axis : axis + 1] for entry in entries}
            if len(along) > 1 and (name, axis) not in explained:
                return name, axis
    return None


def pick(
    entries: Sequence[Entry], shapes: Shapes, padding: Entry | None = None
) -> tuple[int, dict[str, int]]:
    """Return the entry that runs inputs of some shapes.

    Args:
        entries: The artifact's entries.
        shapes: Shapes of the inputs by name.
        padding: The manifest's: the dimensions along which padding is harmless.

    Returns:
        The entry's number, and the sizes of the dimensions along which the inputs have to be
        padded: none of them where the entry has the very shapes.

    Raises:
        NoSuchShape: No entry takes them.
    """
    every = [shapes_of(entry) for entry in entries]
    for number, wanted in enumerate(every):
        if all(shapes.get(name) == shape for name, shape in wanted.items()):
            return number, {}
    fitting = []
    for number, (entry, wanted) in enumerate(zip(entries, every, strict=True)):
        sizes = _padded_sizes(wanted, shapes, padding or {})
        if sizes is not None:
            elements = sum(_count(shape) for shape in wanted.values())
            smaller = {dim: size for dim, size in sizes.items() if size < entry["dims"][dim]}
            fitting.append((elements, number, smaller))
    if fitting:
        _, number, sizes = min(fitting, key=lambda each: each[:2])
        return number, sizes
    has = "; ".join(shape_text(wanted) for wanted in every)
    more = f"; inputs may be smaller along {', '.join(padding)}" if padding else ""
    raise NoSuchShape(f"the artifact has no entry for {shape_text(shapes)}; it has {has}{more}")


def _count(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


def _padded_sizes(wanted, shapes, padding):
    """Returns the sizes of the dimensions to pad along; None where no entry can be reached."""
    dims = {(name, axis): d for d, about in padding.items() for name, axis in about["inputs"]}
    sizes: dict = {}
    for name, target in wanted.items():
        given = shapes.get(name)
        if given is None or len(given) != len(target):
            return None
        for axis, (have, need) in enumerate(zip(given, target, strict=True)):
            dim = dims.get((name, axis))
            if dim is None:
                if have != need:
                    return None
            elif not 0 < have <= need or sizes.setdefault(dim, have) != have:
                return None
    return sizes


def padded(arrays, entry):
    """Returns inputs with zeros behind them, as large as an entry takes them."""
    import numpy as np

    found = {}
    for name, shape in shapes_of(entry).items():
        array = np.asarray(arrays[name])
        if array.shape != shape:
            larger = np.zeros(shape, array.dtype)
            larger[tuple(slice(extent) for extent in array.shape)] = array
            array = larger
        found[name] = array
    return found


def cut(outputs, entry, sizes, padding):
    """Returns an entry's outputs without what belongs to padding, in the same order."""
    found = []
    for about, array in zip(entry["outputs"], outputs, strict=True):
        inside = [slice(None)] * array.ndim
        for dim, size in sizes.items():
            for name, axis in padding[dim]["outputs"]:
                if name == about["name"]:
                    inside[axis] = slice(size)
        found.append(array[tuple(inside)])
    return found


# -- modules ---------------------------------------------------------------------------


@contextlib.contextmanager
def module_file(folder, entry, private=False):
    """Gives the file of an entry's module, to be loaded inside the ``with`` block.

    Args:
        folder: The artifact.
        entry: One of its entries.
        private: Whether the file must not be one that this process may have loaded before.

    Raises:
        ValueError: What the pieces hold is not the module that the manifest describes.
    """
    about = entry.get("module")
    if about is None and not private:
        yield Path(folder) / MODULE_FILE
        return
    preload(folder, entry)
    place = Path(tempfile.mkdtemp(prefix="collage-module-"))
    try:
        digest = hashlib.sha256()
        with (place / MODULE_FILE).open("wb") as module:
            for piece in module_files(entry):
                with (Path(folder) / piece).open("rb") as stream:
                    while block := stream.read(_BLOCK):
                        digest.update(block)
                        module.write(block)
        if about is not None and digest.hexdigest() != about["sha256"]:
            raise ValueError("the pieces of a module are not those that the manifest describes")
        yield place / MODULE_FILE
    finally:
        shutil.rmtree(place, ignore_errors=True)


def preload(folder, entry):
    """Load the libraries that a module needs, which it would look for beside itself.

    Those that need others come after them, whatever their order in the manifest.
    """
    waiting = [each["file"] for each in entry.get("libraries", []) if each.get("needed")]
    while waiting:
        left, why = [], None
        for name in waiting:
            try:
                ctypes.CDLL(str(Path(folder) / name))
            except OSError as error:
                left.append(name)
                why = error
        if len(left) == len(waiting):
            raise OSError(f"{left[0]} cannot be loaded: {why}")
        waiting = left
