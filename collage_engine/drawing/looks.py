"""How every box of a scene looks in each colour mode: data for the painter and for SVG.

Nothing is invented: a box whose value is not known is grey and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from collage_engine.drawing import words
from collage_engine.drawing.palette import (
    Pattern,
    cividis,
    diverging,
    text_on,
    toolchain_look,
    toolchain_title,
)
from collage_engine.drawing.scene import Scene
from collage_engine.drawing.words import counted
from collage_engine.records.cost import Cost
from collage_engine.records.placement import Partition, Placement

Mode = Literal["toolchain", "cost", "gain", "in-place", "state", "device", "changes"]

MODES: dict[Mode, str] = {
    "toolchain": "Toolchain",
    "cost": "Cost",
    "gain": "Gain over baseline",
    "in-place": "In place against estimated",
    "state": "Measured or estimated",
    "device": "Device",
    "changes": "Changes between runs",
}

UNKNOWN_COLOUR = "#b8bcc2"

STATES: dict[str, tuple[str, str, Pattern]] = {
    "measured": ("#009e73", "MS", "solid"),
    "stored": ("#56b4e9", "ST", "level"),
    "invalid": ("#d55e00", "IN", "cross"),
    "unknown": (UNKNOWN_COLOUR, "??", "dots"),
}
"""State of a partition's cost: colour, tag, pattern."""

CHANGES: dict[str, tuple[str, str, Pattern]] = {
    "gained": ("#0072b2", "▼", "falling"),
    "lost": ("#d55e00", "▲", "rising"),
    "moved": ("#cc79a7", "↔", "grid"),
    "regrouped": ("#f0e442", "▣", "level"),
    "same": (UNKNOWN_COLOUR, "=", "solid"),
}
_BANDS = {
    "faster": diverging(-0.6),
    "faster in place": diverging(-0.6),
    "slower": diverging(0.6),
    "slower in place": diverging(0.6),
    "same": diverging(0.0),
    "as estimated": diverging(0.0),
}
"""Legend colours of what is a scale in the picture."""
_DEVICES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")


@dataclass(frozen=True)
class BoxLook:
    """One box. ``colour`` fills its strip, and the whole box where it is drawn small."""

    title: str
    detail: str = ""
    value: str = ""
    """Right-aligned number, e.g. the partition's cost."""
    colour: str = UNKNOWN_COLOUR
    text: str = "#000000"
    tag: str = ""
    pattern: Pattern = "solid"
    filled: bool = False
    """The whole box wears the colour, not only its strip (scales)."""
    dashed: bool = False
    """Estimated, not confirmed."""
    kind: str = "operator"
    band: str = ""
    """Key of the legend's entry that it belongs to."""
    share: float | None = None
    """A group's share of the model's estimated latency, 0…1."""
    mixed: tuple[tuple[str, float], ...] = ()
    """A group's toolchains and their shares of operators, when there are several."""
    tied: str = ""
    """Colour of the toolchain that is tied with the chosen one; drawn hatched in both."""
    note: str = ""
    """A sentence more about the box, e.g. what it is tied with."""


@dataclass(frozen=True)
class LegendEntry:
    label: str
    colour: str
    text: str
    tag: str
    pattern: Pattern
    count: int
    key: str = ""


@dataclass(frozen=True)
class LookData:
    """What colouring may use; all but the mode may be missing."""

    placement: Placement | None = None
    estimated: bool = True
    costs: Mapping[str, Cost] | None = None
    devices: Mapping[str, str] | None = None
    """Candidate id → device."""
    reference_us: Mapping[str, float] | None = None
    """Partition id → time of the same operators in the chosen baseline, where comparable."""
    changes: Mapping[int, str] | None = None
    """Operator → gained, lost, moved, regrouped or same."""
    ties: Mapping[str, str] | None = None
    """Partition id → another toolchain whose cost on the same operators is as good."""


def partition_by_operator(placement: Placement | None) -> dict[int, Partition]:
    if placement is None:
        return {}
    return {node: p for p in placement.partitions for node in p.nodes}


def box_looks(shown: Scene, mode: Mode, data: LookData) -> tuple[list[BoxLook], list[LegendEntry]]:
    """The looks of all boxes, and the legend that explains them, most frequent first."""
    owner = partition_by_operator(data.placement)
    # Without a proven positive total there is no honest share; then none is shown.
    total = sum(p.estimated_us or 0.0 for p in data.placement.partitions) if data.placement else 0.0
    largest = (
        max((p.estimated_us or 0.0 for p in data.placement.partitions), default=0.0)
        if data.placement
        else 0.0
    )
    device_names = sorted(set((data.devices or {}).values()))
    legend: dict[str, LegendEntry] = {}

    def paint(look: BoxLook, operators: tuple[int, ...]) -> tuple[BoxLook, str]:
        partitions = {owner[o].id: owner[o] for o in operators if o in owner}
        found = list(partitions.values())
        if mode == "toolchain":
            look, label = _by_toolchain(look, operators, owner)
            return _with_tie(look, found, data.ties or {}), label
        if mode == "changes":
            if data.changes is None:
                return replace(look, tag="?"), "no comparison chosen"
            kinds = {data.changes.get(o, "same") for o in operators}
            kind = next((k for k in CHANGES if k in kinds), "same")
            colour, tag, pattern = CHANGES[kind]
            look = replace(look, colour=colour, text=text_on(colour), tag=tag, pattern=pattern)
            return look, kind
        if not found:
            return replace(look, tag="?"), "not placed"
        if mode == "cost":
            known = [p.estimated_us for p in found if p.estimated_us is not None]
            if not known or not largest:
                return replace(look, tag="?"), "unknown"
            colour = cividis(max(known) / largest)
            band = min(4, int(max(known) / largest * 5))
            label = f"{band * 20}–{band * 20 + 20} % of {words.time_text(largest)}"
            return replace(look, colour=colour, text=text_on(colour), filled=True), label
        if mode == "gain":
            pairs = [
                (p.estimated_us, data.reference_us[p.id])
                for p in found
                if data.reference_us and p.id in data.reference_us and p.estimated_us is not None
            ]
            if not pairs:
                return replace(look, tag="?"), "not comparable"
            now, before = sum(a for a, _ in pairs), sum(b for _, b in pairs)
            share = (now - before) / max(now, before) if max(now, before) else 0.0
            colour = diverging(share)
            text = words.gain_text(now, before)
            label = "faster" if share < -0.02 else "slower" if share > 0.02 else "same"
            look = replace(look, colour=colour, text=text_on(colour), filled=True, value=text)
            return look, label
        if mode == "in-place":
            timed = [
                (p.in_place_us, p.estimated_us)
                for p in found
                if p.in_place_us is not None and p.estimated_us
            ]
            if not timed:
                return replace(look, tag="?"), "not profiled"
            now, before = sum(a for a, _ in timed), sum(b for _, b in timed)
            share = max(-1.0, min(1.0, (now - before) / before * 2))
            colour = diverging(share)
            label = (
                "slower in place"
                if share > 0.1
                else "faster in place"
                if share < -0.1
                else "as estimated"
            )
            return replace(
                look,
                colour=colour,
                text=text_on(colour),
                filled=True,
                value=words.gain_text(now, before),
            ), label
        if mode == "state":
            states = {_state((data.costs or {}).get(p.candidate)) for p in found}
            worst = next(s for s in ("invalid", "unknown", "stored", "measured") if s in states)
            colour, tag, pattern = STATES[worst]
            return replace(
                look, colour=colour, text=text_on(colour), tag=tag, pattern=pattern
            ), worst
        names = {(data.devices or {}).get(p.candidate, "cpu") for p in found}
        name = sorted(names)[0]
        at = device_names.index(name) if name in device_names else 0
        colour = _DEVICES[at % len(_DEVICES)]
        label = name if len(names) == 1 else f"{name} and others"
        return replace(look, colour=colour, text=text_on(colour), tag=name[:2].upper()), label

    looks: list[BoxLook] = []
    for box in shown.display.boxes:
        look = _plain(shown, box, owner, total, data.estimated)
        if box.kind in ("operator", "group"):
            look, label = paint(look, box.members)
            look = replace(look, band=label)
            old = legend.get(label)
            count = (old.count if old else 0) + len(box.members)
            colour = _BANDS.get(label, look.colour)
            if mode == "cost" and "%" in label:
                colour = cividis((int(label.split("–")[0]) + 10) / 100)
            legend[label] = LegendEntry(
                label,
                colour,
                text_on(colour) if colour != look.colour else look.text,
                look.tag,
                look.pattern,
                count,
                label,
            )
        looks.append(look)
    if mode == "changes":
        legend = {
            key: replace(entry, colour=CHANGES[key][0]) if key in CHANGES else entry
            for key, entry in legend.items()
        }
    if mode == "toolchain":
        legend = _toolchain_legend(shown.graph.count, owner)
    return looks, sorted(legend.values(), key=lambda e: -e.count)


def _plain(shown: Scene, box, owner, total: float, estimated: bool) -> BoxLook:
    if box.kind in ("input", "output"):
        item = box.members[0] - shown.graph.count
        shape = ""
        if box.kind == "input":
            shape = words.node_shapes(shown.graph.inputs[item])
        return BoxLook(title=box.label, detail=shape or box.kind, kind=box.kind)
    partitions = {owner[o].id: owner[o] for o in box.members if o in owner}
    dashed = bool(partitions) and estimated
    if box.kind == "operator":
        node = shown.graph.calls[box.members[0]]
        value = ""
        if len(partitions) == 1:
            only = next(iter(partitions.values()))
            # A partition's time is written once, at its first operator.
            if only.nodes and only.nodes[0] == box.members[0]:
                value = words.time_text(only.estimated_us)
        return BoxLook(
            title=words.short_operator(node.op),
            detail=words.node_shapes(node),
            value=value,
            dashed=dashed,
        )
    inside = set(box.members)
    whole = [p for p in partitions.values() if inside.issuperset(p.nodes)]
    known = [p.estimated_us for p in whole if p.estimated_us is not None]
    share = sum(known) / total if total and known and len(known) == len(partitions) else None
    value = words.time_text(sum(known)) if share is not None else ""
    group = shown.groups[box.group]
    title = box.label
    if group.kind == "partition":
        names = [words.short_operator(shown.graph.calls[o].op) for o in box.members[:3]]
        title = "+".join(names) + ("…" if len(box.members) > 3 else "")
    return BoxLook(
        title=title,
        detail=counted(len(box.members), "operator"),
        value=value,
        dashed=dashed,
        kind="group",
        share=share,
    )


def _by_toolchain(look: BoxLook, operators, owner) -> tuple[BoxLook, str]:
    count: dict[str, int] = {}
    for operator in operators:
        name = owner[operator].toolchain if operator in owner else ""
        count[name] = count.get(name, 0) + 1
    ordered = sorted(count.items(), key=lambda pair: -pair[1])
    name = ordered[0][0]
    style = toolchain_look(name)
    mixed: tuple[tuple[str, float], ...] = ()
    if len(ordered) > 1:
        mixed = tuple((toolchain_look(n).colour, c / len(operators)) for n, c in ordered)
    return replace(
        look,
        colour=style.colour,
        text=style.text,
        tag=style.tag if name else "",
        pattern=style.pattern,
        mixed=mixed,
    ), name


def _with_tie(look: BoxLook, found: list[Partition], ties: Mapping[str, str]) -> BoxLook:
    """The look of a box that lies in one partition only, which may be tied."""
    other = ties.get(found[0].id) if len(found) == 1 else None
    if other is None:
        return look
    return replace(
        look,
        tied=toolchain_look(other).colour,
        note=f"{toolchain_title(found[0].toolchain)} is chosen; {toolchain_title(other)} is tied "
        "with it: it would lose less than measurements differ",
    )


def _toolchain_legend(count: int, owner) -> dict[str, LegendEntry]:
    found: dict[str, int] = {}
    for operator in range(count):
        name = owner[operator].toolchain if operator in owner else ""
        found[name] = found.get(name, 0) + 1
    entries = {}
    for name, number in found.items():
        style = toolchain_look(name)
        entries[name] = LegendEntry(
            style.title, style.colour, style.text, style.tag, style.pattern, number, name
        )
    return entries


def _state(cost: Cost | None) -> str:
    if cost is None or cost.state == "unknown":
        return "unknown"
    if cost.state == "invalid":
        return "invalid"
    return "stored" if cost.from_store else "measured"
