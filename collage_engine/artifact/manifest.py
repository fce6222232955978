"""An artifact's manifest: what identifies the folder, and whether its files are as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collage_engine.machine.loader import run_artifact
from collage_engine.machine.loader.run_artifact import FORMAT, MANIFEST
from collage_engine.support.errors import ArtifactError, UsageError
from collage_engine.support.files import LARGEST_TEXT, read_file


def is_artifact(folder: Path) -> bool:
    """Return whether a folder holds an artifact (of any version)."""
    try:
        manifest = json.loads(read_file(folder / MANIFEST, LARGEST_TEXT))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def read_manifest(folder: Path, verify: bool = False) -> dict[str, Any]:
    """Return the manifest of an artifact of this version.

    Args:
        folder: The artifact.
        verify: Compare all files with their hashes, too, as the loaders that artifacts carry do.

    Raises:
        ArtifactError: It is no such artifact, or a file is missing or differs.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    try:
        manifest: dict[str, Any] = run_artifact.manifest_of(folder)
        if verify:
            run_artifact.verify(folder, manifest)
    except (run_artifact.Damaged, OSError) as error:
        raise ArtifactError(f"{folder}: {error}") from error
    return manifest


def timed_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an artifact whose single calls can be timed.

    Raises:
        ArtifactError: The folder is no artifact, or was changed.
        UsageError: It is for several shapes, or for throughput.
    """
    manifest = read_manifest(folder, verify=True)
    if "entries" in manifest:
        first = manifest["entries"][0]["folder"]
        raise UsageError(f"{folder} is for several shapes: name one of them, {folder / first}")
    if manifest.get("streams") is not None:
        raise UsageError(f"{folder} was made for throughput: single calls are timed here")
    return manifest


def file_entry(file: Path, licence: str | None = None) -> dict[str, Any]:
    """Return what a manifest says of a file: its hash, its size, and its licence if known."""
    entry = {"sha256": run_artifact.sha256(file), "bytes": file.stat().st_size}
    return entry if licence is None else entry | {"licence": licence}
