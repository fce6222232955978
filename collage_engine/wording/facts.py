"""Collects what a run's times do not say as facts for tables, one short line each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.placement import CandidateCounts, MemoryUse, Placement, Run
from collage_engine.records.precision import FLOAT32, Accuracy, short
from collage_engine.records.toolchain import TuneCounts
from collage_engine.support.text import counted
from collage_engine.wording.amounts import (
    bytes_text,
    duration_text,
    gain_text,
    number_text,
    signed_time,
    time_text,
    total,
)
from collage_engine.wording.figures import candidate_counts
from collage_engine.wording.titles import toolchain_title


def tolerance_sentences(run: Run) -> list[str]:
    """Say how far outputs may be from the true ones, where the model's rounding decides on it.

    Args:
        run: A run.

    Returns:
        Clauses without a final period; none for a run whose precision or user decides on it.
    """
    about = run.tolerance
    if about is None or about.source != "rounding":
        return []
    moves = "; ".join(
        f"{name!r} by {moved:.1e}, so that an error of {about.of(name):.1e} is allowed there"
        for name, moved in about.noise.items()
    )
    return [
        (
            "the model amplifies rounding: when inputs and weights change in the last bit, outputs "
            f"move ({moves}; otherwise {about.default:g} is allowed)"
        )
    ]


def precision_text(precision: str, max_rel_error: float | None) -> str:
    """Return a partition's precision and own error as a text: ``bf16, error 2.1e-03``."""
    error = "" if max_rel_error is None else f", error {max_rel_error:.1e}"
    return f"{short(precision)}{error}"


def inputs_text(samples: int) -> str:
    """Return in words on how many sets of inputs outputs were compared."""
    return "one input only" if samples == 1 else f"{samples} sets of inputs"


@dataclass(frozen=True)
class Fact:
    """One line of a table: a group, a name and a value."""

    group: str
    name: str
    value: str
    tip: str = ""


_accuracy, _tuned = partial(Fact, "Accuracy"), partial(Fact, "Tuning")


def run_facts(run: Run) -> list[Fact]:
    """Return a run's facts: machine, limits, pins, accuracy, memory, tuning, candidates."""
    facts = [*limit_facts(run.limits), *pin_facts(run.pins, run.pins_us), *accuracy_facts(run)]
    if run.measured_on:
        facts.insert(0, Fact("Farm", "placed on", run.measured_on))
    if run.memory is not None:
        facts += _memory(run.memory)
    if run.placement is not None:
        facts += placement_facts(run.placement)
    if run.tuning is not None:
        facts += _tuning(run.tuning)
    return facts + _candidates(run.candidates)


def fact_lines(facts: Iterable[Fact], groups: Sequence[str]) -> list[str]:
    """Return one line for each of some groups: ``Accuracy: tolerance 0.01; error 4.0e-03``."""
    grouped: dict[str, list[str]] = {group: [] for group in groups}
    for fact in facts:
        grouped.get(fact.group, []).append(f"{fact.name} {fact.value}")
    return [f"{group}: {'; '.join(said)}" for group, said in grouped.items() if said]


def limit_facts(limits: Iterable[LimitVerdict]) -> list[Fact]:
    """Return one fact for each limit on what is deployed: whether it holds, and its price."""
    return [
        Fact("Limits", limit.text, _verdict(limit.state, None, limit.reason), limit.reason or "")
        for limit in limits
    ]


def pin_facts(pins: Iterable[PinVerdict], together_us: float | None = None) -> list[Fact]:
    """Return one fact for each pin, whether it is honoured and its price, and one for all of them.

    Args:
        pins: What became of the pins.
        together_us: What they cost together; None: not known.
    """
    facts = [
        Fact("Pins", pin.pin, _verdict(pin.state, pin.price_us, pin.reason), pin.reason or "")
        for pin in pins
    ]
    if together_us is not None:
        facts.append(Fact("Pins", "all together", _price(together_us)))
    return facts


def placement_facts(placement: Placement) -> list[Fact]:
    """Return the facts of a placement: formats at the borders of partitions, and conversions."""
    formats = [dict.fromkeys((*p.takes.values(), *p.gives.values())) for p in placement.partitions]
    facts = [
        Fact("Formats", f"partitions that take or give {name}", f"{count} of {len(formats)}")
        for name, count in Counter(itertools.chain(*formats)).items()
    ]
    if placement.conversions:
        us = total(conversion.us for conversion in placement.conversions)
        took = "time unknown" if us is None else time_text(us)
        value = f"{len(placement.conversions)}, {took} in all"
        facts.append(Fact("Formats", "conversions of values", value))
    return facts


def changed_facts(
    before: Sequence[Fact], after: Sequence[Fact]
) -> list[tuple[Fact, str | None, str | None]]:
    """Pair the facts of two runs, in the order of the later one.

    Args:
        before: Facts of the earlier run.
        after: Facts of the later run.

    Returns:
        (fact, value before, value after); a value is None where a run has no such fact.
    """
    old = {(fact.group, fact.name): fact.value for fact in before}
    new = {(fact.group, fact.name): fact.value for fact in after}
    facts = [*after, *(fact for fact in before if (fact.group, fact.name) not in new)]
    groups = list(dict.fromkeys(fact.group for fact in facts))
    facts.sort(key=lambda fact: groups.index(fact.group))
    keys = [(fact.group, fact.name) for fact in facts]
    return [(fact, old.get(key), new.get(key)) for fact, key in zip(facts, keys, strict=True)]


def _price(us: float) -> str:
    """Return what a demand costs: ``+11 µs`` or ``at no cost``."""
    return signed_time(us) if us else "at no cost"


def _verdict(state: str, price_us: float | None, reason: str | None) -> str:
    """Return a verdict as text: ``honoured, +11 µs``; without a price, with its reason."""
    if state == "honoured" and price_us is not None:
        return f"honoured, {_price(price_us)}"
    if not reason:
        return state
    return f"{state}, {reason}" if state == "honoured" else f"{state}: {reason}"


def nan_losses_text(placement: Placement, title_of: Callable[[str], str] = toolchain_title) -> str:
    """Return what of a placement does not hand on NaN: ``Relu on OpenVINO (12 nodes)``."""
    return ", ".join(
        f"{loss.operator} on {title_of(loss.toolchain)} ({counted(loss.nodes, 'node')})"
        for loss in placement.nan_losses
    )


def accuracy_facts(run: Run) -> list[Fact]:
    """Return the precision and error of a placement, and what reduced precision gained."""
    facts = []
    about, placement = run.accuracy, run.placement
    if about is not None:
        facts.append(_accuracy("lowest precision admitted", short(about.precision)))
    if placement is not None:
        if losses := nan_losses_text(placement):
            facts.append(_accuracy("does not hand on NaN:", losses))
        for precision in dict.fromkeys(p.precision for p in placement.partitions):
            held = [p for p in placement.partitions if p.precision == precision]
            errors = [p.max_rel_error for p in held if p.max_rel_error is not None]
            worst = f", within {max(errors):.1e} each" if errors else ""
            value = f"{len(held)} of {len(placement.partitions)}{worst}"
            facts.append(_accuracy(f"partitions in {short(precision)}", value))
    facts += [_accuracy("rounding", sentence) for sentence in tolerance_sentences(run)]
    error = about.max_rel_error if about is not None else run.max_rel_error
    if error is not None:
        value = f"{error:.1e}" + (f", checked on {inputs_text(run.samples)}" if run.samples else "")
        tip = "max|y−r| / max|r|, the largest over outputs and sets of inputs"
        facts.append(_accuracy("error of the whole model", value, tip))
    return facts + (_promise(about, placement) if about is not None else [])


def _promise(about: Accuracy, placement: Placement | None) -> list[Fact]:
    reduced = placement is not None and any(p.precision != FLOAT32 for p in placement.partitions)
    rounded = sum(product.rounded for product in about.products)
    # What was not run may be faster.
    all_ran = about.tried and all(trial.max_rel_error is not None for trial in about.tried)
    facts = []
    if about.products:
        count = f"{rounded} of {len(about.products)}"
        facts.append(_accuracy("products that may be rounded", count))
    if about.tried:
        count = counted(len(about.tried), "whole model")
        clause = "; none is faster and keeps the tolerance" if all_ran and not reduced else ""
        facts.append(_accuracy("tried with products rounded", f"{count}{clause}"))
    kept = f"{about.tolerance:g}, kept on {inputs_text(about.samples)}"
    facts.append(_accuracy("tolerance", kept))
    full = about.float32_us
    if full is not None:
        error = about.float32_max_rel_error
        with_error = "" if error is None else f", error {error:.1e}"
        tip = "Of what had time to be measured in float32: what was not measured may be faster."
        facts.append(_accuracy("fastest measured in float32", time_text(full) + with_error, tip))
    ours = placement.measured_us if placement is not None else None
    if reduced and full and ours:
        facts.append(_accuracy("against it", gain_text(ours, full)))
    return facts


def _memory(memory: MemoryUse) -> list[Fact]:
    seen = memory.seen
    sizes: list[tuple[str, int | None]] = [
        ("largest while loading", seen.load_peak_bytes),
        ("largest while running", seen.run_peak_bytes),
        ("before the model is loaded", seen.base_bytes),
        ("the model's weights", memory.weights_bytes),
        ("weights stored once more", memory.repeated_bytes or None),
        ("artifact", memory.artifact_bytes),
        ("runtime libraries in it", memory.library_bytes),
        ("largest of all processes while placing", memory.place_peak_bytes),
    ]
    return [Fact("Memory", name, bytes_text(size)) for name, size in sizes if size is not None]


def _tuning(counts: TuneCounts) -> list[Fact]:
    tried = f"{counted(counts.tried, 'variant')} in {duration_text(counts.seconds)}"
    return [
        _tuned("kernels that could matter", str(counts.workloads)),
        _tuned("tuned in this run", f"{counts.tuned}, {tried}"),
        _tuned("known from earlier runs", str(counts.from_store)),
        _tuned("better than untuned", str(counts.improved)),
        _tuned("tuned candidates", str(counts.candidates)),
    ]


def _candidates(counts: CandidateCounts) -> list[Fact]:
    rows = [("found", number_text(counts.enumerated)), ("distinct", number_text(counts.distinct))]
    rows += candidate_counts(counts)
    return [Fact("Candidates", name, number) for name, number in rows]
