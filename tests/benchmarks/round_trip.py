"""What a cache line takes from one core to another and back, which every table must say.

Some machines have several values, by the minute, and every runtime is slower while it is large.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from collage_engine.machine.device import one_of_each_core
from collage_engine.toolchains.runtime.builder import find_compiler


def round_trip_ns() -> float | None:
    """Return the nanoseconds for two cores that this process may use; None where there is one."""
    cores = one_of_each_core()
    if len(cores) < 2:
        return None
    source = Path(__file__).with_suffix(".cc")
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/round_trip"
        compile_it = [*find_compiler().command, "-O2", "-pthread", str(source), "-o", program]
        subprocess.run(compile_it, check=True, capture_output=True)
        done = subprocess.run([program, *map(str, cores[:2])], capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else None
