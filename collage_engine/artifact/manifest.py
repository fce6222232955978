"""An artifact's manifest: what identifies the folder, and whether its files are as they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_engine.records.errors import ArtifactError, UsageError
from collage_engine.records.versions import ARTIFACT_FORMAT

FORMAT = "collage-artifact"
MANIFEST = "manifest.json"


def is_artifact(folder: Path) -> bool:
    """Whether a folder holds an artifact (of any version)."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact of this version; ``ArtifactError`` says what is wrong with it."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder / MANIFEST} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{folder} is no artifact of this project")
    if manifest.get("format_version") != ARTIFACT_FORMAT:
        raise ArtifactError(
            f"{folder} is an artifact of version {manifest.get('format_version')}; "
            f"this is version {ARTIFACT_FORMAT}: export it again"
        )
    return manifest


def verify_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """``ArtifactError`` when a file is missing or differs from its hash in the manifest."""
    for name, about in manifest["files"].items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ArtifactError(f"{folder}: the manifest names {name}, outside the folder")
        if not path.is_file():
            raise ArtifactError(f"{folder}: {name} is missing")
        if sha256(path) != about["sha256"]:
            raise ArtifactError(f"{folder}: {name} has changed since it was exported")


def requirements(folder: Path) -> list[str]:
    """What an artifact needs beside its own files and TVM's runtime, in words."""
    return [
        f"it needs Python: {about['reason']}" for about in read_manifest(folder).get("requires", ())
    ]


def sha256(path: Path) -> str:
    """Of a file's content, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
