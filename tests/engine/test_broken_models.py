"""Every broken model gets one sentence that names the file and says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collage_engine.model.importer import import_model
from collage_engine.records.errors import CollageError
from collage_engine.records.reasons import MOST_OF_A_SENTENCE
from tests.support.broken_models import BROKEN, Broken


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_a_broken_model_is_refused_in_one_sentence(broken: Broken, tmp_path: Path) -> None:
    path = tmp_path / "self.onnx"
    path.write_bytes(broken.data())
    with pytest.raises(CollageError) as error:
        import_model(path)
    said = str(error.value)
    assert re.search(broken.says, said), said
    assert str(path) in said
    assert said.isprintable(), repr(said)
    assert len(said) <= len(str(path)) + MOST_OF_A_SENTENCE
    assert "Traceback" not in said and "Check failed" not in said
