"""Sizes, licences and conflicts of the toolchains' runtimes, as constants of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from collage_engine.records.errors import ToolchainError
from collage_engine.records.runtime_facts import BYTES, LICENCE, WEIGHTS
from collage_engine.toolchains import registry


def runtime_facts(names: Sequence[str], weights_bytes: int) -> dict[str, float]:
    """Return the constants about a deployment, by the names of ``records.runtime_facts``.

    Args:
        names: Toolchains whose runtime libraries a placement may need.
        weights_bytes: Size of the model's weights.
    """
    facts = {WEIGHTS: float(weights_bytes)}
    for name in names:
        toolchain = registry.get(name)
        try:
            libraries = toolchain.runtime_libraries()
        except ToolchainError:
            continue
        facts[BYTES + name] = float(sum(Path(lib.file).stat().st_size for lib in libraries))
        said = {lib.licence for lib in libraries} or {toolchain.about.licence}
        for text in said:
            for licence in re.split(r"\s+AND\s+", text):
                if licence:
                    facts[f"{LICENCE}{name}:{licence}"] = 1.0
    return facts
