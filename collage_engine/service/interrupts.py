"""Stops an engine's work in order when Ctrl-C is pressed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from collage_engine.service.engine import Engine, Listener


@contextmanager
def interruptible(engine: Engine, *, on_keep: Callable[[], object] | None = None) -> Iterator[None]:
    """Have the first Ctrl-C cancel an engine's work, and the second one leave it.

    A batch system's SIGTERM and a closed terminal's SIGHUP do the same (not under ``nohup``).
    Signals are handled as before at the end of the block.

    Args:
        engine: The engine.
        on_keep: Where it is given, the first Ctrl-C has a run end with its best placement so far
            instead, and the second one cancels it; this tells the user so.
    """
    before: dict[int, Any] = {}
    keeping = on_keep

    def interrupt(signalled: int, _frame: object) -> None:
        nonlocal keeping
        if keeping is not None and signalled == signal.SIGINT and engine.has_run:
            say, keeping = keeping, None
            say()
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
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible_engine(
    listener: Listener | None = None, *, on_keep: Callable[[], object] | None = None
) -> Iterator[Engine]:
    """Make an engine for one command, whose work Ctrl-C stops as ``interruptible`` says.

    Args:
        listener: Takes the engine's events.
        on_keep: See ``interruptible``.
    """
    with closing(Engine(listener)) as engine, interruptible(engine, on_keep=on_keep):
        yield engine
