"""One artifact out of several: an entry for each shape, and what they have in common once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_engine.artifact.artifact import check_target_folder, put_artifact
from collage_engine.artifact.loader.entries import (
    axes_of,
    sample_files,
    shape_text,
    shapes_of,
    unexplained_axis,
)
from collage_engine.artifact.loader.run_artifact import MANIFEST
from collage_engine.artifact.manifest import read_manifest
from collage_engine.artifact.pieces import Pieces, write_pieces
from collage_engine.build.built import MODULE_FILE
from collage_engine.records.errors import ArtifactError
from collage_engine.records.shapes import PaddingProofs, Sharing

PIECES = "pieces"
"""The folder of an artifact that holds what its modules are made of."""
OF_AN_ENTRY = (
    "inputs",
    "outputs",
    "placement",
    "threads",
    "streams",
    "spin",
    "environment",
    "expected",
    "tolerance",
    "unmeasured",
)
"""What a manifest says of one shape; all else is the same for all shapes."""


def combine_artifacts(
    folders: Sequence[Path],
    dims: Sequence[Mapping[str, int]],
    out: Path,
    padding: PaddingProofs | None = None,
) -> dict[str, Any]:
    """Write an artifact with an entry for each of several artifacts of one model.

    Args:
        folders: The artifacts, each for other shapes of the inputs.
        dims: For each of them the sizes of the dimensions that tell it from the others.
        out: The folder to write; it must be new, empty or an artifact.
        padding: For each dimension the proof that inputs may be padded to the next larger entry
            along it, or why there is none; None: inputs are not to be padded.

    Returns:
        The manifest. Its ``sizes`` say how many bytes the modules take, and would take apart; its
        ``not_padded`` says why inputs are not padded along a dimension.

    Raises:
        ArtifactError: They are of different models or devices, two are for the same shapes, or
            ``out`` cannot be written; then what was there is still there.
    """
    check_target_folder(out)
    manifests = [read_manifest(folder) for folder in folders]
    _check_alike(manifests)
    made: dict[str, Any] = {}

    def fill(folder: Path) -> None:
        made.update(_fill(folder, folders, manifests, dims))
        _write_manifest(folder, made)
        if padding is not None:
            made["padding"], made["not_padded"] = padding_of(made["entries"], padding)
            _write_manifest(folder, made)

    put_artifact(out, fill)
    return made


def sharing_of(manifest: Mapping[str, Any]) -> Sharing:
    """Return what the manifest of an artifact with several entries says of size and padding."""
    return Sharing(
        modules_bytes=manifest["sizes"]["modules"],
        modules_apart_bytes=manifest["sizes"]["modules_apart"],
        bytes=sum(about["bytes"] for about in manifest["files"].values()),
        padded=tuple(manifest.get("padding", ())),
        not_padded=dict(manifest.get("not_padded", {})),
    )


def _check_alike(manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``ArtifactError`` unless these are of one model and device, for different shapes."""
    first = manifests[0]
    for place, manifest in enumerate(manifests):
        if "entries" in manifest:
            raise ArtifactError("an artifact that has several entries cannot be combined again")
        if manifest["model"]["sha256"] != first["model"]["sha256"]:
            raise ArtifactError("artifacts of different models cannot be combined")
        for key in ("target", "device", "architecture"):
            if manifest.get(key) != first.get(key):
                raise ArtifactError(f"artifacts for different devices cannot be combined ({key})")
        for other in manifests[:place]:
            if shapes_of(manifest) == shapes_of(other):
                raise ArtifactError(
                    f"two entries are for the same shapes: {shape_text(shapes_of(manifest))}"
                )


def _fill(
    folder: Path,
    folders: Sequence[Path],
    manifests: Sequence[dict[str, Any]],
    dims: Sequence[Mapping[str, int]],
) -> dict[str, Any]:
    """Write all files but the manifest, which is returned."""
    pieces = write_pieces([each / MODULE_FILE for each in folders], folder / PIECES)
    files: dict[str, dict[str, Any]] = {}
    for name, size in pieces.sizes.items():
        files[f"{PIECES}/{name}"] = {"sha256": name, "bytes": size, "licence": "the model's own"}
    entries = []
    for number, (source, manifest) in enumerate(zip(folders, manifests, strict=True)):
        samples = {}
        for kind, name in zip(("inputs", "outputs"), sample_files(manifest), strict=True):
            place = f"entries/{number}/{name}"
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / place)
            files[place] = dict(manifest["files"][name])
            samples[kind] = place
        _copy_shared(folder, source, manifest, files)
        entries.append(
            {
                "dims": dict(dims[number]),
                **{key: manifest[key] for key in OF_AN_ENTRY if key in manifest},
                "sample": samples,
                "module": _module(manifest, pieces.files[number]),
            }
        )
    return _manifest(manifests, entries, files, pieces)


def _module(manifest: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return how an entry's module is put together."""
    about = manifest["files"][MODULE_FILE]
    return {
        "sha256": about["sha256"],
        "bytes": about["bytes"],
        "pieces": [f"{PIECES}/{name}" for name in names],
    }


def _copy_shared(
    folder: Path, source: Path, manifest: Mapping[str, Any], files: dict[str, dict[str, Any]]
) -> None:
    """Copy the libraries, loaders and licences of an artifact that are not there yet.

    Raises:
        ArtifactError: A file of the same name is there and differs.
    """
    own = {MODULE_FILE, *sample_files(manifest)}
    for name, about in manifest["files"].items():
        if name in own:
            continue
        if name in files:
            if files[name]["sha256"] != about["sha256"]:
                raise ArtifactError(
                    f"the entries need different files of the name {name}: place them again with "
                    "the same versions of all toolchains"
                )
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)
        files[name] = dict(about)


def _manifest(
    manifests: Sequence[dict[str, Any]],
    entries: list[dict[str, Any]],
    files: dict[str, dict[str, Any]],
    pieces: Pieces,
) -> dict[str, Any]:
    first = manifests[0]
    # One setting for the whole process: what spins in one entry would take the time of another's
    # threads, so an entry that does not spin decides.
    calm_last = sorted(entries, key=lambda entry: not entry["spin"])
    environment = {name: v for entry in calm_last for name, v in entry["environment"].items()}
    found: dict[str, Any] = {
        key: first[key]
        for key in ("format", "format_version", "target", "device", "architecture")
        if key in first
    }
    found["model"] = {key: first["model"][key] for key in ("name", "sha256")}
    found["versions"] = {k: v for each in manifests for k, v in each["versions"].items()}
    found["threads"] = max(entry["threads"] for entry in entries)
    found["environment"] = environment
    for key in ("libraries", "requires"):
        united = {part["file"]: part for each in manifests for part in each.get(key, ())}
        if united or key == "libraries":
            found[key] = list(united.values())
    found["sizes"] = {
        "modules": pieces.stored,
        "modules_apart": sum(entry["module"]["bytes"] for entry in entries),
    }
    found["entries"] = entries
    found["files"] = dict(sorted(files.items()))
    return found


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def padding_of(
    entries: Sequence[Mapping[str, Any]], proofs: PaddingProofs
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return along which axes inputs are padded and outputs cut, and why not along the others.

    Args:
        entries: The artifact's entries.
        proofs: For each dimension the proof that padding changes no result, or why there is none.

    Returns:
        (padding, refused): as the manifest has it, and why not for the other dimensions.
    """
    padding: dict[str, Any] = {}
    refused: dict[str, str] = {}
    odd = unexplained_axis(entries)
    for dim, proof in proofs.items():
        if not all(dim in entry["dims"] for entry in entries):
            refused[dim] = "not every shape was named by its size"
        elif len({entry["dims"][dim] for entry in entries}) < 2:
            refused[dim] = "all shapes have the same size of it"
        elif odd is not None:
            refused[dim] = f"axis {odd[1]} of the output {odd[0]!r} follows no single dimension"
        elif isinstance(proof, str):
            refused[dim] = f"that this changes no result is not proved: {proof}"
        else:
            axes = [axes_of(entries, dim, kind) or {} for kind in ("inputs", "outputs")]
            proved = [{name: [*found] for name, found in each.items()} for each in proof]
            if axes != proved or not axes[0]:
                refused[dim] = "other axes than those of the dimension have its sizes"
                continue
            padding[dim] = {
                kind: [[name, axis] for name, along in each.items() for axis in along]
                for kind, each in zip(("inputs", "outputs"), axes, strict=True)
            }
    return padding, refused
