"""Which parts of the search for mixes a run has: benchmarks switch some of them off."""

from __future__ import annotations

import msgspec


class RunParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parts of a run that ``tests/benchmarks/ablation.py`` leaves out; no option sets them.

    Calibration has a setting of its own (``in_place``).
    """

    isolated_costs: bool = True
    """Candidates are measured in isolation; without, a run rests on trials of whole models."""
