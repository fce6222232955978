"""Writing through links, devices and pipes; reading pipes; what cannot be written is found early.

No test writes to a real device: devices are nodes of its own in a temporary folder.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import check_target_folder
from collage_engine.records import files
from collage_engine.records.errors import ArtifactError, UsageError
from collage_engine.records.files import (
    YOUNG_S,
    atomic_file,
    check_writable,
    is_standard_output,
    read_file,
    write_atomically,
)
from collage_engine.session.earlier import earlier_session
from tests.support.read_only_folder import read_only


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def own_device(path: Path, number: int) -> None:
    """A device node of our own: 3 is the null device, 7 is always full."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, number))
    except PermissionError:
        pytest.skip("making a device node needs root")


def run_python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        **options,
    )


WRITE = (
    "import sys; from collage_engine.records.files import write_atomically;"
    "write_atomically(sys.argv[1], 'content')"
)


def test_a_device_stays_a_device_when_it_is_written_to(tmp_path):
    own_device(tmp_path / "null", 3)
    write_atomically(tmp_path / "null", "nothing")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)
    assert names(tmp_path) == ["null"]


def test_a_full_device_is_an_error_and_stays(tmp_path):
    own_device(tmp_path / "full", 7)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "full", "content")
    assert stat.S_ISCHR((tmp_path / "full").stat().st_mode)


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("old")
    (tmp_path / "link").symlink_to("other/file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other" / "file").read_text() == "new"
    assert names(tmp_path / "other") == ["file"]


def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path):
    (tmp_path / "link").symlink_to("made")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "made").read_text() == "new" and (tmp_path / "link").is_symlink()


def test_a_link_to_a_device_stays_one(tmp_path):
    own_device(tmp_path / "null", 3)
    (tmp_path / "link").symlink_to("null")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(tmp_path / "a", "new")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_gets_the_content_whatever_it_is(tmp_path, name):
    done = run_python(WRITE, name)
    assert done.stdout == b"content", done.stderr
    with (tmp_path / "redirected").open("wb") as stream:
        code = f"print('before', flush=True); {WRITE}; print('after')"
        subprocess.run([sys.executable, "-c", code, name], stdout=stream, check=True, timeout=60)
    assert (tmp_path / "redirected").read_bytes() == b"before\ncontentafter\n"
    assert names(tmp_path) == ["redirected"]


def test_a_link_to_standard_output_stays_one(tmp_path):
    (tmp_path / "out").symlink_to("/proc/self/fd/1")
    done = run_python(WRITE, str(tmp_path / "out"))
    assert done.stdout == b"content", done.stderr
    assert (tmp_path / "out").is_symlink()


def test_standard_output_is_known_by_all_its_names(tmp_path):
    assert is_standard_output("/dev/stdout") and is_standard_output("/proc/self/fd/1")
    assert not is_standard_output("/dev/stderr") and not is_standard_output(tmp_path / "file")


def test_a_named_pipe_gets_the_content_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"x" * 200_000)  # more than a pipe holds
    reader.join(30)
    assert found == [b"x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_that_nobody_reads_is_an_error_and_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody has read from the pipe"):
        write_atomically(tmp_path / "pipe", "content")


def test_a_pipe_that_nobody_writes_to_is_an_error_and_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nothing was written to the pipe"):
        read_file(tmp_path / "pipe", 1000)


def test_a_pipe_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as stream:
            for _ in range(3):
                stream.write(b"x" * 100_000)
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    assert len(read_file(pipe, 1 << 20)) == 300_000
    writer.join()


def test_a_file_that_is_too_large_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 2000)
    assert len(read_file(tmp_path / "file", 2000)) == 2000
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "file", 1999)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, 1000)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    code = (
        "import os, sys; from collage_engine.records.files import atomic_file\n"
        "with atomic_file(sys.argv[1]) as new:\n"
        "    new.write_text('half'); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "model.collage"
    run_python(code, str(path))
    (left,) = tmp_path.iterdir()
    write_atomically(path, "young leftovers stay, their writer may not have locked them yet")
    assert left.exists()
    os.utime(left, (0, time.time() - 2 * YOUNG_S))
    write_atomically(path, "whole")
    assert names(tmp_path) == ["model.collage"]


def test_the_unfinished_file_of_a_living_writer_stays(tmp_path):
    path = tmp_path / "model.collage"
    with atomic_file(path) as living:
        living.write_text("first")
        os.utime(living, (0, time.time() - 1000 * YOUNG_S))
        run_python(WRITE, str(path))
        assert living.exists()
    assert path.read_text() == "first"
    assert names(tmp_path) == ["model.collage"]


def test_a_folder_without_permission_is_found_before_the_work(tmp_path):
    why = r"no permission|no file can be made \(Read-only file system\)"  # the latter to root
    with read_only(tmp_path):
        with pytest.raises(PermissionError):
            check_writable(tmp_path / "file")
        with pytest.raises(UsageError, match=f"cannot be written: ({why})"):
            earlier_session(tmp_path / "s.collage")
        with pytest.raises(ArtifactError, match=why):
            check_target_folder(tmp_path)
        with pytest.raises(ArtifactError, match=why):
            check_target_folder(tmp_path / "new" / "artifact")


@pytest.mark.parametrize("place", ["/sys", "/proc"])
def test_what_even_root_cannot_write_is_found_before_the_work(place):
    with pytest.raises(OSError, match=f"in the folder {place}"):
        check_writable(f"{place}/file")
    with pytest.raises(ArtifactError, match=f"{place}/out cannot be written: .* in {place}"):
        check_target_folder(Path(place) / "out")


def test_what_can_be_written_passes_the_check(tmp_path):
    check_writable(tmp_path / "new")
    (tmp_path / "old").write_text("")
    check_writable(tmp_path / "old")
    check_writable("/dev/stdout")
    own_device(tmp_path / "null", 3)
    check_writable(tmp_path / "null")
    assert earlier_session(tmp_path / "null") is None


def test_a_descriptor_that_is_only_read_is_found_before_the_work():
    code = "import sys; from collage_engine.records.files import check_writable;"
    with Path(__file__).open() as only_read:
        done = run_python(code + "check_writable('/dev/stdin')", stdin=only_read)
    assert done.returncode == 1 and b"open for reading only" in done.stderr


def test_a_file_that_is_mounted_by_itself_is_found_before_the_work(tmp_path):
    given, mounted = tmp_path / "given", tmp_path / "mounted \\file"
    given.touch()
    mounted.touch()
    code = "import sys; from collage_engine.records.files import check_writable;"
    mount = 'mount --bind "$1" "$2" || exit 3; shift; exec "$PYTHON" -c "$CODE" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", str(given), str(mounted)],
        env={**os.environ, "PYTHON": sys.executable, "CODE": f"{code}check_writable(sys.argv[1])"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 3 or b"unshare" in done.stderr:
        pytest.skip("mounting a file needs root")
    assert done.returncode == 1 and b"it is mounted by itself" in done.stderr
    check_writable(mounted)


def test_the_file_of_another_in_a_shared_folder_is_found_before_the_work(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    tmp_path.chmod(0o1777)
    check_writable(file)
    me = os.geteuid()
    monkeypatch.setattr(files.os, "geteuid", lambda: me + 1)
    with pytest.raises(PermissionError, match="another user's"):
        check_writable(file)
    check_writable(tmp_path / "new")
    tmp_path.chmod(0o777)
    check_writable(file)


@pytest.mark.parametrize("name", ["folder", "none/file"])
def test_what_cannot_be_written_does_not(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        check_writable(tmp_path / name)
