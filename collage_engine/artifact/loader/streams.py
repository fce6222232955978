"""Runs several instances of a loaded artifact at once, for more results per second.

Each instance belongs to one thread, which is bound to processors of its own: the runtimes below it
start their threads there. A request waits for the first instance that is free, so any number of
threads may call at once.

Standard library only: artifacts carry this file beside their loader.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def shares(streams, threads):
    """Returns the processors of each instance; None for all where there are too few."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * streams
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < streams * threads:
        return [None] * streams
    return [set(processors[k * threads : (k + 1) * threads]) for k in range(streams)]


def bind(processors):
    """Have this thread, and those that it starts, run on some processors only."""
    if processors is not None:
        os.sched_setaffinity(0, processors)


class Pool:
    """Instances of a model; call it, from any thread, as one of them.

    Args:
        make: Makes the instance of a number, in the thread that it belongs to; the instances are
            made one after the other.
        streams: How many.
        threads: Threads of each instance.
    """

    def __init__(self, make: Callable[[int], Any], streams: int, threads: int) -> None:
        self.streams = streams
        self._waiting: queue.SimpleQueue = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self.first: Any = None
        """The first instance, for what it says of itself."""
        for number, processors in enumerate(shares(streams, threads)):
            made: Future = Future()
            worker = threading.Thread(
                target=self._work, args=(make, number, processors, made), daemon=True
            )
            worker.start()
            self._workers.append(worker)
            try:
                instance = made.result()
            except BaseException:
                self.close()
                raise
            self.first = self.first or instance

    def _work(self, make, number, processors, made):
        try:
            bind(processors)
            instance = make(number)
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(instance)
        while (task := self._waiting.get()) is not None:
            result, function, arguments = task
            if not result.set_running_or_notify_cancel():
                continue
            try:
                result.set_result(function(instance, *arguments))
            except BaseException as error:
                result.set_exception(error)

    def submit(self, inputs):
        """Run the inputs on the first free instance; returns a ``Future`` of the outputs."""
        return self.apply(lambda model: model(inputs))

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function with an instance, in its thread; returns a ``Future`` of its result."""
        result: Future = Future()
        self._waiting.put((result, function, arguments))
        return result

    def at_once(self, function: Callable[[Any, Callable[[], Any]], Any]) -> list:
        """Call a function with every instance at the same time, each in its thread.

        Args:
            function: Gets an instance, and what it has to call once: that waits until all the
                others have called it, too.

        Returns:
            The results, in no order.

        Raises:
            BaseException: What the function raised first; the others do not wait for ever.
        """
        together = threading.Barrier(self.streams)

        def work(instance):
            try:
                return function(instance, together.wait)
            except BaseException:
                together.abort()
                raise

        futures = [self.apply(work) for _ in range(self.streams)]
        errors = [error for each in futures if (error := each.exception()) is not None]
        # Those that waited for the one that failed only say so.
        causes = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        for error in causes or errors:
            raise error
        return [each.result() for each in futures]

    def __call__(self, inputs):
        """Returns the outputs of the inputs, one array each; waits for an instance."""
        return self.submit(inputs).result()

    def close(self) -> None:
        """End the threads, after what was submitted before."""
        for _ in self._workers:
            self._waiting.put(None)
        for worker in self._workers:
            worker.join()
        self._workers = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
