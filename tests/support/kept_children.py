"""One pair of engine children for all tests of a file: starting one takes seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from collage_engine.service import engine
from collage_engine.service.run_client import PipelineClient


class KeptClient(PipelineClient):
    """A client whose child outlives the engines that use it."""

    def close(self) -> None:
        """Leave the child to the next engine."""

    def end(self) -> None:
        """End the child."""
        super().close()


@contextlib.contextmanager
def kept_children() -> Iterator[None]:
    """Have all engines of this process that are made within share their children.

    For tests of what single requests answer, not of how engines begin and end. The children keep
    the environment and the working folder in which the first engine starts them.
    """
    kept: dict[str, KeptClient] = {}

    def client(name: str) -> PipelineClient:
        if name not in kept:
            kept[name] = KeptClient(name)
        return kept[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "PipelineClient", client)
        try:
            yield
        finally:
            for one in kept.values():
                one.end()
