"""An artifact's manifest: what identifies the folder, and whether its files are as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_engine.artifact.loader import run_artifact
from collage_engine.artifact.loader.run_artifact import FORMAT, MANIFEST
from collage_engine.support.errors import ArtifactError, UsageError
from collage_engine.support.files import LARGEST_TEXT, read_file


def is_artifact(folder: Path) -> bool:
    """Return whether a folder holds an artifact (of any version)."""
    try:
        manifest = json.loads(read_file(folder / MANIFEST, LARGEST_TEXT))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an artifact of this version.

    ``ArtifactError`` says what is wrong with it.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    try:
        manifest: dict[str, Any] = run_artifact.manifest_of(folder)
    except (run_artifact.Damaged, OSError) as error:
        raise ArtifactError(f"{folder}: {error}") from error
    return manifest


def verify_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Compare all files with their hashes, as the loaders that artifacts carry do.

    Raises:
        ArtifactError: A file is missing or differs.
    """
    try:
        run_artifact.verify(folder, manifest)
    except (run_artifact.Damaged, OSError) as error:
        raise ArtifactError(f"{folder}: {error}") from error


def expected_machine(manifest: Mapping[str, Any]) -> str:
    """Return the device on which an artifact's own time was measured; empty: it does not say."""
    return str(manifest["expected"].get("machine", ""))
