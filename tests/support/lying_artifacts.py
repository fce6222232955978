"""Lists ways in which an artifact's manifest or folder can lie, for loaders and the program."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "COLLAGE_TEST_MARK"
"""The environment variable that names the file which hostile code makes."""
CODE = f"import os; open(os.environ[{MARK!r}], 'w').close()\n"
"""Text of a Python file that must never be run."""

ESCAPE = "\x1b]0;title\x07"
"""A name that would give a terminal another title."""

Lie = Callable[[Path, dict[str, Any]], None]


def _environment(name: str, value: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["environment"][name] = value.replace("FOLDER", str(folder))

    return lie


def _set(key: str, value: Any) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest[key] = value

    return lie


def _without(key: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        del manifest[key]

    return lie


def _entry(number: int, key: str, value: Any) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["entries"][number][key] = value

    return lie


def _entry_module(**changes: Any) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        module = manifest["entries"][1]["module"]
        module.update({key: value(module[key]) for key, value in changes.items()})

    return lie


def _padding(value: Any) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["padding"]["batch"].update(value)

    return lie


def _file(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"sha256": "0" * 64, "bytes": 1}

    return lie


def _zero_byte(folder: Path, manifest: dict[str, Any]) -> None:
    manifest["files"]["model.so\0x"] = manifest["files"]["model.so"]


def _input_shape(*shape: int) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["inputs"][0]["shape"] = list(shape)

    return lie


def _entries_in_an_entry(folder: Path, manifest: dict[str, Any]) -> None:
    """Has the first entry name a module outside of the folder, as that of an entry of its own."""
    outside = folder.parent / "outside"
    outside.write_bytes(b"x")
    inner = json.loads(json.dumps(manifest["entries"][0]))
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()
    inner["module"] = {"sha256": digest, "bytes": 1, "pieces": ["../outside"]}
    manifest["entries"][0]["entries"] = [inner]


def _for_all_entries(key: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest[key] = manifest["entries"][1].pop(key)

    return lie


def _batch(size: int) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        entry = manifest["entries"][1]
        entry["dims"]["batch"] = size
        for value in (*entry["inputs"], *entry["outputs"]):
            value["shape"][0] = size

    return lie


def _output(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["outputs"][0]["name"] = name

    return lie


def _unlisted(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        del manifest["files"][name]

    return lie


def _requires(place: str, *, listed: bool) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        path = Path(place.replace("FOLDER", str(folder.parent)))
        whole = path if path.is_absolute() else folder / path
        whole.write_text(CODE)
        if listed:
            digest = hashlib.sha256(whole.read_bytes()).hexdigest()
            manifest["files"][str(path)] = {"sha256": digest, "bytes": whole.stat().st_size}
        manifest["requires"] = [{"file": str(path), "reason": "a lie"}]

    return lie


def _beside(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CODE)

    return lie


def _linked_folder(folder: Path, manifest: dict[str, Any]) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    (outside / "librt.so.1").write_text(CODE)
    (folder / "tls").symlink_to(outside)


def _link_outside(folder: Path, manifest: dict[str, Any]) -> None:
    outside = folder.parent / "outside.so"
    (folder / "model.so").rename(outside)
    (folder / "model.so").symlink_to(outside)


def _pipe(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return lie


def _changed(folder: Path, manifest: dict[str, Any]) -> None:
    with (folder / "model.so").open("ab") as stream:
        stream.write(b"x")


REFUSED: dict[str, tuple[Lie, str]] = {
    "LD_PRELOAD": (_environment("LD_PRELOAD", "FOLDER/evil.so"), "LD_PRELOAD"),
    "PYTHONPATH": (_environment("PYTHONPATH", "FOLDER"), "PYTHONPATH"),
    "a path in a known variable": (_environment("OMP_WAIT_POLICY", "/tmp/x"), "OMP_WAIT_POLICY"),
    "an environment that is a list": (_set("environment", []), "environment|cast|Cannot|type"),
    "Python outside, not listed": (_requires("../evil.py", listed=False), "no hash of"),
    "Python outside, listed": (_requires("../evil.py", listed=True), "outside the folder"),
    "Python at an absolute path": (_requires("FOLDER/evil.py", listed=True), "outside the folder"),
    "Python inside, not listed": (_requires("evil.py", listed=False), "no hash of"),
    "no files": (_set("files", {}), "no hash of"),
    "model.so is not listed": (_unlisted("model.so"), r"no hash of 'model\.so'"),
    "model.so was changed": (_changed, r"model\.so has changed"),
    "model.so is a link to outside": (_link_outside, "outside the folder"),
    "model.so is a pipe": (_pipe("model.so"), r"model\.so is no regular file"),
    "the sample is a pipe": (_pipe("sample_input.npz"), "no regular file"),
    "an unlisted library": (_beside("libevil.so"), r"library 'libevil\.so'"),
    "an unlisted library for this processor": (
        _beside("glibc-hwcaps/x86-64-v2/librt.so.1"),
        r"library 'glibc-hwcaps/x86-64-v2/librt\.so\.1'",
    ),
    "an unlisted library in capital letters": (_beside("LIBRT.SO.1"), r"library 'LIBRT\.SO\.1'"),
    "an unlisted list of libraries": (_beside("plugins.xml"), r"library 'plugins\.xml'"),
    "libraries in a linked folder": (_linked_folder, "'tls', which is a link"),
    "an escape sequence as a file's name": (_file(ESCAPE), r"\\x1b\]0;title\\x07"),
    "half a character as a file's name": (_file("\ud800"), "no file can be called|surrogate"),
    "a name of 100,000 characters": (_file("a" * 100_000), "aaa cannot be read"),
    "a zero byte in a file's name": (_zero_byte, r"'model\.so\\x00x', which no file can be called"),
    "an input of 2 to the power of 62 elements": (_input_shape(1 << 31, 1 << 31), "its inputs"),
    "an input of 65 dimensions": (_input_shape(*[1] * 65), "its inputs"),
    "an output that the sample lacks": (_output(ESCAPE), r"\\x1b"),
    "tolerance 1e99": (_set("tolerance", 1e99), "tolerance"),
    "a tolerance of 401 digits": (_set("tolerance", 10**400), "tolerance"),
    "tolerance NaN": (_set("tolerance", float("nan")), "tolerance|NaN|JSON|manifest"),
    "tolerance true": (_set("tolerance", True), "tolerance"),
    "a million threads": (_set("threads", 1 << 20), "threads"),
    "a billion instances": (_set("streams", 10**9), "streams"),
    "entries that are null": (_set("entries", None), "describe its entries"),
    "entries that are a number": (_set("entries", 5), "describe its entries"),
    "a module without entries": (_set("module", {"pieces": ["evil"]}), "parts of entries"),
    "version 3": (_set("format_version", 3), "version"),
    "version x": (_set("format_version", "x"), "version"),
    "version true": (_set("format_version", True), "version"),
}
"""What has to be refused, with a pattern of the sentence."""

REFUSED_ENTRIES: dict[str, tuple[Lie, str]] = {
    "no entries": (_set("entries", []), "entries"),
    "an entry's LD_PRELOAD": (_entry(1, "environment", {"LD_PRELOAD": "x.so"}), "LD_PRELOAD"),
    "an entry's tolerance": (_entry(0, "tolerance", 2), "tolerance"),
    "a dimension of size 0": (_entry(1, "dims", {"batch": 0}), "entries"),
    "entries in an entry": (_entries_in_an_entry, "describe its entries"),
    "inputs that one entry does not name": (_for_all_entries("inputs"), "describe its entries"),
    "a tolerance that one entry does not name": (
        _for_all_entries("tolerance"),
        "describe its entries",
    ),
    "a batch whose bytes leave 64 bits": (_batch(1 << 60), "describe its inputs"),
    "inputs of other names": (
        _entry(1, "inputs", [{"name": "z", "dtype": "float32", "shape": [3, 16]}]),
        "different inputs",
    ),
    "a piece outside": (_entry_module(pieces=lambda p: ["../evil", *p]), "no hash of"),
    "a piece that is not listed": (_entry_module(pieces=lambda p: [*p, "evil"]), "no hash of"),
    "pieces in another order": (_entry_module(pieces=lambda p: [*p, *p]), "pieces of a module"),
    "a sample that is not listed": (
        _entry(1, "sample", {"inputs": "evil.npz", "outputs": "evil.npz"}),
        "no hash of",
    ),
    "padding along another axis": (_padding({"inputs": [["image", 1]]}), "pads"),
    "padding along an axis that is none": (_padding({"outputs": [["image", 10**9]]}), "pads"),
    "padding along a dimension that is none": (
        _set("padding", {"sequence": {"inputs": [], "outputs": []}}),
        "how inputs are padded",
    ),
    "padding of nothing": (_set("padding", []), "padded|cast|Cannot|type"),
}
"""The same of an artifact for two batches (``support.full_documents.two_shapes``)."""

HARMLESS: dict[str, Lie] = {
    "numpy.py beside the loader": _beside("loader/numpy.py"),
    "argparse.py beside the loader": _beside("loader/argparse.py"),
    "tvm.py in the folder": _beside("tvm.py"),
}
"""Changes of an artifact's folder that must have no effect, by name."""


UNKNOWN: dict[str, Lie] = {
    "no threads": _without("threads"),
    "no expected latency": _without("expected"),
    "an expected latency that is a text": _set("expected", {"latency_us": "\x1b]0;title\x07"}),
    "an expected latency that is infinite": _set("expected", {"latency_us": float("inf")}),
    "an expected latency of 401 digits": _set("expected", {"latency_us": 10**400}),
    "expectations that are a list": _set("expected", [1.0]),
}
"""Changes of what a manifest need not say, or may say wrongly, by name."""


def apply(lie: Lie, folder: Path) -> None:
    """Change an artifact in place."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    lie(folder, manifest)
    path.write_text(json.dumps(manifest))
