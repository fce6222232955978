"""Every case of the campaigns ends in time and memory, and well or with a clear sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.campaign import campaign, wrong_sentence
from tests.fuzz.subjects import SUBJECTS

LONG = 20 if os.environ.get("COLLAGE_LONG_TESTS") else 1
"""Times the cases of every change; ``python -m tests.fuzz`` does others."""


@pytest.mark.timeout(7200 if LONG > 1 else 300)
@pytest.mark.parametrize("name", SUBJECTS)
def test_no_case_does_harm(name: str, tmp_path: Path) -> None:
    found = list(campaign(name, range(SUBJECTS[name].cases * LONG), tmp_path))
    assert not found, "\n".join(each[:1500] for each in found)


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (99, "ZeroDivisionError", "ZeroDivisionError"),
        (1, "nothing of use", "without a sentence"),
        (1, "collage: a defect of Collage Explorer: KeyError", "a defect of Collage"),
        (1, "collage: it cannot be read: IndexError('x')", "IndexError"),
        (0, "conv\x1b]0;title", "control characters"),
        (2, "collage: " + "x" * 2000, "2009 characters"),
        (1, "collage: m.onnx is truncated: copy it again.", ""),
    ],
)
def test_a_wrong_sentence_is_noticed(status: int, said: str, why: str) -> None:
    found = wrong_sentence(status, said)
    assert why in found if why and found else not why and found is None
