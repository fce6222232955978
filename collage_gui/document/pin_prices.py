"""Makes pins from a selection, and computes what they cost as far as no search is needed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from collage_engine.records.answers import Price
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.pin import Pin, PinKind
from collage_engine.support.text import counted
from collage_engine.wording.amounts import LEAST_US, signed_time, time_text
from collage_engine.wording.figures import measuring_s
from collage_gui.document.document import Document
from collage_gui.document.pin_set import command_line_text


def make_pin(
    document: Document,
    kind: PinKind,
    nodes: Iterable[int],
    toolchain: str | None = None,
    device: str | None = None,
) -> Pin:
    """Make a pin, with its text for the command line and names that survive a new version.

    Args:
        document: The document.
        kind: What the pin demands.
        nodes: Operator numbers.
        toolchain: The toolchain that is demanded or forbidden.
        device: The device that is demanded.
    """
    chosen = tuple(sorted(nodes))
    names = tuple(document.operators.onnx_names(chosen))
    pin = Pin(kind=kind, nodes=chosen, toolchain=toolchain, device=device, onnx_nodes=names)
    return msgspec.structs.replace(pin, text=command_line_text(document.operators, pin))


def with_pin(document: Document, pin: Pin) -> tuple[Pin, ...]:
    """Add a pin to the document's pins.

    A newer demand for a toolchain replaces what older pins of the same kind say about its
    nodes, since a node cannot be on two toolchains; the older pin keeps its other nodes.
    """
    kept: list[Pin] = []
    nodes = set(pin.nodes)
    for old in document.pins.current:
        same = old.kind == pin.kind and (pin.kind != "never" or old.toolchain == pin.toolchain)
        kept += _freed(document, old, nodes) if same else [old]
    return (*kept, pin)


def without_nodes(document: Document, nodes: frozenset[int]) -> tuple[Pin, ...]:
    """Frees nodes; pins on whole sets of nodes go when one of their nodes is freed."""
    return tuple(pin for old in document.pins.current for pin in _freed(document, old, nodes))


def _freed(document: Document, old: Pin, nodes: Collection[int]) -> list[Pin]:
    """Return what is left of a pin without some nodes: a pin, or nothing."""
    rest = [n for n in old.nodes if n not in nodes]
    if len(rest) == len(old.nodes):
        return [old]
    if not rest or old.kind not in ("on", "never", "device"):
        return []
    return [make_pin(document, old.kind, rest, old.toolchain, old.device)]


Faster = tuple[Collection[int], str]
"""Operators, and a toolchain that was seen to be faster there than what runs them."""


def faster_in_compared(document: Document) -> Faster | None:
    """Return the part with the primary operator that the compared placement takes less for."""
    for part in document.layer_differences():
        if document.selection.primary in part.operators and part.change == "lost":
            owners = document.compared.partitions if document.compared else {}
            names = {owners[operator].toolchain for operator in part.operators}
            return (part.operators, names.pop()) if len(names) == 1 else None
    return None


def faster_here(document: Document) -> Faster | None:
    """Return what is faster at the primary operator; what the graph shows comes first."""
    shown = document.placement.shown
    for row in document.left_to_win(shown.placement) if shown is not None else ():
        if document.selection.primary in row.layer.nodes and row.rival and row.won_us:
            faster = row.layer.nodes, row.rival.partition("[")[0]
            return faster_in_compared(document) or faster
    return faster_in_compared(document)


class PinPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of putting some operators on one toolchain."""

    toolchain: str
    price: Price = Price(None)
    """Extra time of the whole model, where it is known. It may be higher where it was found for
    each operator by itself."""
    unmeasured: int = 0
    """Candidates of this toolchain here that have no cost: with them the price may be lower."""
    reason: str = ""
    """The reason why the toolchain cannot take the operators; empty where it can."""
    is_now: bool = False
    """Whether all the operators run there in the shown placement."""

    @property
    def text(self) -> str:
        """Returns ``+26.9 µs``, ``at most +210 µs, 3 unmeasured``, ``computes no max_pool``."""
        if self.reason:
            return self.reason
        if self.is_now:
            return "as now"
        if self.price.us is None:
            return f"not measured yet, {self.unmeasured} to measure" if self.unmeasured else ""
        price = _text(self.price.us, self.unmeasured)
        if self.unmeasured:
            return f"{price}, {self.unmeasured} unmeasured"
        return f"at least {price}" if self.price.at_least else price


def pin_prices(document: Document, toolchains: Iterable[str]) -> list[PinPrice]:
    """Return the price of each toolchain for the selected operators.

    For one operator it is the least price of the toolchain's candidates that hold it, which is
    exact. For several it is the largest of these, which is a lower bound, or the price of one
    candidate that holds them all.

    Args:
        document: The document, with its selection and what the engine said of it.
        toolchains: Names of the toolchains that the menu offers.
    """
    operators = document.selection.operators
    owners = document.placement.partitions
    now = {owners[n].toolchain for n in operators if n in owners}
    everywhere = all(n in owners for n in operators)
    candidates = list(document.questions.candidates)
    refused = refusals(document)
    asked = {c.instance.toolchain for c in document.costs.candidates.values()}
    prices = []
    for name in toolchains:
        own = [c for c in candidates if c.instance.toolchain == name]
        held = {n for c in own for n in c.nodes}
        unmeasured = len(unmeasured_candidates(document, own, operators))
        reason = ""
        if candidates and not operators <= held:
            nothing = "no candidate here" if name in asked else "took no part in the last run"
            reason = refused.get(name) or nothing
        prices.append(
            PinPrice(
                toolchain=name,
                price=_price(document, own, operators),
                unmeasured=unmeasured,
                reason=reason,
                is_now=everywhere and now == {name},
            )
        )
    return prices


def _price(
    document: Document, own: Collection[CandidateRecord], operators: frozenset[int]
) -> Price:
    """Return the price of some operators on the toolchain of some candidates.

    Where the one selected operator is pinned, it is the price of another pin in that one's place.
    """
    prices, explanation = document.costs.prices, document.questions.explanation
    if explanation is not None and explanation.prices_instead and len(operators) == 1:
        prices = {name: Price(us) for name, us in explanation.prices_instead.items()}

    def least(wanted: frozenset[int]) -> float | None:
        priced = (prices.get(c.id) for c in own if wanted <= set(c.nodes))
        known = (price.us for price in priced if price is not None and not price.at_least)
        return min((us for us in known if us is not None), default=None)

    together = least(operators)
    singly = [least(frozenset({n})) for n in operators]
    known = [us for us in singly if us is not None]
    if len(known) < len(singly) or not known:
        return Price(together)
    bound = max(known)
    is_exact = together is not None and together <= bound
    return Price(together) if is_exact else Price(bound, at_least=True)


def unmeasured_candidates(
    document: Document, candidates: Iterable[CandidateRecord], operators: Collection[int]
) -> list[CandidateRecord]:
    """Return the candidates that hold some of the operators and have no cost yet."""
    wanted = set(operators)
    return [
        c
        for c in candidates
        if document.costs.of(c.id).state == "unknown" and not wanted.isdisjoint(c.nodes)
    ]


def unmeasured_of_pin(document: Document, pin: Pin) -> int:
    """Return how many unmeasured candidates would satisfy a pin: they may lower its price."""
    if pin.kind not in ("on", "exactly") or pin.toolchain is None:
        return 0
    base = pin.toolchain.split("[")[0]
    own = [c for c in document.costs.candidates.values() if c.instance.toolchain == base]
    return len(unmeasured_candidates(document, own, pin.nodes))


def price_of_pin(document: Document, at: int) -> str:
    """Return ``+26.9 µs`` or ``at most +210 µs``: what an honoured pin costs; else nothing.

    Args:
        document: The document.
        at: The place of the pin among the document's.
    """
    verdict = document.pins.verdict_of(at)
    if verdict is None or verdict.price_us is None:
        return ""
    return _text(verdict.price_us, unmeasured_of_pin(document, document.pins.current[at]))


def _text(us: float, unmeasured: int) -> str:
    """Return ``+26.9 µs``; where candidates are unmeasured ``at most +26.9 µs``.

    With these a gain is ``2.02 ms faster or more``.
    """
    if unmeasured and us < -LEAST_US:
        return f"{time_text(-us)} faster or more"
    return f"at most {signed_time(us)}" if unmeasured else signed_time(us)


def refusals(document: Document) -> dict[str, str]:
    """Return, by toolchain, why it has no candidate for the primary operator."""
    explanation = document.questions.explanation
    if explanation is None:
        return {}
    return {each.toolchain.split("[")[0]: each.reason for each in explanation.not_offered}


def measure_text(document: Document, short: bool = False) -> str:
    """Says what the menu offers to measure, and about how long it takes; empty where all is known.

    Args:
        document: The document, with its selection.
        short: Whether the text is for a button, which has less room than a menu.
    """
    operators = document.selection.operators
    left = unmeasured_candidates(document, document.questions.candidates, operators)
    same = [c for c in left if set(c.nodes) == set(operators)]
    if not same:
        return ""
    run = document.runs.shown_or_last()
    seconds = measuring_s(run, len(same)) if run is not None else None
    about = f" (about {max(1, round(seconds))} s)" if seconds is not None else ""
    if short:
        return f"Measure {len(same)} more{about}"
    return f"Measure {counted(len(same), 'unmeasured candidate')} of exactly these{about}"
