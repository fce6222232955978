"""Several shapes on disks that are too small: a sentence, no half artifact, and no lost run.

Each disk is a file system of its own in memory, which only root can mount. The engine's children
are shared, and keep their cache folder, which is on the ordinary disk.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collage_engine.artifact.manifest import read_manifest, verify_files
from collage_engine.cli.main import main
from collage_engine.session.file import load_session
from tests import zoo
from tests.support.caches import fresh_cache
from tests.support.kept_children import kept_children

LONG = bool(os.environ.get("COLLAGE_LONG_TESTS"))
SIZES = (0.01, 0.4, 0.9, 1.5, 2.2, 4.0) if LONG else (0.9, 4.0)
"""Sizes of disks, as parts of what the artifact for both shapes needs."""
SHAPES = ("batch=1", "batch=4")
OPTIONS = ("--toolchains", "tvm", "--budget", "5s", "--no-in-place", "--confirm", "quick")
Place = Callable[[Path, Path], tuple[int, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("model") / "m.onnx")
    path.write_bytes(zoo.build("dynamic_batch").SerializeToString())
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache folder and one pair of children for all tests."""
    with pytest.MonkeyPatch.context() as patch, kept_children():
        patch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path_factory.mktemp("cache"))))
        yield


@pytest.fixture
def place(environment: None, model: Path, capfd: pytest.CaptureFixture[str]) -> Place:
    """Place both shapes; the status, and what was said on standard error."""

    def run(out: Path, session: Path) -> tuple[int, str]:
        sizes = ",".join(each.partition("=")[2] for each in SHAPES)
        arguments = ["place", str(model), "-o", str(out), "--dim", f"batch={sizes}"]
        status = main([*arguments, *OPTIONS, "--session", str(session)])
        return status, capfd.readouterr().err

    return run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many bytes."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a file system is not allowed here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        # It fails where a file on it was left open.
        subprocess.run(["umount", str(place)], check=True)


def whole(folder: Path) -> bool:
    """Whether an artifact is there, all of whose files are as its manifest says."""
    if not (folder / "manifest.json").exists():
        return False
    manifest = read_manifest(folder)
    verify_files(folder, manifest)
    return all(whole(folder / entry["folder"]) for entry in manifest.get("entries", ()))


def runs_in(session: Path) -> dict[str, int]:
    """Shape → the number of its runs in a session."""
    document = load_session(session)
    return {choice.text: len(each.runs) for choice, each in document.placed_shapes}


@pytest.fixture(scope="module")
def needed(environment: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Bytes of the artifact for both shapes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main(["place", str(model), "-o", str(out), "--dim", "batch=1,4", *OPTIONS]) == 0
    about = [path.stat() for path in out.rglob("*") if path.is_file()]
    return sum({each.st_ino: each.st_size for each in about}.values())  # equal files are links


@pytest.mark.parametrize("part", SIZES)
@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
def test_a_disk_for_the_artifact_of_any_size(
    place: Place, disk: Callable[[int], Path], needed: int, tmp_path: Path, part: float, old: bool
) -> None:
    room = disk(int(needed * (part + old)))
    out, session = room / "out", tmp_path / "s.collage"
    if old:
        out.mkdir()
        (out / "manifest.json").write_text('{"format": "collage-artifact"}')
        (out / "filler").write_bytes(bytes(needed))
    status, said = place(out, session)
    last = said.strip().splitlines()[-1]
    if status:
        assert last.startswith("collage: ") and "No space left" in last and "defect" not in said
        left = ["out"] if old else []
        assert (out / "filler").exists() == old
    else:
        assert whole(out)
        left = ["out"]
    assert status == 0 or part < 4.0
    assert [path.name for path in room.iterdir()] == left
    # Runs are kept whatever becomes of their artifacts; after a shape whose own artifact found no
    # room the others are not placed.
    kept = runs_in(session)
    assert kept[SHAPES[0]] == 1 and (status or kept == dict.fromkeys(SHAPES, 1))


def test_an_artifact_that_is_a_disk_of_its_own_is_refused_before_the_work(
    place: Place, disk: Callable[[int], Path], tmp_path: Path
) -> None:
    out, session = disk(1 << 20), tmp_path / "s.collage"
    status, said = place(out, session)
    assert status == 1 and "it is mounted by itself: name a folder inside it" in said
    assert not list(out.iterdir()) and not session.exists()


def test_a_run_for_one_shape_is_kept_where_its_artifact_finds_no_room(
    model: Path,
    environment: None,
    disk: Callable[[int], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    room, session = disk(16 << 10), tmp_path / "s.collage"
    arguments = ["place", str(model), "-o", str(room / "out"), "--dim", "batch=1", *OPTIONS]
    assert main([*arguments, "--session", str(session)]) == 1
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("collage: ") and "No space left" in last
    assert f"the run is kept in {session}" in last
    assert not list(room.iterdir())
    document = load_session(session)
    (run,) = document.runs
    assert run.placement is not None and run.artifact is None
    assert main(["export", str(session), "-o", str(tmp_path / "out")]) == 0
    assert whole(tmp_path / "out")


def test_a_session_that_finds_no_room_costs_no_artifact(
    place: Place, disk: Callable[[int], Path], tmp_path: Path
) -> None:
    room, out = disk(16 << 10), tmp_path / "out"
    _, said = place(out, room / "s.collage")
    assert whole(out)
    last = said.strip().splitlines()[-1]
    assert "s.collage" in last and ("No space left" in last or "disk is full" in last)
    assert not list(room.iterdir())
