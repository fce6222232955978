"""Every case of the campaigns ends in time and memory, and well or with a clear sentence."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import CASES, cases_of
from tests.fuzz.campaign import judged, wrong_sentence
from tests.fuzz.mutations import mutate_json

LONG = 20 if os.environ.get("COLLAGE_LONG_TESTS") else 1
"""Times the cases of every change; ``python -m tests.fuzz --seconds 3600`` goes on for longer."""


@pytest.mark.timeout(7200 if LONG > 1 else 300)
@pytest.mark.parametrize("name", CASES)
def test_no_case_does_harm(name: str, tmp_path: Path) -> None:
    findings = list(cases_of(name, range(CASES[name] * LONG), tmp_path))
    assert len(findings) == CASES[name] * LONG
    wrong = [str(finding)[:1500] for finding in findings if finding is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (99, "", "status 99"),
        (1, "nothing of use", "without a sentence"),
        (1, "collage: a defect of Collage Explorer: KeyError", "a defect of Collage"),
        (1, "collage: it cannot be read: IndexError('x')", "IndexError"),
        (0, "conv\x1b]0;title", "control characters"),
        (2, "collage: " + "x" * 2000, "2009 characters"),
    ],
)
def test_a_wrong_sentence_is_noticed(status: int, said: str, why: str) -> None:
    assert why in (wrong_sentence(status, said) or "")


def test_a_good_sentence_passes_and_an_exception_or_much_memory_does_not() -> None:
    ended = [{"status": 1, "said": "collage: m.onnx is truncated: copy it again.", "trace": None}]
    assert judged({"ended": ended, "peak": 10, "rss": 10}, 5) is None
    assert "took 2048 MiB" in (judged({"ended": ended, "peak": 3 << 30, "rss": 5}, 1 << 30) or "")
    raised = [{**ended[0], "trace": "ZeroDivisionError"}]
    assert "ZeroDivisionError" in (judged({"ended": raised, "peak": 1, "rss": 1}, 1) or "")


def test_a_case_is_made_of_its_number_alone() -> None:
    data = {"a": [1, 2, {"b": "text"}], "c": None}
    made = [[mutate_json(Random(f"x {number}"), data) for number in range(50)] for _ in range(2)]
    assert repr(made[0]) == repr(made[1])
    assert len({repr(each) for each in made[0]}) > 25
    assert data == {"a": [1, 2, {"b": "text"}], "c": None}
