"""What the runtimes of toolchains bring to a deployment: sizes and licences, as constants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from collage_engine.records.errors import ToolchainError
from collage_engine.records.runtime_facts import BYTES, LICENCE, WEIGHTS
from collage_engine.toolchains import registry


def runtime_facts(names: Sequence[str], weights_bytes: int) -> dict[str, float]:
    """What the runtimes of these toolchains bring, and the model's weights, as constants."""
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
