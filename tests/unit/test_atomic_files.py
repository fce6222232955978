"""Files that appear whole or not at all; locks that end with their process; short reasons."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.records.errors import ToolchainError
from collage_engine.records.files import atomic_file, write_atomically
from collage_engine.records.locks import HeldLock, is_locked, locked
from collage_engine.records.reasons import (
    MOST_CHARACTERS,
    compiler_reason,
    fault_reason,
    last_line,
    short_reason,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path):
    path = tmp_path / "report.csv"
    write_atomically(path, "älter")
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["report.csv"]


def test_a_block_that_fails_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "report.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as new:
        new.write_text("half of the n")
        1 / 0  # noqa: B018 - the block fails
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.csv"]


def test_other_users_may_read_a_new_file_as_they_may_read_any_other(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "new", "")
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
        (tmp_path / "new").chmod(0o600)
        write_atomically(tmp_path / "new", "again")
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_the_final_name_never_shows_a_half_written_file(tmp_path):
    with atomic_file(tmp_path / "store") as new:
        new.write_text("half")
        assert not (tmp_path / "store").exists()
        assert new.parent == tmp_path
    assert (tmp_path / "store").read_text() == "half"


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", "")


def test_a_lock_is_seen_by_others_until_it_is_released(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
        with pytest.raises(BlockingIOError):
            HeldLock(path, wait=False)
    assert not is_locked(path)


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import sys, time; from collage_engine.records.locks import HeldLock;"
        "lock = HeldLock(sys.argv[1]); print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert is_locked(path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert not is_locked(path)


@pytest.mark.parametrize(
    ("error", "options", "says"),
    [
        (ValueError("trace\n  at x.cc\nno such layout\n\n"), {}, "no such layout"),
        (ValueError("\nno such layout\nread the manual"), {"line": "first"}, "no such layout"),
        (ValueError(" \n"), {}, "ValueError"),
        (ToolchainError("It has 2 lines:\nboth count."), {}, "It has 2 lines:\nboth count."),
        (ValueError("x" * 1000), {}, "x" * MOST_CHARACTERS),
    ],
)
def test_the_short_reason_of_an_error(error, options, says):
    assert short_reason(error, **options) == says


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError(" \n"), "ValueError"),
        (ValueError("a\nb"), "ValueError: b"),
        (ValueError("ValueError: b"), "ValueError: b"),
        (ToolchainError("it says False"), "it says False"),
    ],
)
def test_what_code_of_others_raised_is_told_with_its_place(error, says):
    assert fault_reason(error) == says, "what was never raised has no place"

    def code_of_others():
        raise error

    line = inspect.getsourcelines(code_of_others)[1] + 1
    try:
        code_of_others()
    except Exception as raised:
        said = fault_reason(raised)
    own = isinstance(error, ToolchainError)  # a sentence of ours says where by itself
    assert said == (says if own else f"{says} (unit/test_atomic_files.py, line {line})")


def test_the_line_of_a_log_that_says_what_is_wrong():
    log = "In file included\nx.cc:3: error: no member\nx.cc:9: error: other\n2 errors\n"
    assert compiler_reason(log) == "x.cc:3: error: no member"
    assert compiler_reason("ld: cannot find -lx\n\n") == "ld: cannot find -lx"
    assert compiler_reason("", "exit status 1") == "exit status 1"
    assert last_line("one\ntwo\n \n") == "two"
