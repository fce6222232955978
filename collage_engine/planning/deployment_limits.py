"""Deployment limits of a run: the user's settings and what runtimes bring, as the search's limits.

What runtimes bring (bytes, licences) is found where toolchains are at hand and kept among the
document's constants, so that the process that answers requests can search under the limits too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collage_engine.records.format import BYTES, LICENCE, WEIGHTS
from collage_engine.records.settings import RunSettings
from collage_engine.search.limits import (
    Runtime,
    RuntimeLimits,
    limits_in_words,
    violated_limits,
)

if TYPE_CHECKING:
    from collage_engine.records.candidate import Candidate


def runtime_limits(settings: RunSettings, constants: Mapping[str, float]) -> RuntimeLimits | None:
    """Return the search's limits; None where nothing is limited.

    Args:
        settings: What the user limits.
        constants: What runtimes bring, by the names of :mod:`collage_engine.records.format`.
    """
    sizes: dict[str, int] = {}
    licences_of: dict[str, list[str]] = {}
    for key, value in constants.items():
        if key.startswith(BYTES):
            sizes[key.removeprefix(BYTES)] = int(value)
        elif key.startswith(LICENCE):
            name, _, licence = key.removeprefix(LICENCE).partition(":")
            licences_of.setdefault(name, []).append(licence)
    licences = None
    if settings.licences:
        known = {licence for names in licences_of.values() for licence in names}
        meant = {licence for licence in known if _is_meant(licence, settings.licences)}
        licences = (*settings.licences, *sorted(meant - set(settings.licences)))
    limits = RuntimeLimits(
        allow=settings.allow_runtimes or None,
        max_runtimes=settings.max_runtimes or None,
        max_bytes=settings.max_artifact_bytes or None,
        licences=licences,
        runtimes={
            name: Runtime(
                bytes=sizes.get(name, 0), licences=tuple(sorted(licences_of.get(name, ())))
            )
            for name in sorted(sizes.keys() | licences_of.keys())
        },
        base_bytes=int(constants.get(WEIGHTS, 0.0)),
    )
    return limits if limits_in_words(limits) else None


def size_warning(artifact_bytes: int | None, settings: RunSettings) -> list[str]:
    """Return a warning when the artifact is larger than the limit; else an empty list.

    The search estimates its size by weights and runtime libraries; code, samples and licences come
    on top.
    """
    most = settings.max_artifact_bytes
    if artifact_bytes is None or not most or artifact_bytes <= most:
        return []
    return [
        (
            f"the artifact has {artifact_bytes / 1e6:.4g} MB, more than the {most / 1e6:.4g} MB "
            "asked for: its weights and runtime libraries fit, its code, samples and licences come "
            "on top"
        )
    ]


def _is_meant(licence: str, allowed: Sequence[str]) -> bool:
    """Tell whether the user means a licence: ``BSD`` means every BSD licence, in any case."""
    lowered = licence.lower()
    return any(lowered == w.lower() or lowered.startswith(w.lower() + "-") for w in allowed)


def export_refusal(cover: Sequence[Candidate], limits: RuntimeLimits | None) -> str | None:
    """Return why a baseline's cover may not be exported under the limits; None when it may."""
    if limits is None:
        return None
    used = {candidate.instance.toolchain for candidate in cover}
    texts = violated_limits(limits, used)
    if "allow" in texts:
        texts.pop("licences", None)  # what is not wanted at all need not state its licences
    return f"beyond the limits: {'; '.join(texts.values())}" if texts else None
