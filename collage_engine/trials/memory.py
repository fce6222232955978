"""The memory of a process that runs a placement, as Linux counts it (elsewhere it is not known).

The largest resident size can be reset (``/proc/self/clear_refs``), so that loading, which holds a
model twice for a moment, and running are distinguished.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from collage_engine.records.memory import MemorySeen

STATUS = Path("/proc/self/status")
"""Where Linux states the sizes of this process, in KiB."""
RESET = Path("/proc/self/clear_refs")
"""Where writing ``5`` sets the largest resident size (``VmHWM``) to the present one (proc(5))."""
_LOG = logging.getLogger(__name__)
_KIND = re.compile(r"collage_(.+)_[0-9a-f]+$")
"""The kind of our runtimes' modules: the toolchain, and a hash of its sources."""


def status_bytes(field: str) -> int | None:
    """Return a size of this process as Linux states it, in bytes.

    Args:
        field: The line of ``/proc/self/status``: ``VmRSS``, ``VmHWM`` or ``RssAnon``.

    Returns:
        The size; None where there is no such line, or no ``/proc``.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


class MemoryWatch:
    """Reads the sizes of this process around loading and running a module."""

    def __init__(self) -> None:
        self.base = status_bytes("VmRSS")
        self._loaded: tuple[int | None, int | None, int | None] | None = None
        self._reset = False
        self._held: dict[str, int] = {}

    def loaded(self, library: Any = None) -> None:
        """Note the sizes after the module was loaded and has run once, and begin a new peak.

        Args:
            library: The loaded module, which is asked for the weights that it holds; None: it is no
                module of ours.
        """
        self._loaded = status_bytes("VmRSS"), status_bytes("RssAnon"), status_bytes("VmHWM")
        try:
            RESET.write_text("5")
            self._reset = True
        except OSError:
            self._reset = False
        if library is not None:
            self._held = held_weights(library)

    def seen(self) -> MemorySeen:
        """Return the sizes that were noted, and the peak since the module was loaded."""
        now = status_bytes("VmHWM")
        if self._loaded is None:
            return MemorySeen(peak_bytes=now, base_bytes=self.base)
        loaded, private, load_peak = self._loaded
        known = [size for size in (now, load_peak) if size is not None]
        return MemorySeen(
            peak_bytes=max(known, default=None),
            base_bytes=self.base,
            loaded_bytes=loaded,
            private_bytes=private,
            load_peak_bytes=load_peak,
            run_peak_bytes=now if self._reset else None,
            held=self._held,
        )


def held_weights(library: Any) -> dict[str, int]:
    """Return the bytes of weights that modules of our runtimes hold, by toolchain.

    Args:
        library: The loaded module, whose imported modules are asked as well. What a runtime does
            not say is left out.
    """
    found: dict[str, int] = {}
    waiting = [library]
    while waiting:
        module = waiting.pop()
        waiting.extend(getattr(module, "imports", ()))
        kind = _KIND.match(str(module.kind))
        if kind is None:
            continue
        try:
            described = json.loads(str(module["collage.inside"]()))
        except Exception as error:  # whatever a runtime raises
            _LOG.info("the runtime of %s does not say what it holds: %s", kind[1], error)
            continue
        size = described.get("weights_bytes")
        if isinstance(size, int):
            found[kind[1]] = found.get(kind[1], 0) + size
    return found
