"""Why a toolchain has no candidate with an operator, as data: faces make words of it."""

from __future__ import annotations

from typing import Literal

import msgspec

RefusalKind = Literal[
    "judged", "alone", "calls", "device", "precision", "pattern", "partitions", "no-rules"
]


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """One toolchain instance's refusal of one operator.

    The kinds are: ``judged``, the toolchain says in ``detail`` why not; ``alone``, it takes the
    operator, but not by itself; ``calls``, no partition with it would call ``library``; ``device``,
    the operator stays on the host and not on ``detail``; ``precision``, it gains nothing in
    ``detail``. The last three stand in earlier sessions only, and mean ``alone``.
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
