"""Finds files that ship with the product: sample models, the report's template, icons."""

from __future__ import annotations

from pathlib import Path

from collage_engine.support.errors import CollageError


def resource(name: str) -> Path:
    """Path of ``resources/<name>``, in an installed wheel or in a source checkout."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "_resources", package.parent / "resources"):
        found = root / name
        if found.exists():
            return found
    raise CollageError(f"the installation lacks its resource {name}: install the package again")
