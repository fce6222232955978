"""Records the rounds of an artifact against itself, on which ``tests/unit/test_gate.py`` simulates.

    python -m tests.benchmarks.gate_rounds ARTIFACT PAIRS > tests/data/gate_rounds.json

Each pair of processes gives two lists of medians in microseconds, in common rounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from collage_engine.artifact.paired_times import timed_manifest, timed_pair


def main() -> None:
    """Print the rounds of all pairs as JSON."""
    folder, pairs = Path(sys.argv[1]), int(sys.argv[2])
    both, manifests = (folder, folder), [timed_manifest(folder)] * 2
    recorded = [timed_pair(both, manifests)[1] for _ in range(pairs)]
    print("[")
    rows = [json.dumps([[round(s * 1e6, 1) for s in one] for one in pair]) for pair in recorded]
    print(",\n".join(rows))
    print("]")


if __name__ == "__main__":
    main()
