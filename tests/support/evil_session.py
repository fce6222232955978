"""Runs ONNX models for the toolchain ``evil``, and misbehaves where it was asked to.

``EVIL_BEHAVIOUR`` says ``mode@place``; nothing set, it behaves. This file stands by itself, since
artifacts carry it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import onnx
from onnx.reference import ReferenceEvaluator

MODES = ("abort", "segfault", "exit", "hang", "slow", "memory", "wrong", "garbage")
"""``wrong`` raises, or computes something else; ``garbage`` is an answer that is none."""
COMPUTING = {
    "transition": "collage-transit",
    "trial": "collage-trial",
}
"""Places that are calls of what was compiled → how the name of their process begins."""
PLACES = {
    "import": "pipeline",
    "instances": "pipeline",
    "supports": "",
    "partition_spec": "",
    "rules": "pipeline",
    "libraries": "",
    "build": "collage-build",
    **COMPUTING,
}
"""Place → how the name of the process begins that it happens in (Linux keeps 15 characters)."""
VARIABLE = "EVIL_BEHAVIOUR"
"""It begins as the toolchain is called: what probing found for another value is not taken."""
REACHED = "COLLAGE_TEST_REACHED"
"""Environment variable: a file that is made when it misbehaves, by which a test knows of it."""
SLOW_S = 0.3
"""Seconds that a call takes when it is to be slow; chosen."""


def misbehave(place):
    """Do what was asked for, if this is the place.

    Returns:
        Whether the answer shall be garbage.
    """
    mode, _, where = os.environ.get(VARIABLE, "").partition("@")
    process = Path("/proc/self/comm").read_text().strip()
    if where != place or not process.startswith(PLACES[place]):
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
    if mode == "wrong" and place not in COMPUTING:
        raise ValueError("evil: this was never going to work")
    return mode in ("wrong", "garbage")


def open_model(model, threads, options):
    """Return a function from the inputs to the outputs of a serialised model."""
    evaluator = ReferenceEvaluator(onnx.load_from_string(model))

    def run(inputs):
        is_wrong = any([misbehave(place) for place in COMPUTING])
        outputs = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))
        return [array + 0.25 for array in outputs] if is_wrong else outputs

    return run
