"""Makes an artifact slower by a known share, for the gate that has to notice it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

CODE = """
import time
from collage_engine.machine.loader import run_artifact as loader
original = loader.Model.invoke
def run(self, tensors):
    begin = time.perf_counter()
    result = original(self, tensors)
    end = begin + {factor} * (time.perf_counter() - begin)
    while time.perf_counter() < end:
        pass
    return result
loader.Model.invoke = run
"""
"""Code that an artifact brings along: every call waits for a share of its own time more."""


def slowed_copy(artifact: Path, folder: Path, factor: float) -> Path:
    """Copy an artifact; each call of the copy takes ``factor`` times as long."""
    shutil.copytree(artifact, folder)
    code = CODE.format(factor=factor)
    (folder / "slow.py").write_text(code)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(code.encode()).hexdigest()
    manifest["files"]["slow.py"] = {"sha256": digest, "bytes": len(code)}
    manifest["requires"] = [{"file": "slow.py", "reason": "it is slow"}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
