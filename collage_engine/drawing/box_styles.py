"""Colours every box of a scene in each colour mode, as data for the painter and for SVG.

Nothing is invented: a box whose value is not known is grey and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from collage_engine.drawing.formatting import (
    counted,
    node_shapes,
    significant,
    time_text,
)
from collage_engine.drawing.groups import DisplayBox
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import (
    Pattern,
    sequential,
    text_on,
    toolchain_look,
)
from collage_engine.drawing.rounding import OperatorRounding, RoundingState
from collage_engine.drawing.scene import Scene
from collage_engine.records.operator_titles import onnx_type, short_name
from collage_engine.records.placement import Partition, Placement

Mode = Literal[
    "toolchain",
    "cost",
    "device",
    "changes",
    "precision",
]

MODES: dict[Mode, str] = {
    "toolchain": "Toolchain",
    "cost": "Cost",
    "device": "Device",
    "changes": "Changes",
    "precision": "Precision",
}
"""The name of each colour mode in a list, which has room for few letters."""

UNKNOWN_COLOUR = "#b8bcc2"

CHANGES: dict[str, tuple[str, str, Pattern]] = {
    "gained": ("#0072b2", "▼", "falling"),
    "lost": ("#d55e00", "▲", "rising"),
    "moved": ("#cc79a7", "↔", "grid"),
    "regrouped": ("#f0e442", "▣", "level"),
    "same": (UNKNOWN_COLOUR, "=", "solid"),
}
"""Colour, tag and pattern of each change of an operator between two runs; the one that matters most
is first."""

ROUNDINGS: dict[RoundingState, tuple[str, str, Pattern]] = {
    "rounded": ("#0072b2", "▾", "falling"),
    "full": ("#e69f00", "32", "rising"),
    "without gain": ("#f0e442", "=", "level"),
    "no product": (UNKNOWN_COLOUR, "", "solid"),
}
"""Colour, tag and pattern of what reduced precision does to an operator; the one that matters most
is first."""

_DEVICE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
_COST_STEPS = (
    (0.3, "over 30 %"),
    (0.1, "10–30 %"),
    (0.03, "3–10 %"),
    (0.01, "1–3 %"),
    (0.0, "under 1 %"),
)
"""Steps of cost in the legend, the dearest first: the least share of the whole latency, and the
step's name. Chosen: steps of about three, since most partitions take a few per cent."""
_ROUNDING_LABELS: dict[str, str] = {
    "rounded": "in reduced precision",
    "full": "product in float32",
    "without gain": "product in float32, rounding it saves nothing",
    "no product": "no product",
}
"""What reduced precision does to an operator, by its state."""
_ROUNDING_NOTES: dict[str, str] = {
    "rounded": "Rounding it alone makes an error of {error}.",
    "full": "Rounding it alone would make an error of {error}.",
    "without gain": "Rounding it alone would make an error of {error}, and save nothing.",
    "no product": "",
}
"""The same as a sentence with the error of the outputs."""


@dataclass(frozen=True)
class BoxStyle:
    """The look of one box. ``colour`` fills its strip, or the whole box where it is small."""

    title: str
    name: str = ""
    """The box's name in the user's file, which tells it from others of the same title."""
    detail: str = ""
    value: str = ""
    """A number at the right edge, e.g. the partition's cost."""
    colour: str = UNKNOWN_COLOUR
    text: str = "#000000"
    tag: str = ""
    pattern: Pattern = "solid"
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


@dataclass(frozen=True)
class LegendEntry:
    """One colour of the picture and what it means."""

    label: str
    colour: str
    text: str
    tag: str
    pattern: Pattern
    count: int
    """Number of operators that have this colour."""
    key: str = ""
    detail: str = ""
    """The number of operators, with their time and share of the latency where these are known."""


@dataclass(frozen=True)
class ColouringData:
    """The data that colouring may use; each part of it may be missing."""

    placement: Placement | None = None
    estimated: bool = True
    dark: bool = False
    """Whether the background is dark: what matters most is then the lightest of a scale."""
    changes: Mapping[int, str] | None = None
    """The change of each operator between two runs, by operator number: a key of ``CHANGES``."""
    roundings: Mapping[int, OperatorRounding] | None = None
    """What reduced precision does to each operator, by operator number."""


def style_boxes(
    scene: Scene, mode: Mode, data: ColouringData
) -> tuple[list[BoxStyle], list[LegendEntry]]:
    """Style all boxes of a scene.

    Args:
        scene: The boxes.
        mode: By what they are coloured.
        data: What is known of the placement.

    Returns:
        One style for each box, and the legend that explains them, most frequent first.
    """
    colouring = _Colouring(data)
    styles: list[BoxStyle] = []
    counts: Counter[str] = Counter()
    samples: dict[str, BoxStyle] = {}
    for box in scene.display.boxes:
        style = _uncoloured(scene, box, colouring)
        if box.is_work:
            style, label = colouring.colour(mode, style, box.members)
            style = replace(style, entry=label)
            counts[label] += scene.graph.count_nodes(box.members)
            samples[label] = style
        styles.append(style)
    if mode == "toolchain":
        legend = _toolchain_legend(scene.graph, colouring)
    else:
        legend = [_legend_entry(label, samples[label], count) for label, count in counts.items()]
    if mode == "cost":
        order = [name for _, name in _COST_STEPS]
        place = {
            e.label: order.index(e.label.split(" of ")[0]) for e in legend if " of " in e.label
        }
        return styles, sorted(legend, key=lambda entry: place.get(entry.label, len(order)))
    return styles, sorted(legend, key=lambda entry: -entry.count)


class _Colouring:
    """The colours of boxes by what is known of one placement."""

    def __init__(self, data: ColouringData) -> None:
        self.data = data
        partitions = data.placement.partitions if data.placement is not None else ()
        self.owner = {node: p for p in partitions for node in p.nodes}
        """Operator → its partition."""
        estimates = [p.estimated_us or 0.0 for p in partitions]
        self.total_us = sum(estimates)
        self.largest_us = max(estimates, default=0.0)
        self._devices = sorted({p.device for p in partitions})

    def partitions_of(self, operators: Sequence[int]) -> list[Partition]:
        """Return the partitions that hold some of the operators, each once."""
        return list(
            {self.owner[o].id: self.owner[o] for o in operators if o in self.owner}.values()
        )

    def colour(self, mode: Mode, style: BoxStyle, operators: Sequence[int]) -> tuple[BoxStyle, str]:
        """Colours a box, and returns the label of its entry in the legend with it."""
        if mode == "toolchain":
            return self._by_toolchain(style, operators)
        if mode == "changes":
            return self._by_change(style, operators)
        if mode == "precision":
            return self._by_precision(style, operators)
        partitions = self.partitions_of(operators)
        if not partitions:
            return replace(style, tag="?"), "not placed"
        by_partitions = self._by_cost if mode == "cost" else self._by_device
        return by_partitions(style, partitions)

    def _by_toolchain(self, style: BoxStyle, operators: Sequence[int]) -> tuple[BoxStyle, str]:
        counts = Counter(
            self.owner[o].toolchain if o in self.owner else "" for o in operators
        ).most_common()
        name = counts[0][0]
        look = toolchain_look(name)
        mixed: tuple[tuple[str, float], ...] = ()
        if len(counts) > 1:
            mixed = tuple((toolchain_look(n).colour, c / len(operators)) for n, c in counts)
        coloured = replace(
            style,
            colour=look.colour,
            text=look.text,
            tag=look.tag if name else "",
            pattern=look.pattern,
            mixed=mixed,
        )
        return coloured, name

    def _by_change(self, style: BoxStyle, operators: Sequence[int]) -> tuple[BoxStyle, str]:
        changes = self.data.changes
        if changes is None:
            return replace(style, tag="?"), "there is no other run to compare with"
        kinds = {changes.get(o, "same") for o in operators}
        kind = next((kind for kind in CHANGES if kind in kinds), "same")
        colour, tag, pattern = CHANGES[kind]
        return _coloured(style, colour, tag=tag, pattern=pattern), kind

    def _by_precision(self, style: BoxStyle, operators: Sequence[int]) -> tuple[BoxStyle, str]:
        """Colours a box by whether its products are rounded, with the error that this makes."""
        roundings = self.data.roundings or {}
        found = [roundings[o] for o in operators if o in roundings]
        if not found:
            return replace(style, tag="?"), "not placed"
        state = next(state for state in ROUNDINGS if any(one.state == state for one in found))
        colour, tag, pattern = ROUNDINGS[state]
        errors = [one.error for one in found if one.state == state and one.error is not None]
        error = sum(one**2 for one in errors) ** 0.5  # errors of products add so
        value = f"{significant(100 * error)} %" if errors else ""
        note = _ROUNDING_NOTES[state].format(error=value) if errors else ""
        style = _coloured(style, colour, tag=tag, pattern=pattern, value=value, note=note)
        return style, _ROUNDING_LABELS[state]

    def _by_cost(self, style: BoxStyle, partitions: list[Partition]) -> tuple[BoxStyle, str]:
        known = [p.estimated_us for p in partitions if p.estimated_us is not None]
        if not known or not self.largest_us:
            return replace(style, tag="?"), "unknown"
        share = max(known) / self.total_us
        step = next(at for at, (least, _) in enumerate(_COST_STEPS) if share >= least)
        height = 1 - step / (len(_COST_STEPS) - 1)
        colour = sequential(1 - height if self.data.dark else height)
        label = f"{_COST_STEPS[step][1]} of {time_text(self.total_us)}"
        return _coloured(style, colour, filled=True), label

    def _by_device(self, style: BoxStyle, partitions: list[Partition]) -> tuple[BoxStyle, str]:
        names = sorted({p.device for p in partitions})
        name = names[0]
        colour = _DEVICE_COLOURS[self._devices.index(name) % len(_DEVICE_COLOURS)]
        label = name if len(names) == 1 else f"{name} and others"
        return _coloured(style, colour, tag=name[:2].upper()), label


def _coloured(style: BoxStyle, colour: str, **fields: object) -> BoxStyle:
    return replace(style, colour=colour, text=text_on(colour), **fields)  # type: ignore[arg-type]


def _legend_entry(label: str, sample: BoxStyle, count: int) -> LegendEntry:
    """Return the entry of a label, coloured like one of its boxes."""
    return LegendEntry(
        label, sample.colour, sample.text, sample.tag, sample.pattern, count, label, str(count)
    )


def _toolchain_legend(graph: OperatorGraph, colouring: _Colouring) -> list[LegendEntry]:
    """Return one entry for each toolchain: its nodes, the time they take, and its share."""
    owner, firsts = colouring.owner, (node[0] for node in graph.nodes)
    counts = Counter(owner[o].toolchain if o in owner else "" for o in firsts)
    placement = colouring.data.placement
    times: dict[str, float | None] = {}
    for partition in placement.partitions if placement is not None else ():
        before, us = times.get(partition.toolchain, 0.0), partition.estimated_us
        times[partition.toolchain] = None if before is None or us is None else before + us
    entries = []
    for name, count in counts.items():
        look, us = toolchain_look(name), times.get(name)
        detail = str(count)
        if us is not None and None not in times.values() and colouring.total_us:
            share = us / colouring.total_us
            detail = f"{counted(count, 'node')} · {time_text(us)} · {100 * share:.0f} %"
        entries.append(
            LegendEntry(
                look.title, look.colour, look.text, look.tag, look.pattern, count, name, detail
            )
        )
    return entries


def _uncoloured(scene: Scene, box: DisplayBox, colouring: _Colouring) -> BoxStyle:
    """Return the texts of a box, and its share of the latency."""
    if box.kind in ("input", "output"):
        detail: str = box.kind
        if box.kind == "input":
            number = box.members[0] - scene.graph.count
            detail = node_shapes(scene.graph.inputs[number]) or box.kind
        return BoxStyle(title=box.label, detail=detail, kind=box.kind)
    partitions = colouring.partitions_of(box.members)
    dashed = bool(partitions) and colouring.data.estimated
    if box.kind in ("node", "operator"):
        return _node(scene, box, partitions, dashed, colouring.largest_us)
    return _group(scene, box, partitions, dashed, colouring)


def _node(
    scene: Scene, box: DisplayBox, partitions: list[Partition], dashed: bool, largest_us: float
) -> BoxStyle:
    """Return the texts of an ONNX node, or of an operator that it was lowered to."""
    node = scene.graph.calls[box.members[-1]]
    is_node = box.kind == "node"
    value, share = "", None
    # A partition's time is written once, at its first operator.
    if partitions and partitions[0].nodes and partitions[0].nodes[0] in box.members:
        us = partitions[0].estimated_us
        value = time_text(us)
        share = us / largest_us if us is not None and largest_us else None
    return BoxStyle(
        title=scene.graph.title(box.members[0]) if is_node else onnx_type(node.op),
        name=short_name(node.onnx_nodes[0]) if node.onnx_nodes else "",
        detail=node_shapes(node),
        value=value,
        dashed=dashed,
        share=share,
    )


def _group(
    scene: Scene,
    box: DisplayBox,
    partitions: list[Partition],
    dashed: bool,
    colouring: _Colouring,
) -> BoxStyle:
    members = set(box.members)
    known = [
        p.estimated_us
        for p in partitions
        if p.estimated_us is not None and members.issuperset(p.nodes)
    ]
    # A time is honest only where every partition in the group lies in it wholly and is known.
    honest = bool(known) and len(known) == len(partitions)
    largest_us = colouring.largest_us
    group = scene.groups[box.group or ""]
    title, name = box.label, scene.groups[group.parent].label if group.parent else ""
    if group.kind == "partition":
        title = scene.graph.label(box.members)
        name = next((short_name(each) for each in scene.graph.onnx_names(box.members)), "")
    return BoxStyle(
        title=title,
        name=name,
        detail=counted(scene.graph.count_nodes(box.members), "node"),
        value=time_text(sum(known)) if honest else "",
        dashed=dashed,
        kind="group",
        share=min(1.0, sum(known) / largest_us) if honest and largest_us else None,
    )
