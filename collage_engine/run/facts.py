"""Facts of a run that every document of it states."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.records.graph import ModelRecord
from collage_engine.records.settings import RunSettings


def model_facts(record: ModelRecord) -> dict[str, Any]:
    """Return which model a run was of."""
    return {
        "path": record.path,
        "sha256": record.sha256,
        "nodes": record.nodes,
        "folded": list(record.folded),
    }


def settings_facts(settings: RunSettings) -> dict[str, Any]:
    """Return the settings without the user's inputs, which are large."""
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(settings, inputs_npz=None))
    return found
