"""Lays a graph out in a process of its own, with JSON on standard input and output.

``python -m collage_engine.drawing.layout_process``. The desktop runs it under its event loop
and kills it when a newer picture is wanted; ``lay_out_safely`` does the same for reports, and
falls back to the plain algorithm when the library crashes or is too slow.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from collage_engine.drawing.columns import Layout, LayoutRequest
from collage_engine.drawing.layout import lay_out
from collage_engine.records.time_limits import ANSWER_S
from collage_engine.records.typed import decode

_LOG = logging.getLogger(__name__)

_ROOT = str(Path(__file__).resolve().parents[2])
COMMAND = (sys.executable, "-P", "-m", "collage_engine.drawing.layout_process")


def lay_out_safely(request: LayoutRequest) -> Layout:
    """Runs ``lay_out`` in a child process; if that fails, the plain algorithm in this one."""
    before = os.environ.get("PYTHONPATH", "")
    try:
        done = subprocess.run(
            COMMAND,
            input=msgspec.json.encode(request),
            capture_output=True,
            timeout=ANSWER_S,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, before)))},
        )
        return decode(done.stdout, Layout)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        _LOG.warning("the layout process failed, the plain algorithm is used: %s", error)
        plain = msgspec.structs.replace(request, engine="layered")
        return lay_out(plain)


def main() -> int:
    """Answer the request on standard input."""
    request = decode(sys.stdin.buffer.read(), LayoutRequest)
    sys.stdout.buffer.write(msgspec.json.encode(lay_out(request)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
