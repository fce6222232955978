"""Colours every box of a scene in each colour mode, as data for the painter and for SVG.

Nothing is invented: a box whose value is not known is grey and says so.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from collage_engine.drawing.groups import DisplayBox
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import Look, sequential, toolchain_look
from collage_engine.drawing.scene import Scene
from collage_engine.records.operators import onnx_type, short_name
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.precision import (
    FLOAT32,
    FULL,
    PRODUCTS,
    Accuracy,
    RoundedProduct,
    places_of,
)
from collage_engine.support.text import counted
from collage_engine.wording.amounts import node_shapes, shape_text, significant, time_text, total
from collage_engine.wording.figures import partition_us
from collage_engine.wording.layers import by_layer
from collage_engine.wording.titles import toolchain_title

Mode = Literal["toolchain", "cost", "device", "changes", "precision"]

MODES: dict[Mode, str] = {mode: mode.capitalize() for mode in get_args(Mode)}
"""The name of each colour mode in a list, which has room for few letters."""

CHANGES = {
    "gained": Look("#0072b2", "▼", "falling"),
    "lost": Look("#d55e00", "▲", "rising"),
    "moved": Look("#cc79a7", "↔", "grid"),
    "regrouped": Look("#f0e442", "▣", "level"),
    "same": Look(tag="="),
}
"""The look of each change of an operator between two runs; the one that matters most is first."""

RoundingState = Literal["rounded", "full", "without gain", "no product"]
"""What becomes of an operator's operands: they are rounded; they stay in float32; they stay so and
rounding them would save nothing; or it is no convolution or matrix product."""


@dataclass(frozen=True)
class OperatorRounding:
    """What reduced precision does to one operator.

    Attributes:
        state: What becomes of its operands.
        error: The relative error of the outputs when they alone are rounded; None: not known.
    """

    state: RoundingState
    error: float | None = None


ROUNDINGS: dict[RoundingState, tuple[Look, str, str]] = {
    "rounded": (
        Look("#0072b2", "▾", "falling"),
        "in reduced precision",
        "Rounding it alone makes an error of {error}.",
    ),
    "full": (
        Look("#e69f00", "32", "rising"),
        "product in float32",
        "Rounding it alone would make an error of {error}.",
    ),
    "without gain": (
        Look("#f0e442", "=", "level"),
        "product in float32, rounding it saves nothing",
        "Rounding it alone would make an error of {error}, and save nothing.",
    ),
    "no product": (Look(), "no product", ""),
}
"""The look of what reduced precision does to an operator, what the legend calls it, and the
sentence with the error of the outputs; the one that matters most is first."""

_DEVICE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
NOT_TIMED = "not timed"
_COST_STEPS = (
    (0.3, "over 30 % of the time"),
    (0.1, "10–30 %"),
    (0.03, "3–10 %"),
    (0.01, "1–3 %"),
    (0.0, "under 1 %"),
)
"""Steps of cost in the legend, the dearest first: the least share of the whole latency, and the
step's name. Chosen: steps of about three, since most partitions take a few per cent."""


@dataclass(frozen=True)
class BoxStyle(Look):
    """The look of one box. ``colour`` fills its strip, or the whole box where it is small."""

    title: str = ""
    name: str = ""
    """The box's name in the user's file, which tells it from others of the same title."""
    detail: str = ""
    value: str = ""
    """A number at the right edge, e.g. the partition's cost."""
    filled: bool = False
    """Whether the colour fills the whole box, not only its strip (scales)."""
    dashed: bool = False
    """Whether the placement is estimated, not confirmed."""
    kind: str = "node"
    entry: str = ""
    """Key of the legend's entry that it belongs to."""
    share: float | None = None
    """Expected cost beside that of the dearest partition, 0…1; drawn as a thin bar."""
    mixed: tuple[tuple[str, float], ...] = ()
    """A group's toolchain colours and their shares of operators, when there are several."""
    note: str = ""
    """One more sentence about the box, e.g. the error that rounding it makes."""


Coloured = tuple[Look, str, dict[str, Any]]
"""How a box looks, the label of its entry in the legend, and other fields of its style."""


@dataclass(frozen=True)
class LegendEntry(Look):
    """One colour of the picture and what it means."""

    label: str = ""
    key: str = ""
    count: int = 0
    """Number of operators that have this colour."""
    detail: str = ""
    """The number of operators, with their time and share of the latency where these are known."""


@dataclass(frozen=True)
class Colouring:
    """The colours of boxes by what is known of one placement; each part of it may be missing."""

    placement: Placement | None = None
    estimated: bool = True
    dark: bool = False
    """Whether the background is dark: what matters most is then the lightest of a scale."""
    changes: Mapping[int, str] | None = None
    """The change of each operator between two runs, by operator number: a key of ``CHANGES``."""
    roundings: Mapping[int, OperatorRounding] | None = None
    """What reduced precision does to each operator, by operator number."""

    @cached_property
    def partitions(self) -> Sequence[Partition]:
        """Return the partitions of the placement."""
        return self.placement.partitions if self.placement is not None else ()

    @cached_property
    def owner(self) -> dict[int, Partition]:
        """Return the partition of each operator."""
        return {node: p for p in self.partitions for node in p.nodes}

    @cached_property
    def costs_us(self) -> list[float]:
        """Return the expected costs of the partitions, in µs; 0 where one is not known."""
        return [self.us_of(p) or 0.0 for p in self.partitions] or [0.0]

    @cached_property
    def timed(self) -> dict[int, Partition]:
        """Return what was timed with each operator: its layer, or else its partition.

        It is empty where one partition is the whole placement and its layers were not timed.
        """
        layered = by_layer(self.placement) if self.placement is not None else None
        if layered is None or (len(layered.partitions) == 1 and layered is self.placement):
            return {}
        return {node: part for part in layered.partitions for node in part.nodes}

    def us_of(self, partition: Partition) -> float | None:
        """Return what a partition of the placement takes, in µs; None where it is not known."""
        return None if self.placement is None else partition_us(self.placement, partition)

    def partitions_of(self, operators: Sequence[int]) -> list[Partition]:
        """Return the partitions that hold some of the operators, each once."""
        return list(
            {self.owner[o].id: self.owner[o] for o in operators if o in self.owner}.values()
        )

    def share_of(self, us: float | None) -> float | None:
        """Return a cost as a share of that of the dearest partition, 0…1; None: not known."""
        return min(1.0, us / max(self.costs_us)) if us is not None and any(self.costs_us) else None

    def colour(self, mode: Mode, style: BoxStyle, operators: Sequence[int]) -> BoxStyle:
        """Colour a box by what is known of its operators."""
        ways = {
            "toolchain": self._by_toolchain,
            "cost": self._by_cost,
            "device": self._by_device,
            "changes": self._by_change,
            "precision": self._by_precision,
        }
        look, label, more = ways[mode](operators)
        return replace(style, **vars(look), **more, entry=label)

    def _by_toolchain(self, operators: Sequence[int]) -> Coloured:
        counts = Counter(
            self.owner[o].toolchain if o in self.owner else "" for o in operators
        ).most_common()
        name = counts[0][0]
        mixed: tuple[tuple[str, float], ...] = ()
        if len(counts) > 1:
            mixed = tuple((toolchain_look(n).colour, c / len(operators)) for n, c in counts)
        look = toolchain_look(name) if name else Look()
        return look, name, {"mixed": mixed}

    def _by_change(self, operators: Sequence[int]) -> Coloured:
        changes = self.changes
        if changes is None:
            return Look(tag="?"), "not compared: choose a run in “Against”", {}
        kinds = {changes.get(o, "same") for o in operators}
        kind = next((kind for kind in CHANGES if kind in kinds), "same")
        return CHANGES[kind], kind, {}

    def _by_precision(self, operators: Sequence[int]) -> Coloured:
        """Colours a box by whether its products are rounded, with the error that this makes."""
        roundings = self.roundings or {}
        told = [roundings[o] for o in operators if o in roundings]
        if not told:
            return Look(tag="?"), "not placed", {}
        state = min((rounding.state for rounding in told), key=[*ROUNDINGS].index)
        look, label, note = ROUNDINGS[state]
        errors = [r.error for r in told if r.state == state and r.error is not None]
        error = sum(one**2 for one in errors) ** 0.5  # errors of products add so
        value = f"{significant(100 * error)} %" if errors else ""
        return look, label, {"value": value, "note": note.format(error=value) if errors else ""}

    def _by_cost(self, operators: Sequence[int]) -> Coloured:
        if not self.partitions_of(operators):
            return Look(tag="?"), "not placed", {}
        timed = {self.timed[o].id: self.timed[o] for o in operators if o in self.timed}
        costs = [part.estimated_us for part in timed.values() if part.estimated_us is not None]
        total_us = sum(self.costs_us)
        if not costs or not total_us:
            return Look(tag="?"), NOT_TIMED, {}
        share = min(1.0, sum(costs) / total_us)
        step = next(at for at, (least, _) in enumerate(_COST_STEPS) if share >= least)
        height = 1 - step / (len(_COST_STEPS) - 1)
        look = Look(sequential(1 - height if self.dark else height))
        return look, _COST_STEPS[step][1], {"filled": True}

    def _by_device(self, operators: Sequence[int]) -> Coloured:
        every = sorted({p.device for p in self.partitions})
        name, *others = sorted({p.device for p in self.partitions_of(operators)}) or [""]
        if not name:
            return Look(tag="?"), "not placed", {}
        colour = _DEVICE_COLOURS[every.index(name) % len(_DEVICE_COLOURS)]
        return Look(colour, name[:2].upper()), f"{name} and others" if others else name, {}


def style_boxes(
    scene: Scene, mode: Mode, colouring: Colouring
) -> tuple[list[BoxStyle], list[LegendEntry]]:
    """Style all boxes of a scene.

    Args:
        scene: The boxes.
        mode: By what they are coloured.
        colouring: What is known of the placement.

    Returns:
        One style for each box, and the legend that explains them, most frequent first.
    """
    styles: list[BoxStyle] = []
    counts: Counter[str] = Counter()
    for box in scene.display.boxes:
        style = _uncoloured(scene, box, colouring)
        if box.is_work:
            style = colouring.colour(mode, style, box.members)
            counts[style.entry] += scene.graph.count_nodes(box.members)
        styles.append(style)
    if mode == "toolchain":
        legend = _toolchain_legend(scene.graph, colouring)
    else:
        looks = {style.entry: (style.colour, style.tag, style.pattern) for style in styles}
        legend = [
            LegendEntry(*looks[label], label=label, key=label, count=count, detail=str(count))
            for label, count in counts.items()
        ]
    if mode == "cost":
        place = {name: at for at, (_, name) in enumerate(_COST_STEPS)}
        return styles, sorted(legend, key=lambda entry: place.get(entry.label, len(place)))
    return styles, sorted(legend, key=lambda entry: -entry.count)


def _toolchain_legend(graph: OperatorGraph, colouring: Colouring) -> list[LegendEntry]:
    """Return one entry for each toolchain: its nodes, the time they take, and its share."""
    owner, firsts = colouring.owner, (node[0] for node in graph.nodes)
    counts = Counter(owner[o].toolchain if o in owner else "" for o in firsts)
    times: dict[str, list[float | None]] = {}
    for partition in colouring.partitions:
        times.setdefault(partition.toolchain, []).append(colouring.us_of(partition))
    entries, total_us = [], total(itertools.chain(*times.values()))
    for name, count in counts.items():
        detail, us = str(count), total(times.get(name, ()))
        if us is not None and total_us:
            detail = f"{counted(count, 'node')} · {time_text(us)} · {100 * us / total_us:.0f} %"
        look, label = vars(toolchain_look(name)), toolchain_title(name)
        entries.append(LegendEntry(**look, label=label, key=name, count=count, detail=detail))
    return entries


def _uncoloured(scene: Scene, box: DisplayBox, colouring: Colouring) -> BoxStyle:
    """Return the texts of a box, and its share of the latency."""
    if not box.is_work:
        detail: str = box.kind
        if box.kind == "input":
            number = box.members[0] - scene.graph.count
            detail = shape_text(scene.graph.inputs[number].type)
        return BoxStyle(title=box.label, detail=detail, kind=box.kind)
    partitions = colouring.partitions_of(box.members)
    if box.kind == "group":
        style = _group(scene, box, partitions, colouring)
    else:
        style = _node(scene, box, colouring)
    return replace(style, dashed=bool(partitions) and colouring.estimated)


def _node(scene: Scene, box: DisplayBox, colouring: Colouring) -> BoxStyle:
    """Return the texts of an ONNX node, or of an operator that it was lowered to."""
    node = scene.graph.calls[box.members[-1]]
    is_node = box.kind == "node"
    value, share, note = "", None, ""
    timed = colouring.timed.get(box.members[0])
    # A layer's time stands at the first of its nodes, and is that of all of them.
    if timed is not None and timed.nodes[0] in box.members:
        value, share = time_text(timed.estimated_us), colouring.share_of(timed.estimated_us)
        more = scene.graph.count_nodes(timed.nodes) - 1
        note = f"This is the time of a layer with {counted(more, 'more node')}." if more else ""
    return BoxStyle(
        title=scene.graph.titles[box.members[0]] if is_node else onnx_type(node.op),
        name=short_name(node.onnx_nodes[0]) if node.onnx_nodes else "",
        detail=node_shapes(node),
        value=value,
        share=share,
        note=note,
    )


def _group(
    scene: Scene, box: DisplayBox, partitions: list[Partition], colouring: Colouring
) -> BoxStyle:
    """Return the texts of a group, with its time where every partition in it lies in it wholly."""
    members = set(box.members)
    inside = (colouring.us_of(p) if members.issuperset(p.nodes) else None for p in partitions)
    us = total(inside)
    group = scene.groups[box.group or ""]
    title, name = box.label, scene.groups[group.parent].label if group.parent else ""
    if group.kind == "partition":
        title = scene.graph.label(box.members)
        name = next((short_name(each) for each in scene.graph.onnx_names(box.members)), "")
    return BoxStyle(
        title=title,
        name=name,
        detail=counted(scene.graph.count_nodes(box.members), "node"),
        value=time_text(us) if us is not None else "",
        kind="group",
        share=colouring.share_of(us),
    )


def operator_roundings(
    graph: OperatorGraph,
    about: Accuracy | None,
    placement: Placement,
) -> dict[int, OperatorRounding]:
    """Return what reduced precision does to each operator.

    Args:
        graph: The operators.
        about: What the run has found out of single products.
        placement: Says what each partition rounds.
    """
    products: Mapping[int, RoundedProduct] = {}
    if about is not None:
        products = {int(product.operator): product for product in about.products}
    ranked_for = about.ranked_for if about is not None else ""
    rounded: set[int] = set()
    for part in placement.partitions:
        if part.precision != FLOAT32:
            left = places_of(part.config.get(FULL, ""))
            for number, node in enumerate(sorted(part.nodes)):
                # The toolchain that the ranks are for leaves products without one in float32.
                gains = node not in products or products[node].rank is not None
                if number not in left and (gains or part.toolchain != ranked_for):
                    rounded.add(node)
    roundings = {}
    for number, call in enumerate(graph.calls):
        product = products.get(number)
        state: RoundingState = "no product"
        if call.op in PRODUCTS:
            without = product is not None and product.rank is None
            state = "rounded" if number in rounded else "without gain" if without else "full"
        roundings[number] = OperatorRounding(state, None if product is None else product.error)
    return roundings
