"""What conversions cost is kept for the toolchain that writes them, whichever a run uses."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.format import NHWC, PLAIN, conversion_constant
from collage_engine.records.graph import TensorType
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.transitions.conversions import ConversionRequest, conversion_constants

WANTED = (TensorType((1, 8, 4, 4), "float32"), PLAIN, NHWC)


def canned(request: ConversionRequest) -> dict[str, float]:
    """Answer as the child does."""
    return {conversion_constant(*each): 3.0 for each in request.conversions}


def test_costs_of_conversions_do_not_depend_on_which_toolchains_a_run_names(
    tmp_path: Path,
) -> None:
    measured: list[str] = []

    def found(sources: dict[str, str]) -> dict[str, float]:
        context = KeyContext(tvm_version="t", target="c", fingerprint="f", sources=sources)
        return conversion_constants(
            [WANTED],
            1,
            context,
            store=store,
            on_measuring=lambda: measured.append("now"),
            job=f"{__name__}:canned",
        )

    with Store(tmp_path / "store.db") as store:
        first = found({"tvm": "1", "onednn": "2"})
        assert found({"onednn": "2"}) == first == {conversion_constant(*WANTED): 3.0}
    assert measured == ["now"]
