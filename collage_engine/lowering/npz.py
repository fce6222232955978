"""Uncompressed .npz files with any array name and any element type.

``np.savez`` takes no array called ``file`` and numpy cannot name bfloat16: such arrays are
written as raw 2-byte items, and their true type comes from elsewhere (the manifest).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Write arrays to a file without compression; equal arrays give equal bytes.

    Args:
        path: The file.
        arrays: The arrays by name, in the order in which they are written.

    Returns:
        Where the values of each array begin in the file, and how many bytes they are.
    """
    places = {}
    with path.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(
                    stream,
                    np.ascontiguousarray(array).reshape(array.shape),
                    allow_pickle=False,
                )
                places[name] = file.tell() - array.nbytes, array.nbytes
    return places
