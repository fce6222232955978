"""Every broken model gets one sentence that names the file, from the import or when it is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_model
from collage_engine.records.errors import CollageError
from collage_engine.records.text import SENTENCE_CHARACTERS
from tests.support.broken_models import BROKEN, REFUSED_WHEN_RUN, Broken


def written(broken: Broken, folder: Path) -> Path:
    path = folder / "self.onnx"
    path.write_bytes(broken.data())
    return path


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_a_broken_model_is_refused_in_one_sentence(broken: Broken, tmp_path: Path) -> None:
    path = written(broken, tmp_path)
    with pytest.raises(CollageError) as error:
        import_model(path)
    said = str(error.value)
    assert re.search(broken.says, said), said
    assert str(path) in said
    assert said.isprintable(), repr(said)
    assert len(said) <= len(str(path)) + SENTENCE_CHARACTERS
    assert "Traceback" not in said


@pytest.mark.parametrize("broken", REFUSED_WHEN_RUN, ids=lambda b: b.name)
def test_what_the_import_takes_the_first_run_refuses(broken: Broken, tmp_path: Path) -> None:
    """A placement begins with the true outputs of the file, before any code is made."""
    model = import_model(written(broken, tmp_path))
    with pytest.raises(CollageError, match=r"self\.onnx cannot be run"):
        original_outputs(model, model.random_inputs(0))
