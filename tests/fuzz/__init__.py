"""Hostile files and messages, made by structure-aware mutations; see ``tests/fuzz/campaign.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.campaign import Finding, campaign
from tests.fuzz.protocol import protocol_campaign
from tests.fuzz.subjects import SUBJECTS

CASES = {name: subject.cases for name, subject in SUBJECTS.items()} | {"protocol": 200}
"""Name of a campaign → how many cases the job of every change takes: a minute or less for each."""


def cases_of(name: str, numbers: range, keep: Path | None = None) -> Iterator[Finding | None]:
    """Run cases of a campaign; one finding, or None, for each."""
    run = protocol_campaign(numbers) if name == "protocol" else campaign(name, numbers, keep)
    yield from run
