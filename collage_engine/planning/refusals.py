"""Says why a toolchain has no candidate with an operator."""

from __future__ import annotations

from collage_engine.records.operator_titles import onnx_type
from collage_engine.records.refusal import Refusal, RefusalKind

_TEXTS: dict[RefusalKind, str] = {
    "judged": "{detail}",
    "alone": "{toolchain} does not take {operator} by itself",
    "calls": (
        "{toolchain} and {library} compute no group of operators with this {operator} together"
    ),
    "device": "{operator} stays on the host, not on {detail}",
    "precision": "{operator} gains nothing in {detail}",
}


def refusal_text(refusal: Refusal) -> str:
    """Return a refusal as a sentence, in ONNX types and toolchains' titles."""
    return _TEXTS.get(refusal.kind, _TEXTS["alone"]).format(
        detail=refusal.detail,
        operator=onnx_type(refusal.operator),
        toolchain=refusal.toolchain,
        library=refusal.library,
    )


def named_refusal_text(refusal: Refusal) -> str:
    """Return the sentence for where nothing around it says whose it is."""
    text = refusal_text(refusal)
    return f"{refusal.toolchain}: {text}" if refusal.kind == "judged" else text
