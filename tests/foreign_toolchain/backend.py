"""A build backend (PEP 517) that packs ``collage_tango`` as ``pyproject.toml`` declares it."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the wheel; returns its file name."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    entries = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in targets.items())
        for group, targets in project["entry-points"].items()
    ]
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\n"
        f"Version: {project['version']}\nLicense: {project['license']['text']}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(entries),
    }
    for path in sorted((HERE / "collage_tango").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            texts[str(path.relative_to(HERE))] = path.read_text()
    texts[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*texts, f"{info}/RECORD"))
    file = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / file, "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
    return file
