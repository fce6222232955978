"""Signatures of artifacts, and what both loaders share; nothing of an artifact is run."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.loader.run_artifact import KNOWN_ENDINGS, LIBRARY_LISTS, is_known
from collage_engine.artifact.manifest import check_environment
from collage_engine.artifact.signature import SIGNATURE, Signer, verify_signature
from collage_engine.cli.main import main
from collage_engine.records.errors import ArtifactError, UsageError
from tests.support.lying_artifacts import REFUSED, apply

OLD = Path(__file__).resolve().parents[1] / "data/old_versions/artifact_1"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(OLD, tmp_path / "artifact"))


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private and a public key, written as OpenSSL writes them."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization

    key = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private, public = tmp_path / "key.pem", tmp_path / "key.pub.pem"
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, info))
    return private, public


def test_a_signed_artifact_is_verified_without_running_it(artifact, keys, capsys) -> None:
    Signer(keys[0]).sign(artifact)
    assert len((artifact / SIGNATURE).read_bytes()) == 64
    assert verify_signature(artifact, keys[1])["format"] == "collage-artifact"
    assert main(["export", "-o", str(artifact), "--verify", str(keys[1])]) == 0
    assert "nothing of it was run" in capsys.readouterr().out


@pytest.mark.parametrize("lie", ["tolerance 1e99", "LD_PRELOAD", "no files"])
def test_a_manifest_that_was_changed_after_signing_is_refused(artifact, keys, lie) -> None:
    Signer(keys[0]).sign(artifact)
    apply(REFUSED[lie][0], artifact)
    with pytest.raises(ArtifactError, match="was not signed by the owner"):
        verify_signature(artifact, keys[1])


def test_a_file_that_was_changed_after_signing_is_refused(artifact, keys) -> None:
    Signer(keys[0]).sign(artifact)
    with (artifact / "model.so").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ArtifactError, match=r"model\.so has changed"):
        verify_signature(artifact, keys[1])


def test_what_brings_code_to_a_signed_artifact_is_refused(artifact, keys) -> None:
    Signer(keys[0]).sign(artifact)
    (artifact / "plugins.xml").write_text("<ie/>")  # OpenVINO would load what it names
    with pytest.raises(ArtifactError, match=r"plugins\.xml"):
        verify_signature(artifact, keys[1])


def test_both_loaders_know_the_same_lists_of_libraries() -> None:
    text = (LOADERS / "check_files.h").read_text()
    listed = re.search(r"kLibraryLists\[\] = \{(.*?)\}", text, re.DOTALL)
    assert listed and tuple(re.findall(r'"([^"]+)"', listed[1])) == LIBRARY_LISTS


def test_what_is_not_signed_or_no_key_gets_a_sentence(artifact, keys, tmp_path, capsys) -> None:
    with pytest.raises(ArtifactError, match="is not signed"):
        verify_signature(artifact, keys[1])
    with pytest.raises(UsageError, match="there is no key"):
        Signer(tmp_path / "none.pem")
    with pytest.raises(UsageError, match="holds no private key"):
        Signer(keys[1])
    with pytest.raises(UsageError, match="holds no public key"):
        verify_signature(artifact, artifact / "manifest.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="named pipe"):
        Signer(tmp_path / "pipe")
    assert main(["run", str(artifact), "--verify", str(keys[1])]) == 1
    assert "is not signed" in capsys.readouterr().err


def test_without_the_package_the_sentence_says_what_to_install(keys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(UsageError, match=r"pip install 'collage-explorer\[sign\]'"):
        Signer(keys[0])


def test_both_loaders_know_the_same_variables_and_export_refuses_others() -> None:
    text = (LOADERS / "check_files.h").read_text()
    listed = re.search(r"kKnownEndings\[\] = \{(.*?)\}", text, re.DOTALL)
    assert listed and tuple(re.findall(r'"(\w+)"', listed[1])) == KNOWN_ENDINGS
    for name in ("PATH", "LD_PRELOAD", "_NUM_THREADS", "x_NUM_THREADS", "A=B_NUM_THREADS", ""):
        assert not is_known(name), name
    with pytest.raises(ArtifactError, match="LD_LIBRARY_PATH"):
        check_environment({"LD_LIBRARY_PATH": "/x"})


def test_every_toolchain_sets_only_variables_that_artifacts_may_set() -> None:
    from collage_engine.toolchains.registry import about, all_names

    for name in all_names():
        for spin in (False, True):
            check_environment(about(name).variables(2, spin))


def test_the_loaders_own_sha256_is_sha256(tmp_path: Path) -> None:
    source = tmp_path / "hash.cc"
    source.write_text(
        '#include "check_files.h"\n#include <iostream>\n'
        "int main(int n, char** v) {\n"
        "  for (int i = 2; i < n; ++i)\n"
        '    std::cout << collage::HashOfListed(v[1], v[i]) << "\\n";\n'
        "}\n"
    )
    program = tmp_path / "hash"
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++17", f"-I{LOADERS}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=240)
    contents = [bytes(range(256)) * 4097, b"", *(b"a" * size for size in (1, 55, 56, 63, 64, 65))]
    for number, data in enumerate(contents):
        (tmp_path / str(number)).write_bytes(data)
    done = subprocess.run(
        [str(program), str(tmp_path), *map(str, range(len(contents)))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [hashlib.sha256(data).hexdigest() for data in contents]
