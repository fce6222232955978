"""Why a toolchain has no candidate with an operator, as data: faces make words of it."""

from __future__ import annotations

from typing import Literal

import msgspec

RefusalKind = Literal[
    "judged", "pattern", "alone", "calls", "device", "precision", "partitions", "no-rules"
]


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """One toolchain instance's refusal of one operator.

    The kinds are: ``judged``, the toolchain says in ``detail`` why not; ``pattern``, ``detail`` is
    what a rule of it expected; ``alone``, its rules do not take the operator by itself; ``calls``,
    no partition with it would call ``library``; ``device``, the operator stays on the host and not
    on ``detail``; ``precision``, it gains nothing in ``detail``; ``partitions``, no partition that
    the rules propose passes its checks; ``no-rules``, the toolchain has none of its own.
    """

    kind: RefusalKind
    operator: str = ""
    """The operator of the dataflow graph: ``nn.conv2d``."""
    detail: str = ""
    """A sentence is shown as it is, and never read."""
    toolchain: str = ""
    """The toolchain's title."""
    library: str = ""
    """Title of the library that the toolchain's kernels would call; empty: none."""
