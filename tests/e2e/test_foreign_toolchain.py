"""A toolchain in a package of its own, installed beside Collage Explorer, takes part in everything.

The wheels of the product and of ``tests/foreign_toolchain``, with the example of the documentation
inside, are installed into a bare environment; nothing in this repository knows the package, and
nothing of the checkout is used. One of its toolchains is written in Python alone. The same package
has an entry point that cannot be imported and one whose name is taken.
"""

from __future__ import annotations

import json
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import pytest

from collage_engine.run.conformance.checks import CHECKS
from collage_engine.store.session_file import load_session
from tests.support.bare_environment import ROOT, BareEnvironment
from tests.support.json_schemas import assert_fits
from tests.support.toolchain_cases import Net
from tests.support.toolchain_models import convolutions

pytest.importorskip("hatchling", reason="building the wheel needs the extra 'test'")


class Installed(BareEnvironment):
    """The environment with the package, and a model that is no file of the checkout."""

    def __init__(self, folder: Path) -> None:
        source = shutil.copytree(ROOT / "tests" / "foreign_toolchain", folder / "source")
        example = source / "collage_tango" / "example"
        shutil.copytree(ROOT / "tests" / "example_toolchain", example)
        for file in example.glob("*.py"):
            text = file.read_text().replace("tests.example_toolchain", "collage_tango.example")
            file.write_text(text)
        super().__init__(folder, source)
        self.model = folder / "model.onnx"
        onnx.save(convolutions(), self.model)

    def json(self, *arguments: object, **environment: str) -> Any:
        return json.loads(self.collage(*arguments, "--json", **environment))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def states(installed: Installed) -> dict[str, Any]:
    document = installed.json("toolchains")
    assert_fits("toolchains", "list", document)
    return {state["name"]: state for state in document["toolchains"]}


def test_it_is_listed_with_a_look_of_its_own(states: dict[str, Any]) -> None:
    tango = states["tango"]
    assert tango["available"] and tango["version"] == "0.3" and tango["title"] == "Tango"
    assert tango["licence"] == "MIT" and tango["targets"] == ["cpu"]
    others = [state for state in states.values() if state["name"] != "tango"]
    assert tango["colour"] not in {state["colour"] for state in others}
    assert tango["letters"] not in {state["letters"] for state in others}
    assert tango["pattern"]


def test_a_broken_package_costs_itself_only(states: dict[str, Any]) -> None:
    broken = states["broken"]
    assert not broken["available"]
    assert "of collage-tango 0.3 cannot be loaded" in broken["reason"]
    assert "a_library_that_nobody_has" in broken["reason"]
    taken = next(s for name, s in states.items() if name.startswith("onednn ("))
    assert "the name belongs to a toolchain of Collage Explorer already" in taken["reason"]
    assert states["onednn"]["title"] == "oneDNN"


def test_place_uses_it_explains_it_and_exports_it(installed: Installed) -> None:
    session = installed.folder / "s.collage"
    place = ("place", installed.model, "-o", installed.folder / "out", "--session", session)
    options = ("--toolchains", "tvm,tango", "--pin", "relu=tango", "--no-in-model")
    quick = ("--threads", "1", "--confirm", "quick", "--budget", "40s")
    run = installed.json(*place, *options, *quick)
    parts = run["placement"]["partitions"]
    ours = [part for part in parts if part["toolchain"] == "tango"]
    assert ours and all(part["estimated_us"] > 0 for part in ours)
    assert run["max_rel_error"] < 1e-4

    document = installed.json("candidates", installed.model, "--toolchains", "tvm,tango")
    assert_fits("candidates", "candidates", document)
    candidates = document["candidates"]
    assert any(c["instance"]["toolchain"] == "tango" for c in candidates)
    kept = load_session(session).candidates
    assert any(c.cost.usable for c in kept if c.instance.toolchain == "tango")

    node = ours[0]["nodes"][0]
    words = " ".join(installed.json("explain", session, node)["words"])
    assert "Tango" in words
    refused = installed.json("explain", session, 0)["not_offered"]
    assert any(each["reason"].startswith("the example computes no") for each in refused)

    picture = installed.folder / "s.svg"
    installed.collage("report", session, "-o", picture)
    state = next(s for s in run["toolchains"] if s["name"] == "tango")
    assert state["colour"] in picture.read_text() and "Tango" in picture.read_text()

    again = installed.folder / "again"
    installed.collage("export", session, "-o", again)
    moved = again.rename(installed.folder / "moved")
    report = installed.json("run", moved, COLLAGE_BUILD_DIR=str(installed.folder / "empty"))
    assert report["max_rel_error"] < 1e-4
    manifest = json.loads((moved / "manifest.json").read_text())
    (library,) = [each for each in manifest["libraries"] if each["toolchain"] == "tango"]
    (part,) = manifest["requires"]
    # The runtime is compiled from the package's source, so it has the package's licence.
    assert "collage_tango" in library["file"] and library["licence"] == "MIT-0"
    assert part["file"] == "tango_part.py" and part["licence"] == "Zlib"
    assert part["reason"] == "tango runs through the Python module math 0.3"


def test_a_toolchain_in_python_alone_is_placed_beside_others_and_runs_elsewhere(
    installed: Installed, states: dict[str, Any]
) -> None:
    waltz = states["waltz"]
    assert waltz["available"] and waltz["version"] == metadata.version("onnx")
    model = installed.folder / "products.onnx"
    net = Net()
    y = net.add("MatMul", net.input(4, 16), net.randn(16, 16), name="product")
    y = net.add("Tanh", y, name="tanh")
    onnx.save(net.model(net.add("Relu", y, name="relu")), model)
    pins = ("--pin", "product=waltz", "--pin", "tanh=tango", "--pin", "relu=tvm")
    names = ("--toolchains", "tvm,tango,waltz")
    out = installed.folder / "python"
    options = ("--no-in-model", "--threads", "1", "--confirm", "quick")
    run = installed.json("place", model, "-o", out, *names, *pins, *options)
    used = {part["toolchain"] for part in run["placement"]["partitions"]}
    assert used == {"tvm", "tango", "waltz"} and run["max_rel_error"] < 1e-4
    moved = out.rename(installed.folder / "python_moved")
    report = installed.json("run", moved, COLLAGE_BUILD_DIR=str(installed.folder / "empty"))
    assert report["max_rel_error"] < 1e-4
    manifest = json.loads((moved / "manifest.json").read_text())
    required = {each["file"]: each for each in manifest["requires"]}
    assert required["collage_waltz.py"]["module"] == "onnx"
    licences = {each["file"]: each["licence"] for each in manifest["libraries"]}
    assert licences["waltz_session.py"] == "MIT-0"


def test_its_licences_count_where_licences_are_limited(installed: Installed) -> None:
    limited = ("--toolchains", "tvm,tango", "--pin", "relu=tango", "--threads", "1")
    command = ("place", installed.model, "-o", installed.folder / "limited", *limited)
    done = installed.run(*command, "--licences", "Apache-2.0,MIT")
    assert done.returncode == 1 and "MIT-0" in done.stderr and "Zlib" in done.stderr


def test_what_a_toolchain_raises_is_told_with_its_place_and_once(installed: Installed) -> None:
    where = "(collage_tango/clumsy.py, line 21)"
    why = f"AttributeError: 'Node' object has no attribute 'steps' {where}"
    done = installed.run("toolchains", "check", "tango", "waltz", "clumsy")
    assert done.returncode == 1 and f"it raises {why}" in done.stdout
    assert done.stdout.count(f"of {len(CHECKS)} checks passed, 0 failed") == 2
    assert re.search(r"clumsy: \d of \d checks passed, 1 failed", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    out = ("place", installed.model, "-o", installed.folder / "clumsy", "--threads", "1")
    options = ("--toolchains", "tvm,clumsy", "--no-in-model", "--confirm", "quick")
    done = installed.run("-v", *out, *options, "--budget", "20s")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert said.count("Clumsy is left out of this run") == 1
    assert f"clumsy failed when it was asked about the model: {why}" in said
    assert 'clumsy.py", line 21, in supports' in said, "-v shows the whole traceback"


def test_a_new_toolchain_in_python_alone_passes_every_check(installed: Installed) -> None:
    said = installed.collage("toolchains", "new", "samba")
    assert "collage toolchains check samba" in said
    for again, why in (
        ("samba", "is there already"),
        ("tvm", "there is a toolchain"),
        ("1", "'1'"),
    ):
        done = installed.run("toolchains", "new", again)
        assert done.returncode == 2 and why in done.stderr
    installed.install(installed.folder / "collage-samba")
    found = installed.json("toolchains", "check", "samba")
    assert_fits("toolchains", "check", found)
    outcomes = [finding["outcome"] for finding in found["findings"]]
    assert (
        "failed" not in outcomes
        and outcomes.count("passed") >= len(CHECKS) - 1
        and not found["not_made"]
    )


def test_no_file_of_the_checkout_was_used(installed: Installed) -> None:
    """Asked last; the watch itself is shown to work by reading a file of the checkout."""
    assert installed.opened_in_checkout() == set()
    installed.collage("candidates", ROOT / "resources" / "models" / "mnist.onnx")
    assert installed.opened_in_checkout() == {str(ROOT / "resources" / "models" / "mnist.onnx")}
