"""Shows the pins, what became of each, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout

from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.support.text import counted
from collage_engine.wording.amounts import signed_time
from collage_engine.wording.figures import latency_text
from collage_gui.document.document import Document
from collage_gui.document.pin_prices import price_of_pin, unmeasured_of_pin
from collage_gui.document.pin_set import MARKS, pin_demand
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme
from collage_gui.widgets import Panel, action_button, lay_out, push_button, text_label

Row = tuple[int, Pin, PinVerdict | None]
"""A pin with its place among the document's, and what became of it."""
ABOUT_PRICE = "The cost with this pin less the cost without it, with all other pins"


class PinsPanel(Panel):
    """The panel that lists the pins with their verdicts and prices."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme, "pinsPanel")
        self.model = RowsModel(
            [
                Column("Pin", lambda r: MARKS[r[1].kind], tip=lambda r: r[1].text),
                Column(
                    "Demand",
                    lambda r: pin_demand(r[1]),
                    tip=lambda r: pin_demand(r[1]),
                    toolchain=lambda r: r[1].toolchain,
                    width=165,
                ),
                Column("Verdict", self._verdict, tip=self._why, width=150),
                Column("Nodes", self._nodes, tip=self._names_tip, width=70, stretches=True),
            ]
        )
        self.table = Table(self.model, "pinsTable", "Pins", theme)
        self.table.select_nodes(lambda row: row[1].nodes, document.selection.select)
        self.empty = text_label(
            "There are no pins. Select nodes and press P to demand a toolchain for them, or "
            "Shift+P to forbid one. A search then says what each pin costs, or why it is "
            "infeasible.",
            "quiet",
        )
        self.empty.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.summary = text_label()
        self.free = push_button("Unpin", "freePin", self.free_chosen)
        free_all = action_button(actions["free_all"], name="freeAll")
        buttons = lay_out(QHBoxLayout(), self.free, free_all, None)
        parts = (self.summary, self.empty, (self.table, 1), buttons)
        lay_out(QVBoxLayout(self), *parts, edge=1)
        document.pins.changed.connect(self.refresh)
        document.placement.changed.connect(self.refresh)
        self.refresh()

    def _nodes(self, row: Row) -> str:
        return self.document.operators.label_with_name(row[1].nodes)

    def _names_tip(self, row: Row) -> str:
        return "\n".join(self.document.operators.onnx_names(row[1].nodes)[:20])

    def _verdict(self, row: Row) -> str:
        verdict = row[2]
        if verdict is None or verdict.state == "pending":
            return "… not measured" if self.document.pins.wait_for_costs else "… pending"
        if verdict.state == "infeasible":
            return "✕ infeasible"
        if verdict.price_us is None:
            return "✓ honoured"
        return f"✓ {price_of_pin(self.document, row[0])}"

    def _why(self, row: Row) -> str:
        at, pin, verdict = row
        if verdict is None:
            return "Search again or run to see what it costs."
        text = verdict.reason or ""
        left = unmeasured_of_pin(self.document, pin) if verdict.price_us is not None else 0
        if left:
            are = "candidate is" if left == 1 else "candidates are"
            text = f"{text} {left} {are} unmeasured: the price may be lower.".strip()
        if verdict.contradicts and len(verdict.contradicts) > 1:
            others = ", ".join(str(n + 1) for n in verdict.contradicts if n != at)
            text += f" (contradicts pin {others})"
        return text or f"{ABOUT_PRICE}."

    def refresh(self) -> None:
        """Show the pins as they are now."""
        document = self.document
        pins = enumerate(document.pins.current)
        self.model.set_rows([(at, pin, document.pins.verdict_of(at)) for at, pin in pins])
        has = bool(document.pins.current)
        self.table.setVisible(has)
        self.summary.setVisible(has)
        self.empty.setVisible(not has)
        verdicts = enumerate(document.pins.verdicts)
        priced = [at for at, verdict in verdicts if verdict.price_us is not None]
        text = counted(len(document.pins.current), "pin")
        shown = document.placement.shown
        if document.stale:
            why = "the placement was made without them: press Space"
            if document.pins.infeasible is not None:
                why = "no placement satisfies them"
            if document.pins.wait_for_costs:
                why = "not measured yet"
            text += f" · {why}"
        elif shown is not None and priced:
            them = "it" if len(document.pins.current) == 1 else "them"
            text += f" · {latency_text(shown.placement)} with {them}"
            if len(priced) == 1:
                text += f" ({price_of_pin(document, priced[0])})"
            elif document.pins.together_us is not None:
                text += f" ({signed_time(document.pins.together_us)} together)"
        self.summary.setText(text)
        self.free.setEnabled(has)

    def free_chosen(self) -> None:
        """Frees the chosen pins; without a choice, those on the selected nodes."""
        chosen = {at for at, _, _ in self.table.chosen()}
        document = self.document
        if not chosen:
            chosen = {
                at
                for at, pin in enumerate(document.pins.current)
                if not document.selection.operators.isdisjoint(pin.nodes)
            }
        left = [pin for at, pin in enumerate(document.pins.current) if at not in chosen]
        document.pins.edit(left, "Unpin")
