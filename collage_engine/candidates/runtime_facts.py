"""Sizes, licences and conflicts of the toolchains' runtimes, as constants of a run."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from collage_engine.records.format import BYTES, LICENCE, WEIGHTS
from collage_engine.support.errors import ToolchainFault
from collage_engine.toolchains import registry
from collage_engine.toolchains.asking import asking

_LOG = logging.getLogger(__name__)


def runtime_facts(names: Sequence[str], weights_bytes: int) -> dict[str, float]:
    """Return the constants about a deployment, by the names of ``records.format``.

    Args:
        names: Toolchains whose runtime libraries a placement may need.
        weights_bytes: Size of the model's weights.
    """
    facts = {WEIGHTS: float(weights_bytes)}
    for name in names:
        try:
            with asking(name):
                toolchain = registry.get(name)
                libraries = toolchain.runtime_libraries()
                size = float(sum(Path(lib.file).stat().st_size for lib in libraries))
                said = {lib.licence for lib in libraries} or {toolchain.about.licence}
        except ToolchainFault as fault:
            _LOG.info("the libraries of %s are not known: %s", name, fault)
            continue
        facts[BYTES + name] = size
        for text in said:
            for licence in re.split(r"\s+AND\s+", text):
                if licence:
                    facts[f"{LICENCE}{name}:{licence}"] = 1.0
    return facts
