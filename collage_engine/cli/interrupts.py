"""An engine whose work Ctrl-C stops in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from collage_engine.cli.screen import ERR
from collage_engine.service.engine import Engine, Listener
from collage_engine.wording.command_line import ENDING


@contextmanager
def interruptible_engine(
    listener: Listener | None = None, *, keep: bool = False
) -> Iterator[Engine]:
    """Make an engine that the first Ctrl-C cancels and the second one leaves.

    A batch system's SIGTERM and a closed terminal's SIGHUP do the same (not under ``nohup``).

    Args:
        listener: Takes the engine's events.
        keep: Whether the first Ctrl-C has a run end with its best placement so far instead, and the
            second one cancels it.
    """
    engine = Engine(listener)
    before: dict[int, Any] = {}
    keeping = keep

    def interrupt(signalled: int, _frame: object) -> None:
        nonlocal keeping
        if keeping and signalled == signal.SIGINT and engine.has_run:
            keeping = False
            ERR.print(ENDING, style="yellow")
            engine.keep()
            return
        for number in before:  # the next one ends the process
            at_once = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, at_once)
        if not engine.cancel():
            raise KeyboardInterrupt

    for number in (int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)):
        handler = signal.getsignal(number)
        # Shells without job control ignore Ctrl-C for what they start beside them; who sends it to
        # this process means it.
        if number == signal.SIGINT or handler == signal.SIG_DFL:
            try:
                signal.signal(number, interrupt)
            except ValueError:
                break  # not the main thread (an embedding program): it handles signals itself
            before[number] = handler
    try:
        yield engine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        engine.close()
