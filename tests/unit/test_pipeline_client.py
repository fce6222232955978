"""What the engine says when its pipeline process meets a full disk, a defect, or its end."""

from __future__ import annotations

import errno

import pytest

from collage_engine.machine.worker import RemoteError
from collage_engine.pipeline import child
from collage_engine.pipeline.client import PipelineClient
from collage_engine.records.errors import CollageError

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NO_ROOM, "no space left on the disk .* set TMPDIR"),
        (OSError(errno.EACCES, "Permission denied", "/x/y"), "^/x/y: Permission denied$"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(monkeypatch, error, says):
    def job(**_: object) -> None:
        raise error

    monkeypatch.setitem(child._JOBS, "open", job)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(CollageError, match=says) as raised:
        child.serve(("open", {}), lambda _: None)
    assert "Errno" not in str(raised.value)


def test_a_defect_is_called_one_and_leaves_no_scratch():
    client = PipelineClient("test")
    scratch = client._scratch.path.parent
    try:
        with pytest.raises(RemoteError, match="a defect of Collage Explorer, in its step 'nope'"):
            client.job("nope")
    finally:
        client.close()
    assert not scratch.exists()
