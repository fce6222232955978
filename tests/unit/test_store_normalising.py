"""Stored costs are read at the speed of this machine's own probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage_engine.records.cost import Cost
from collage_engine.store.measurement import Measurement
from collage_engine.store.normalising import geometric_mean_us
from collage_engine.store.store import Store

PROBE = "guard, NumPy 2.0"
REFERENCE = (30e-6, 40e-6)


def stored(folder: Path, local: tuple[float, float] | None, **fields: object) -> Cost:
    """A cost of 10 µs that was measured beside the reference, as this store reads it."""
    cost = Cost(
        state="measured",
        median_us=10.0,
        low_us=9.0,
        high_us=12.0,
        count=3,
        repeats_us=(9.0, 10.0, 12.0),
        slowness=1.5,
        **fields,  # type: ignore[arg-type]
    )
    with Store(folder / "m.db") as store:
        store.put(Measurement(key="a", cost=cost))
        if local is not None:
            store.put_constant(PROBE, local)
        found = store.get("a")
    assert found is not None
    return found


def test_a_reference_is_the_geometric_mean_of_its_kernels() -> None:
    assert geometric_mean_us((20e-6, 80e-6)) == pytest.approx(40.0)


def test_a_cost_of_a_faster_machine_is_brought_to_the_reference_here(tmp_path: Path) -> None:
    twice = (60e-6, 80e-6)
    cost = stored(tmp_path, twice, probe=PROBE, probe_us=geometric_mean_us(REFERENCE))
    # Measured: 15 µs while the probe took 1.5 references; here that is 0.75 references.
    assert cost.slowness == pytest.approx(0.75) and cost.median_us == pytest.approx(15 / 0.75)
    assert (cost.low_us, cost.high_us) == pytest.approx((18.0, 24.0))
    assert cost.repeats_us == pytest.approx((18.0, 20.0, 24.0))
    assert cost.probe_us == pytest.approx(geometric_mean_us(twice)) and cost.from_store


@pytest.mark.parametrize(
    ("local", "probe"),
    [
        (None, PROBE),  # no reference was taken here yet
        (REFERENCE, PROBE),
        ((31e-6, 40e-6), PROBE),  # as near as readings of one machine are
        ((60e-6, 80e-6), "guard, NumPy 1.26"),  # another work: nothing to compare
        ((60e-6, 80e-6), ""),  # stored before references were kept with costs
    ],
)
def test_other_costs_stay_as_they_are(
    tmp_path: Path, local: tuple[float, float] | None, probe: str
) -> None:
    cost = stored(
        tmp_path, local, probe=probe, probe_us=geometric_mean_us(REFERENCE) if probe else None
    )
    assert cost.median_us == 10.0 and cost.slowness == 1.5 and cost.from_store
