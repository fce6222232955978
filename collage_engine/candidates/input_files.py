"""Reads the samples that a user gives: arrays of numpy, or tensors as ONNX's test data has them.

They come as one archive (``service/input_archive.py``). An archive with arrays (``.npz``) holds one
sample, or several along a leading axis that the model's inputs do not have. An archive with other
archives and with folders of tensors (``test_data_set_0/input_0.pb``) holds a sample for each; what
such a folder says of outputs (``output_0.pb``) comes along.
"""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto, numpy_helper

from collage_engine.model.values import TEXT_TYPE, encoded
from collage_engine.support.errors import UsageError, displayable, short_reason

ArrayKind = tuple[tuple[int, ...], np.dtype]
"""Shape and element type."""
Arrays = dict[str, np.ndarray]

MOST_SAMPLES = 100
"""Samples at most, chosen: each takes a run of the model for each of some ten contenders."""
_TENSOR = re.compile(r"(?:(.*)/)?(input|output)_(\d{1,6})\.pb")


def read_samples(
    content: bytes, expected: Mapping[str, ArrayKind], outputs: Mapping[str, ArrayKind | None]
) -> list[tuple[Arrays, Arrays]]:
    """Return the samples of an archive.

    Args:
        content: The archive.
        expected: Shape and element type of each input by name, in the model's order.
        outputs: The same of the outputs; None where the shape depends on the data.

    Returns:
        The inputs of each sample, and what the archive says of its outputs: nothing for most.

    Raises:
        UsageError: A member is no input of the model, of another kind, or not readable.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            samples = _samples_of(archive, expected, outputs)
    except UsageError:
        raise
    except Exception as error:  # an archive can be broken, encrypted or endless in many ways
        reason = short_reason(error, line="first")
        raise UsageError(f"--inputs holds what is no array of numbers: {reason}") from error
    if len(samples) > MOST_SAMPLES:
        raise UsageError(f"--inputs holds {len(samples)} samples; at most {MOST_SAMPLES} are taken")
    return samples


def _samples_of(
    archive: zipfile.ZipFile,
    expected: Mapping[str, ArrayKind],
    outputs: Mapping[str, ArrayKind | None],
) -> list[tuple[Arrays, Arrays]]:
    members = archive.infolist()
    nested = [member for member in members if member.filename.endswith(".npz")]
    tensors: dict[str, dict[str, zipfile.ZipInfo]] = defaultdict(dict)
    for member in members:
        if match := _TENSOR.fullmatch(member.filename):
            tensors[match[1] or ""][f"{match[2]}_{int(match[3])}"] = member
    if not nested and not tensors:
        return [(each, {}) for each in _along_first_axis(_arrays(archive, expected), expected)]
    samples: list[tuple[Arrays, Arrays]] = []
    for member in nested:
        with zipfile.ZipFile(io.BytesIO(archive.read(member))) as inner:
            found_here = _along_first_axis(_arrays(inner, expected), expected)
        samples += [(one, {}) for one in found_here]
    for folder in sorted(tensors, key=lambda name: (len(name), name)):
        inputs, stated = (
            {
                name: _fitting(name, _array(archive, tensors[folder][f"{what}_{number}"]), kind)
                for number, (name, kind) in enumerate(kinds.items())
                if kind is not None and f"{what}_{number}" in tensors[folder]
            }
            for what, kinds in (("input", expected), ("output", outputs))
        )
        found_here = _along_first_axis(inputs, expected)
        samples += [(one, stated if len(found_here) == 1 else {}) for one in found_here]
    return samples


def stated_sizes(content: bytes, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the arrays of the first sample, by name of the input.

    Args:
        content: The archive.
        names: The model's inputs, in order.

    Returns:
        The sizes as they stand, an axis of samples among them. What cannot be read is left out;
        ``read_samples`` says what is wrong with it.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            tensor = _TENSOR.fullmatch(member.filename)
            with contextlib.suppress(Exception):
                if member.filename.endswith(".npz"):
                    sizes = stated_sizes(archive.read(member), names) | sizes
                elif tensor and tensor[2] == "input":
                    sizes.setdefault(names[int(tensor[3])], _array(archive, member).shape)
                elif not tensor:
                    name = member.filename.removesuffix(".npy")
                    sizes[name or names[0]] = _array(archive, member).shape
    return sizes


def _along_first_axis(arrays: Arrays, expected: Mapping[str, ArrayKind]) -> list[Arrays]:
    """Return one sample, or several where arrays have one more axis than the inputs."""
    for name in expected:
        if name not in arrays:
            raise UsageError(f"--inputs: input {name!r} is missing")
    several = {name for name, (shape, _) in expected.items() if arrays[name].ndim > len(shape)}
    counts = {name: len(arrays[name]) for name in sorted(several)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} for {name!r}" for name, count in counts.items())
        raise UsageError(f"--inputs holds unequal numbers of samples: {told}")
    count = min(counts.values(), default=1)
    if count < 1:
        raise UsageError("--inputs holds no sample: the leading axis has size 0")
    return [
        {name: arrays[name][k] if name in several else arrays[name] for name in expected}
        for k in range(count)
    ]


def _arrays(archive: zipfile.ZipFile, expected: Mapping[str, ArrayKind]) -> Arrays:
    """Read the arrays of an archive, each for one input, with or without an axis of samples."""
    arrays: Arrays = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if not name and len(expected) == 1:  # a file of an array alone
            (name,) = expected
        if not name:
            raise UsageError(
                f"--inputs: a single array is for a model with one input, and this one has "
                f"{', '.join(expected)}: put a NAME.npy for each into a folder"
            )
        if name not in expected:
            raise UsageError(
                f"--inputs: the model has no input {displayable(name)!r}; "
                f"it has {', '.join(expected)}"
            )
        if name in arrays:
            raise UsageError(f"--inputs holds two arrays for the input {name!r}")
        arrays[name] = _fitting(name, _array(archive, member), expected[name])
    return arrays


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array of numpy, or one tensor of an ONNX test data set."""
    with archive.open(member) as stream:
        if not _TENSOR.fullmatch(member.filename):
            array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
            return array
        tensor = TensorProto.FromString(stream.read())
    if tensor.data_location == TensorProto.EXTERNAL:
        raise UsageError(
            f"--inputs: {displayable(member.filename)} keeps its values in another file"
        )
    return numpy_helper.to_array(tensor)


def _fitting(name: str, array: np.ndarray, expected: ArrayKind) -> np.ndarray:
    """Return an array as the engine holds it.

    Raises:
        UsageError: It is neither what the model takes nor several of these.
    """
    if expected[1] == TEXT_TYPE and array.dtype.kind in "SUO":
        array = encoded(array)
    shape = array.shape
    several = len(shape) == len(expected[0]) + 1 and shape[1:] == expected[0]
    if shape != expected[0] and not (several and shape[0] <= MOST_SAMPLES):
        raise UsageError(
            f"--inputs: {name!r} has shape {displayable(str(list(shape)))}, the model has "
            f"{list(expected[0])}, or up to {MOST_SAMPLES} samples of it along one more axis"
        )
    if array.dtype != expected[1]:
        given = displayable(str(array.dtype))
        raise UsageError(f"--inputs: {name!r} is {given}, the model has {expected[1]}")
    return array
