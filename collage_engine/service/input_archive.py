"""Puts representative inputs, from files or arrays, into the one archive that a run takes.

``candidates/input_files.py`` reads it where the model is known.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from collage_engine.support.errors import UsageError
from collage_engine.support.files import LARGEST_TABLE, read_file

MOST_FILE_BYTES = 4 * LARGEST_TABLE
"""Bytes of the largest file that an option may name: inputs may be larger than tables."""
ONLY_INPUT = ".npy"
"""Member of an archive whose array is for the model's only input, whatever that is called."""


def file_bytes(option: str, path: str | Path) -> bytes:
    """Return the file that an option names. Raises UsageError."""
    try:
        return read_file(path, MOST_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from error


def input_archive(given: Iterable[str | Path | Mapping[str, Any]]) -> bytes | None:
    """Return the samples in one archive, unread; None: there are none.

    Args:
        given: Each is an ``.npz`` file with an array for each input's name; an ``.npy`` file for
            the only input of a model; an ``input_0.pb`` of ONNX test data; a folder of ONNX test
            data or of ``NAME.npy`` files; or arrays by input name.

    Raises:
        UsageError: A path is none of these.
    """
    files: dict[str, bytes] = {}
    folders: dict[Path, int] = {}
    for number, each in enumerate(given):
        if isinstance(each, Mapping):
            files[f"{number}.npz"] = _npz(each)
        elif Path(each).is_dir():
            files |= _of_folder(Path(each), number)
        elif Path(each).suffix == ".pb":
            folder = folders.setdefault(Path(each).absolute().parent, number)
            files[f"{folder}/{Path(each).name}"] = file_bytes("--inputs", each)
        else:
            content = file_bytes("--inputs", each)
            if content.startswith(b"\x93NUMPY"):
                content = _archive({ONLY_INPUT: content})
            elif not zipfile.is_zipfile(io.BytesIO(content)):
                raise UsageError(
                    f"--inputs {each} is no .npz file: write it with numpy.savez(FILE, INPUT=array)"
                )
            files[f"{number}.npz"] = content
    if list(files) == ["0.npz"]:
        return files["0.npz"]
    return _archive(files) if files else None


def _of_folder(folder: Path, number: int) -> dict[str, bytes]:
    """Return the members of an archive that the files of a folder become."""
    inside = sorted([*folder.glob("*.pb"), *folder.glob("test_data_set_*/*.pb")])
    tensors = [each for each in inside if each.name.startswith(("input_", "output_"))]
    arrays = sorted(folder.glob("*.npy"))
    if not tensors and not arrays:
        raise UsageError(
            f"--inputs {folder}: there is no test_data_set_*/input_*.pb in it, and no NAME.npy"
        )
    if tensors:
        return {
            f"{number}/{tensor.relative_to(folder).as_posix()}": file_bytes("--inputs", tensor)
            for tensor in tensors
        }
    content = {array.name: file_bytes("--inputs", array) for array in arrays}
    return {f"{number}.npz": _archive(content)}


def _npz(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays by name as the bytes of an .npz file."""
    import numpy as np

    made = {}
    for name, array in arrays.items():
        stream = io.BytesIO()
        try:
            np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
        except ValueError as error:
            raise UsageError(f"the input {name!r} is no array of numbers or texts") from error
        made[f"{name}.npy"] = stream.getvalue()
    return _archive(made)


def _archive(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()
