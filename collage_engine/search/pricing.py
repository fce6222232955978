"""Costs as exact integers, and what a live value still has to be paid for.

A cost is ``units * scale + tie_break``: microseconds in units of 1e-9 us, and in the low part what
decides between exact ties (priority, then number of partitions). One integer compares like the
pair, so least cost and tie-breaking are one addition and one comparison.

A live value (covered, with uncovered consumers) is described by what each further demand on it
would cost. Its *atoms* are the things that can be charged: being handed to toolchain t, being
converted to format f. A :class:`Prices` holds the price of every atom as the value is now: what
was paid, and what costs nothing, is 0. Two toolchains whose values cost the same from here on thus
give one and the same label. What the rest of a cover demands of a value is a bit mask over its
atoms.
"""

from __future__ import annotations

from collections.abc import Iterable

UNIT_PER_US = 10**9
"""Internal units in a microsecond (a femtosecond each, far below what any clock resolves).
Python's integers keep any sum of them exact."""
IMPOSSIBLE = 1 << 200
"""The price, in internal units, of a conversion that cannot be done . A problem holds times
below 1e15 us (``support.typed``), so that no sum of them, scaled for breaking ties, comes near."""


def units(us: float) -> int:
    """Convert microseconds to whole internal units."""
    return round(us * UNIT_PER_US)


class Prices(dict[int, int]):
    """Prices of a value's atoms; ``self[mask]`` is the cost of demanding the atoms of a mask.

    A :class:`PriceBook` interns them: equal prices are the same object, so that identity is
    equality and labels hash fast.
    """

    __slots__ = ("book", "handovers", "paid", "prices")

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def __init__(self, book: PriceBook, prices: tuple[int, ...], handovers: int) -> None:
        super().__init__()
        self.book = book
        self.prices = prices
        self.handovers = handovers
        """The first so many atoms are transitions, the others are conversions."""
        self.paid: dict[tuple[int, int], tuple[int, Prices]] = {}
        self[0] = 0

    def __missing__(self, mask: int) -> int:
        total = sum(price for atom, price in enumerate(self.prices) if mask >> atom & 1)
        self[mask] = total
        return total

    def pay(self, mask: int, keep: int) -> tuple[int, Prices]:
        """Charge for the atoms of a mask.

        Args:
            mask: The demanded atoms.
            keep: The atoms that consumers still to be covered can demand.

        Returns:
            The cost, and the prices afterwards of the atoms in ``keep``.
        """
        price = self.paid.get((mask, keep))
        if price is None:
            left = keep & ~mask
            after = tuple(p if left >> a & 1 else 0 for a, p in enumerate(self.prices))
            price = self.paid[mask, keep] = (self[mask], self.book.intern(after, self.handovers))
        return price


class PriceBook:
    """Interns prices, and bounds how much worse off one of them is than another."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], Prices] = {}
        self._excess: dict[tuple[Prices, Prices, int], int] = {}

    def intern(self, prices: tuple[int, ...], handovers: int) -> Prices:
        """Return the one :class:`Prices` object of these prices."""
        key = (handovers, prices)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = Prices(self, prices, handovers)
        return number

    def excess(self, one: Prices, other: Prices, consumers: int) -> int:
        """Return the most that ``consumers`` more consuming nodes can cost ``one`` above ``other``.

        Each consuming node demands at most one transition and one format, so at most that many of
        the largest differences of either kind count.
        """
        if one is other:
            return 0
        key = (one, other, consumers)
        price = self._excess.get(key)
        if price is None:
            more = [max(0, a - b) for a, b in zip(one.prices, other.prices, strict=True)]
            cut = one.handovers
            price = self._excess[key] = _sum_of_largest(more[:cut], consumers) + _sum_of_largest(
                more[cut:], consumers
            )
        return price


def _sum_of_largest(amounts: Iterable[int], count: int) -> int:
    return sum(sorted(amounts, reverse=True)[:count])


class Value:
    """A node's output, where what happens to it can cost something."""

    __slots__ = ("_gap", "atoms", "consumers", "handovers", "node_atoms", "sources")

    def __init__(self, consumers: tuple[int, ...], atoms: dict[tuple[str, str], int]) -> None:
        self.consumers = consumers
        """Positions of the nodes that consume it."""
        self.atoms = atoms
        """("to", toolchain) and ("as", format) to the number of the atom, transitions first."""
        self.handovers = sum(1 for kind, _ in atoms if kind == "to")
        self.node_atoms = dict.fromkeys(consumers, 0)
        """Consumer to the atoms that a partition holding it may demand."""
        self.sources: list[Prices] = []
        """The distinct prices it can be produced with."""
        self._gap: dict[tuple[int, int, bool], int] = {}

    def gap(self, one: int, other: int, unconsumed: bool) -> int:
        """Return the most that demanding the atoms ``one`` can cost above demanding ``other``.

        Some atoms may have been paid already, so only the atoms of ``one`` alone count; a value
        that nobody has consumed yet has exactly one of its sources' prices.
        """
        if one == other:
            return 0
        key = (one, other, unconsumed)
        gap = self._gap.get(key)
        if gap is None:
            if unconsumed:  # a source that makes ``other`` impossible is no reason to keep it
                possible = [s for s in self.sources if s[other] < IMPOSSIBLE]
                gap = max((s[one] - s[other] for s in possible), default=-IMPOSSIBLE)
            else:
                gap = max((s[one & ~other] for s in self.sources), default=0)
            self._gap[key] = gap
        return gap
