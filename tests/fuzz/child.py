"""The process that reads hostile files: does what a line of standard input says, answers in a line.

    {"commands": [["explain", "s.collage", "0"]]}  →  {"ended": [{"status": 1, "said": "…"}], …}

What the commands print, and what libraries print by themselves, goes to a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import psutil

from tests.fuzz.subjects import IMPORT, OUTSIDE, SHAPES

ROOM_BYTES = 6 << 30
"""Address space beyond what the libraries take; chosen: far above what a small file may need, and
below what would disturb the machine."""


def main() -> None:
    """Serve until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    printed = tempfile.TemporaryFile()  # noqa: SIM115 (open until the process ends)
    os.environ["COLLAGE_TRACE"] = "1"  # a defect is raised here, and not told in a sentence
    from collage_engine.cli.main import main as collage
    from collage_engine.cli.screen import complain
    from collage_engine.records.errors import CollageError
    from collage_engine.service import protocol
    from collage_engine.service.engine import Engine

    engine = Engine()

    def act(command: list[str]) -> int:
        if command[0] not in (IMPORT, OUTSIDE, SHAPES):
            return collage(command)
        try:
            if command[0] == OUTSIDE:
                return _outside(command[1:])
            if command[0] == SHAPES:
                _place_shapes(Path(command[1]))
            else:
                opened = engine.model_open(protocol.ModelOpen(path=command[1]))
                engine.document_close(protocol.Document(document=opened.document))
        except CollageError as error:
            complain(f"collage: {error}")
            return error.exit_status
        return 0

    room = psutil.Process().memory_info().vms + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    os.dup2(printed.fileno(), 1)
    for line in sys.stdin:
        ended: list[dict[str, Any]] = []
        for command in json.loads(line)["commands"]:
            os.dup2(printed.fileno(), 2)
            printed.seek(0)
            printed.truncate()
            trace = None
            try:
                status = act(command)
            except SystemExit as error:
                status = int(error.code or 0)
            except BaseException:
                status, trace = 99, traceback.format_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            printed.seek(0)
            said = printed.read().decode(errors="replace")
            ended.append({"status": status, "said": said[-20_000:], "trace": trace})
        rss = sum(process.memory_info().rss for process in _family())
        print(json.dumps({"ended": ended, "rss": rss, "peak": _peak()}), file=answers, flush=True)


def _place_shapes(path: Path) -> None:
    """Do what ``collage place --shapes`` does with a file before it measures anything."""
    from collage_engine.cli.options import shape_choices
    from collage_engine.cli.parser import build_parser
    from collage_engine.model.dimensions import input_shapes
    from collage_engine.model.importer import import_model
    from collage_engine.model.onnx_file import read_without_weights

    model = str(path.with_name("m.onnx"))
    options = build_parser().parse_args(["place", model, "-o", "out", "--shapes", str(path)])
    for choice in shape_choices(options):
        sizes = input_shapes(read_without_weights(model), choice.dims, choice.shapes, model)
        import_model(model, sizes)


def _outside(command: list[str]) -> int:
    """Run another program, whose sentences do not name this one; its status."""
    done = subprocess.run(command, capture_output=True, env={}, timeout=50)
    if done.returncode:
        sys.stderr.write("collage: ")
    sys.stderr.write(done.stderr.decode(errors="replace"))
    return done.returncode


def _family() -> list[psutil.Process]:
    """This process and those that it started."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _peak() -> int:
    """Largest resident memory of these processes since the last question, in bytes."""
    peak = 0
    for process in _family():
        about = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError, IndexError):  # it has ended
            peak += int((about / "status").read_text().split("VmHWM:")[1].split()[0]) * 1024
            (about / "clear_refs").write_text("5")
    return peak


if __name__ == "__main__":
    main()
