"""Pins on covers that the search did not choose, such as baselines."""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.records.candidate import Candidate
from collage_engine.records.pin import Pin
from collage_engine.records.toolchain import ToolchainInstance


def breaks_pin(cover: Sequence[Candidate], pin: Pin) -> bool:
    """Tell whether a cover breaks a pin, by the meaning that pins have in the search.

    Args:
        cover: The candidates of the cover.
        pin: The pin; on a toolchain it holds for all of its instances.
    """
    wanted = set(pin.nodes)
    touched = [(c.instance, set(c.nodes)) for c in cover if wanted & set(c.nodes)]

    def on(instance: ToolchainInstance, name: str | None) -> bool:
        return name in (instance.toolchain, instance.id)

    if pin.kind == "on":
        return not all(on(instance, pin.toolchain) for instance, _ in touched)
    if pin.kind == "never":
        return any(on(instance, pin.toolchain) for instance, _ in touched)
    if pin.kind == "exactly":
        if len(touched) != 1 or touched[0][1] != wanted:
            return True
        return pin.toolchain is not None and not on(touched[0][0], pin.toolchain)
    if pin.kind == "together":
        return len(touched) != 1
    return any(instance.device != pin.device for instance, _ in touched)
