"""Holds a toolchain that misbehaves in one chosen way at one chosen place, to test isolation.

It is ``tests/example_toolchain`` under the name ``evil``, in a package of its own as far as the
engine knows: ``install`` writes what an installer would write for it. The variable
``EVIL_BEHAVIOUR`` says ``mode@place``; nothing set, it behaves.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

MODES = ("abort", "segfault", "exit", "hang", "slow", "memory", "wrong", "garbage")
"""``wrong`` raises, or computes something else; ``garbage`` is an answer that is none."""
PLACES = {
    "probe": "",
    "import": "pipeline",
    "instances": "",
    "supports": "",
    "partition_spec": "",
    "rules": "pipeline",
    "libraries": "",
    "compile": "collage-measure",
    "measure": "collage-measure",
    "transition": "collage-transit",
    "build": "collage-build",
    "trial": "collage-trial",
    "tuning": "collage-tune",
}
"""Place → how the name of the process begins that it happens in (Linux keeps 15 characters)."""
COMPUTING = ("measure", "transition", "trial")
"""Places that are calls of what it compiled."""
VARIABLE = "EVIL_BEHAVIOUR"
"""It begins as the toolchain is called: what probing found for another value is not taken."""
REACHED = "COLLAGE_TEST_REACHED"
"""Environment variable: a file that is made when it misbehaves, by which a test knows of it."""
SLOW_S = 0.3
"""Seconds that a call takes when it is to be slow; chosen."""

METADATA = "Metadata-Version: 2.1\nName: collage-evil\nVersion: 1.0\n"
ENTRY_POINTS = "[collage.toolchains]\nevil = tests.support.misbehaving.toolchain:EvilToolchain\n"


def install(folder: Path) -> str:
    """Write the package's metadata into a folder; returns a ``PYTHONPATH`` that has it."""
    about = folder / "collage_evil-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[3])])


def process_name() -> str:
    """Returns the name by which the engine calls this process."""
    return Path("/proc/self/comm").read_text().strip()


def misbehave(place: str) -> bool:
    """Do what was asked for, if this is the place.

    Returns:
        Whether the answer shall be garbage.
    """
    mode, _, where = os.environ.get(VARIABLE, "").partition("@")
    if where != place or not process_name().startswith(PLACES[place]):
        return False
    if REACHED in os.environ:
        Path(os.environ[REACHED]).touch()
    if mode == "abort":
        sys.stderr.write("evil: abort\n")
        sys.stderr.flush()
        os.abort()
    if mode == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "exit":
        os._exit(0)
    if mode == "hang":
        time.sleep(3600)
    if mode == "slow":
        time.sleep(SLOW_S)
    if mode == "memory":
        held = []
        while True:
            held.append(b"x" * (64 << 20))
    if mode == "wrong":
        raise ValueError("evil: this was never going to work")
    return mode == "garbage"
