"""One artifact out of several: a folder for each shape, and one manifest above them."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_engine.artifact.artifact import check_target_folder, put_artifact, write_manifest
from collage_engine.artifact.manifest import file_entry, read_manifest
from collage_engine.artifact.own_file import OwnFile
from collage_engine.machine.loader.run_artifact import MANIFEST
from collage_engine.records.shapes import Sharing
from collage_engine.support.errors import ArtifactError

Transfer = Callable[[Path, Path], object]


def combine_artifacts(
    folders: Sequence[Path],
    dims: Sequence[Mapping[str, int]],
    out: Path,
    own: OwnFile | None = None,
    padding: str | None = None,
) -> Sharing:
    """Write several artifacts of one model as one, each in a folder of its own, unchanged.

    Equal files are stored once, by hard links. In a copy of the folder that has no links they take
    their place several times, and nothing else changes.

    Args:
        folders: The artifacts, each for other shapes of the inputs.
        dims: For each of them the sizes of the dimensions that tell it from the others.
        out: The folder to write; it must be new, empty or an artifact.
        own: The model's own file, which runs other shapes; None: they are refused.
        padding: The dimension of which fewer rows may be padded, if there is one.

    Returns:
        How large it is.

    Raises:
        ArtifactError: They are for different devices, or ``out`` cannot be written; then what was
            there is still there.
    """
    check_target_folder(out)
    manifests = [read_manifest(folder) for folder in folders]
    for key in ("target", "device", "architecture"):
        if len({manifest.get(key) for manifest in manifests}) > 1:
            raise ArtifactError(f"artifacts for different devices cannot be combined ({key})")
    entries = [
        {
            "folder": str(number),
            "dims": dict(sizes),
            "inputs": manifest["inputs"],
            "outputs": manifest["outputs"],
        }
        for number, (sizes, manifest) in enumerate(zip(dims, manifests, strict=True))
    ]
    if not all(padding in sizes for sizes in dims):
        padding = None
    if padding is not None and own is not None:
        for entry, manifest, us in zip(entries, manifests, own.known_us, strict=True):
            placed_us = manifest["placement"]["measured_us"] or 0.0
            # The own file's time is taken to follow the number of rows.
            entry["pays_from"] = math.ceil(placed_us / us * entry["dims"][padding])
    shared = _shared(manifests) | {"padding": padding}
    files_of_own: dict[str, tuple[Path, str]] = {}
    if own is not None:
        shared["others"], files_of_own = own.files()
    of_own = {name: file_entry(*file) for name, file in files_of_own.items()}

    def fill(folder: Path) -> None:
        stored: dict[str, Path] = {}

        def put(source: Path, name: str, digest: str, transfer: Transfer = os.link) -> None:
            """Store a file, as another name of an equal one where there is one."""
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                (os.link if digest in stored else transfer)(stored.get(digest, source), target)
            except OSError:
                shutil.copyfile(source, target)
            stored[digest] = target

        files = {}
        for entry, source, manifest in zip(entries, folders, manifests, strict=True):
            for name, about in manifest["files"].items():
                put(source / name, f"{entry['folder']}/{name}", about["sha256"])
            name = f"{entry['folder']}/{MANIFEST}"
            shutil.copyfile(source / MANIFEST, folder / name)
            files[name] = file_entry(folder / name)
        for name, about in manifests[0]["files"].items():
            if name.startswith("loader/"):
                put(folders[0] / name, name, about["sha256"])
                files[name] = about
        for name, (source, _) in files_of_own.items():
            put(source, name, of_own[name]["sha256"], shutil.copyfile)  # the user's stays apart
        write_manifest(folder, shared | {"entries": entries, "files": files | of_own})

    put_artifact(out, fill)
    every = [*(manifest["files"] for manifest in manifests), of_own]
    sizes = [about for files in every for about in files.values()]
    return Sharing(
        bytes=sum({about["sha256"]: about["bytes"] for about in sizes}.values()),
        apart_bytes=sum(about["bytes"] for about in sizes),
        padded=padding or "",
        others=own.runtime if own is not None else "",
    )


def _shared(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the manifest above those of all shapes says of them together."""
    first = manifests[0]
    shared: dict[str, Any] = {
        key: first[key]
        for key in ("format", "format_version", "target", "device", "architecture")
        if key in first
    }
    shared["model"] = {key: about for key, about in first["model"].items() if key != "shapes"}
    shared["threads"] = max(manifest["threads"] for manifest in manifests)
    # One setting for the whole process: as many threads as any entry has. Nobody spins where one
    # entry must not, since the variables that forbid it stand in no other entry.
    by_threads = sorted(manifests, key=lambda manifest: manifest["threads"])
    shared["environment"] = {
        k: v for thread in by_threads for k, v in thread["environment"].items()
    }
    return shared
