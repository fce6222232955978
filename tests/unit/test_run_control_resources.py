"""What a run opens is closed however it ends."""

from __future__ import annotations

import pytest

from collage_engine.machine.run_control import RunControl


def test_control_closes_what_was_opened_however_the_job_ends() -> None:
    class Resource:
        closed = False

        def __enter__(self) -> Resource:
            return self

        def __exit__(self, *_: object) -> None:
            self.closed = True

    resource = Resource()
    with pytest.raises(ValueError, match="stopped"), RunControl() as control:
        assert control.open(resource) is resource and not resource.closed
        raise ValueError("stopped")
    assert resource.closed
