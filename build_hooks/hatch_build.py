"""Puts compiled adapters into a wheel where .ci/build names their folder; else it is pure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CarriedAdapters(BuildHookInterface):
    """The hook that hatchling calls before it makes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder COLLAGE_CARRIED; its wheel.json has the tag and more dependencies."""
        folder = os.environ.get("COLLAGE_CARRIED")
        if folder:
            build_data["force_include"][folder] = "collage_engine/_carried"
            build_data["pure_python"] = False
            build_data |= json.loads((Path(folder) / "wheel.json").read_text())
