"""Says why a toolchain has no candidate with an operator."""

from __future__ import annotations

from collage_engine.records.operator_titles import onnx_type
from collage_engine.records.refusal import Refusal, RefusalKind
from collage_engine.wording import constraints as say

_TEXTS: dict[RefusalKind, str] = {
    "judged": "{detail}",
    "pattern": "{detail}",
    "alone": say.NOT_BY_ITSELF,
    "calls": say.NO_CALL,
    "device": say.STAYS_ON_THE_HOST,
    "precision": say.GAINS_NOTHING,
    "partitions": say.NO_PARTITION_IS_VALID,
    "no-rules": say.NO_RULES,
}


def refusal_text(refusal: Refusal) -> str:
    """Return a refusal as a sentence, in ONNX types and toolchains' titles."""
    template = say.NO_CALL if refusal.library and refusal.kind == "alone" else _TEXTS[refusal.kind]
    return template.format(
        detail=refusal.detail,
        operator=onnx_type(refusal.operator),
        toolchain=refusal.toolchain,
        library=refusal.library,
    )


def named_refusal_text(refusal: Refusal) -> str:
    """Return the sentence for where nothing around it says whose it is."""
    text = refusal_text(refusal)
    return f"{refusal.toolchain}: {text}" if refusal.kind in ("judged", "pattern") else text
