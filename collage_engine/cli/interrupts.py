"""An engine for one command, whose work Ctrl-C stops in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from collage_engine.cli.screen import ERR
from collage_engine.service.engine import Engine, Listener
from collage_engine.service.interrupts import interruptible
from collage_engine.wording.sentences import ENDING


@contextmanager
def interruptible_engine(
    listener: Listener | None = None, *, keep: bool = False
) -> Iterator[Engine]:
    """Make an engine that the first Ctrl-C cancels and the second one leaves.

    Args:
        listener: Takes the engine's events.
        keep: Whether the first Ctrl-C has a run end with its best placement so far instead, and the
            second one cancels it.
    """
    on_keep = (lambda: ERR.print(ENDING, style="yellow")) if keep else None
    with closing(Engine(listener)) as engine, interruptible(engine, on_keep=on_keep):
        yield engine
