"""Limits how long a step may take, to end what hangs and to keep a run's budget."""

from __future__ import annotations

WEIGHTS_BYTES_PER_S = 10e6
"""Bytes of weights a second that a step gets through at the least; chosen: a tenth of what a hard
disk reads, since a runtime reads, packs and hands on the weights several times, on a busy machine
too."""

STEP_SHARE = 0.5
"""Share of the time that a run has left which one step may take; chosen: after one that hangs there
is time for another one, and for exporting it."""


def within_budget(
    limit_s: float, left_s: float, least_s: float, share: float = STEP_SHARE
) -> float:
    """Return the seconds after which a step is ended and what it tried is out.

    Args:
        limit_s: Seconds after which it counts as hanging however much time is left.
        left_s: Seconds that the run has left.
        least_s: Seconds that it gets even where the run has less left: enough for one that does not
            hang, so that what began in time comes to its end.
        share: Share of the time left that it may take.
    """
    return min(limit_s, max(share * left_s, least_s))


def with_weights(limit_s: float, weights_bytes: int, copies: int = 1) -> float:
    """Return the seconds after which a step that reads a model's weights counts as hanging.

    Args:
        limit_s: Seconds for the same step with a model that has hardly any weights.
        weights_bytes: Size of the model's weights.
        copies: How many times the step reads them, as several instances do.
    """
    return limit_s + copies * weights_bytes / WEIGHTS_BYTES_PER_S
