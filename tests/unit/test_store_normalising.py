"""The store keeps raw times; they are read at the speed of this machine's own probe."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from collage_engine.records.cost import Cost
from collage_engine.store.measurement import Measurement
from collage_engine.store.normalising import geometric_mean_us, slowness_at
from collage_engine.store.store import Store
from collage_engine.timing.timing_costs import merged, repeats_apart

PROBE = "guard, NumPy 2.0"
REFERENCE = (30e-6, 40e-6)
REFERENCE_US = geometric_mean_us(REFERENCE)


def measured(slowness: float = 1.5, **fields: object) -> Cost:
    """A cost of 10 µs on a calm machine, measured while the machine was slower."""
    return Cost(
        state="measured",
        median_us=10.0,
        low_us=9.0,
        high_us=12.0,
        cold_us=20.0,
        count=3,
        repeats_us=(9.0, 10.0, 12.0),
        slowness=slowness,
        **fields,  # type: ignore[arg-type]
    )


PROBED = measured(probe=PROBE, probe_us=REFERENCE_US, reading_us=1.5 * REFERENCE_US)


def read(folder: Path, cost: Cost, local: tuple[float, float] | None) -> Cost:
    """A cost, as a store with this reference of the probe reads it."""
    with Store(folder / "m.db") as store:
        store.put(Measurement(key="a", cost=cost))
        if local is not None:
            store.put_constant(PROBE, local)
        found = store.get("a")
    assert found is not None and found.from_store
    return found


def test_a_reference_is_the_geometric_mean_of_its_kernels() -> None:
    assert geometric_mean_us((20e-6, 80e-6)) == pytest.approx(40.0)


def test_a_speed_that_hardly_differs_is_the_same() -> None:
    assert slowness_at(60.0, 30.0) == 2.0
    assert slowness_at(31.0, 30.0) == 1.0


def test_rows_hold_the_times_that_were_measured_and_the_reading(tmp_path: Path) -> None:
    read(tmp_path, PROBED, REFERENCE)
    with sqlite3.connect(tmp_path / "m.db") as connection:
        row = connection.execute(
            "select median_us, low_us, high_us, cold_us, probe, reading_us, reference_us, "
            "normalised, cost from measurements"
        ).fetchone()
    assert row[:4] == pytest.approx((15.0, 13.5, 18.0, 30.0))
    assert row[4] == PROBE and row[7] == 0
    assert row[5:7] == pytest.approx((1.5 * REFERENCE_US, REFERENCE_US))
    assert json.loads(row[8])["repeats_us"] == pytest.approx([13.5, 15.0, 18.0])


@pytest.mark.parametrize("local", [None, REFERENCE])
def test_a_cost_is_read_as_it_was(tmp_path: Path, local: tuple[float, float] | None) -> None:
    found = read(tmp_path, PROBED, local)
    assert found.median_us == pytest.approx(10.0) and found.cold_us == pytest.approx(20.0)
    assert found.repeats_us == pytest.approx((9.0, 10.0, 12.0))
    assert found.slowness == pytest.approx(1.5) and found.probe_us == pytest.approx(REFERENCE_US)


def test_a_reference_that_is_taken_anew_holds_for_costs_that_are_stored(tmp_path: Path) -> None:
    twice = (60e-6, 80e-6)
    cost = read(tmp_path, PROBED, twice)
    # Measured: 15 µs while the probe took 1.5 references; here that is 0.75 references.
    assert cost.slowness == pytest.approx(0.75) and cost.median_us == pytest.approx(15 / 0.75)
    assert (cost.low_us, cost.high_us) == pytest.approx((18.0, 24.0))
    assert cost.repeats_us == pytest.approx((18.0, 20.0, 24.0))
    assert cost.probe_us == pytest.approx(geometric_mean_us(twice))


def test_a_small_change_that_was_no_slowness_is_one_at_a_better_reference(tmp_path: Path) -> None:
    """The reading is kept, also where it was too near to the reference to tell."""
    cost = measured(1.0, probe=PROBE, probe_us=REFERENCE_US, reading_us=1.04 * REFERENCE_US)
    found = read(tmp_path, cost, (27e-6, 36e-6))
    assert found.slowness == pytest.approx(1.04 / 0.9)
    assert found.median_us == pytest.approx(10.0 / (1.04 / 0.9))


@pytest.mark.parametrize(
    "cost",
    [
        measured(probe="guard, NumPy 1.26", probe_us=REFERENCE_US, reading_us=1.5 * REFERENCE_US),
        measured(),  # an older version normalised it, and kept no reading
    ],
)
def test_what_another_probe_or_none_was_read_beside_stays_as_it_is(
    tmp_path: Path, cost: Cost
) -> None:
    found = read(tmp_path, cost, (60e-6, 80e-6))
    assert found.median_us == pytest.approx(10.0) and found.slowness == pytest.approx(1.5)


def test_a_merged_cost_is_read_as_it_was(tmp_path: Path) -> None:
    later = measured(1.0, probe=PROBE, probe_us=REFERENCE_US, reading_us=REFERENCE_US)
    first = read(tmp_path, PROBED, REFERENCE)
    both = merged(first, later)
    found = read(tmp_path, both, REFERENCE)
    assert found.repeats_us == pytest.approx(both.repeats_us)
    # The repeats of a known cost are found again, though they were in the store meanwhile.
    assert repeats_apart(PROBED, found) == (PROBED.repeats_us, later.repeats_us)
