"""Shows all about the selected node: why it runs where it does, what is inside it, its code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, QUrl
from PySide6.QtGui import QAction, QShowEvent
from PySide6.QtWidgets import (
    QComboBox,
    QPlainTextEdit,
    QTabWidget,
    QTextBrowser,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
)

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import toolchain_look
from collage_engine.records.answers import ExplainAnswer, NoCandidate
from collage_engine.records.format import border_words
from collage_engine.records.placement import Partition
from collage_engine.support.text import counted
from collage_engine.wording.amounts import (
    bytes_text,
    node_shapes,
    short_operator,
    time_text,
)
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.candidates import CandidatesPanel, partition_text
from collage_gui.panels.tables import allow_copying
from collage_gui.theme import Theme
from collage_gui.widgets import Panel, lay_out, named, plain_tip, split_up, text_label


class AttributesPage(Panel):
    """A tree of what is known of the selected node."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__(document, theme, "attributesPage")
        self.note = text_label("Select a node to see its attributes and weights.", "quiet")
        self.note.setContentsMargins(10, 8, 10, 4)
        self.tree = named(QTreeWidget(), "attributesTree", "Attributes, types and weights")
        self.tree.setHeaderLabels(["Attribute", "Value"])
        self.tree.itemActivated.connect(self._activated)
        allow_copying(self.tree)
        lay_out(QVBoxLayout(self), self.note, (self.tree, 1), edge=0, gap=0)
        document.selection.changed.connect(self.refresh)
        document.questions.inside_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show what is inside the selected node, as far as the engine has answered."""
        self.tree.clear()
        document = self.document
        graph = document.operators
        primary = document.selection.primary
        self.note.setVisible(primary is None)
        if primary is None:
            return
        node = graph.calls[primary]
        self._add(
            "Operator",
            ("name", graph.names[primary]),
            ("type", graph.titles[primary]),
            ("internally", node.op),
            ("number", primary),
            ("kind", node.kind),
            ("ONNX nodes", ", ".join(node.onnx_nodes)),
            ("ONNX value", ", ".join(v.onnx_value for v in node.results if v.onnx_value)),
        )
        outputs = [
            f"output {i}" if len(node.types) > 1 else "output" for i in range(len(node.types))
        ]
        types = [f"{t}  ({bytes_text(t.bytes)})" for t in node.types]
        self._add("Types", *zip(outputs, types, strict=True))
        self._add("Attributes", *sorted(node.attributes.items()))
        for title, near in (
            ("Producers", graph.producers(primary)),
            ("Consumers", graph.consumers(primary)),
        ):
            self._add(title, *((graph.titles[n], graph.names[n], n) for n in near))
        if document.questions.inside is not None:
            for title, rows in document.questions.inside.sections:
                self._add(title, *rows)
        self.tree.resizeColumnToContents(0)

    def _add(self, title: str, *rows: tuple[Any, ...]) -> None:
        """Show rows below a title; each is a name, a value, and the operator that it leads to."""
        filled = [row for row in rows if row[1] not in ("", None)]
        if not filled:
            return
        top = QTreeWidgetItem(self.tree, [title, ""])
        for name, value, *operator in filled:
            item = QTreeWidgetItem(top, [str(name), str(value)])
            item.setToolTip(1, plain_tip(str(value)))
            item.setData(0, Qt.ItemDataRole.UserRole, operator[0] if operator else None)
        top.setExpanded(True)

    def _activated(self, item: QTreeWidgetItem) -> None:
        operator = item.data(0, Qt.ItemDataRole.UserRole)
        if operator is not None:
            self.document.selection.select([operator], operator)


class NodePanel(Panel):
    """The reasons above; below them the candidates, the attributes and the code.

    The engine is asked for what is inside only where it can be seen: code may be several hundred
    kilobytes.
    """

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme, "nodePanel")
        self._asked: tuple[str | None, int | None] | None = None
        self.why = WhyPanel(document, theme)
        self.candidates = CandidatesPanel(document, theme, actions)
        self.attributes = AttributesPage(document, theme)
        self.code = CodePage(document, theme)
        self.tabs = named(QTabWidget(), "nodeTabs")
        self.tabs.setUsesScrollButtons(True)
        self.tabs.addTab(self.candidates, "Candidates")
        self.tabs.addTab(self.attributes, "Attributes")
        self.tabs.addTab(self.code, "Code")
        self.tabs.currentChanged.connect(lambda _: self._ask())
        split = split_up(Qt.Orientation.Vertical, self.why, self.tabs, shares=(1, 1))
        lay_out(QVBoxLayout(self), split, edge=0)
        document.selection.changed.connect(self._ask)
        document.selection.candidate_changed.connect(self._ask)
        document.placement.changed.connect(self._ask)

    def showEvent(self, event: QShowEvent) -> None:
        """Asks the engine, now that the answer can be seen."""
        super().showEvent(event)
        self._ask()

    def _ask(self) -> None:
        document = self.document
        candidate, primary = document.selection.candidate, document.selection.primary
        if candidate is None:
            partition = document.placement.partition_of(primary)
            candidate = partition.candidate if partition else None
        wanted = candidate, primary
        seen = self.attributes.isVisible() or self.code.isVisible()
        if not seen or wanted in (self._asked, (None, None)):
            return
        self._asked = wanted
        if document.handle:
            document.questions.ask_inside(*wanted)


UNITS = re.compile(r"(?<=\d) (?=(?:µs|ms|s|%|B|KiB|MiB|GiB)\b|%)")
"""A pattern of the spaces between numbers and units, at which lines do not break."""


class WhyPanel(Panel):
    """Shows only what the engine says; nothing is invented here."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__(document, theme, "whyPanel")
        self.text = named(QTextBrowser(openLinks=False), "whyText", "Why")
        self.text.setFrameShape(QTextBrowser.Shape.NoFrame)
        # All text wraps; Qt makes a table a pixel wider than its page.
        self.text.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.text.anchorClicked.connect(self._clicked)
        lay_out(QVBoxLayout(self), self.text, edge=0.5)
        document.selection.changed.connect(self.refresh)
        document.questions.explanation_changed.connect(self.refresh)
        document.placement.changed.connect(self.refresh)
        theme.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Explains the primary operator."""
        graph, primary = self.document.operators, self.document.selection.primary
        if primary is None:
            body = [f'<p class="q">{"Select a node to learn why it runs where it does."}</p>']
        else:
            body = [
                *self._heading(graph, primary),
                *self._partition(graph, primary),
                *self._explanation(primary),
            ]
        self.text.setHtml(self._style_sheet() + UNITS.sub("&nbsp;", "".join(body)))

    def _style_sheet(self) -> str:
        c = self.theme.colours
        return (
            f"<style>h3 {{ font-size: {self.theme.scaled(14)}px; font-weight: 600; margin: 10px 0 "
            f"3px 0; }}p {{ margin: 3px 0; }} .q {{ color: {c.quiet}; }} a {{ color: {c.focus}; "
            "}</style>"
        )

    def _heading(self, graph: OperatorGraph, primary: int) -> list[str]:
        node = graph.calls[primary]
        others = graph.count_nodes(self.document.selection.operators) - 1
        title = f"{graph.titles[primary]} · {graph.names[primary]}"
        if others > 0:
            title = f"{title} and {others} more"
        inside = graph.titles.lowered(primary)
        about = f"{node_shapes(node)} · internally {inside}"
        return [f"<h3>{escape(title)}</h3><p class='q'>{escape(about)}</p>"]

    def _partition(self, graph: OperatorGraph, primary: int) -> list[str]:
        """Return the partition that holds the operator, its toolchain and its cost."""
        shown = self.document.placement.shown
        partition = self.document.placement.partition_of(primary)
        if shown is None or partition is None:
            return []
        look = toolchain_look(partition.toolchain)
        cost = self.document.costs.of(partition.candidate)
        times = partition_text(shown.placement, partition, cost)
        name = escape(partition.id, quote=True)
        # Set in the weight of headings: the font has no bolder one.
        title = escape(toolchain_title(partition.toolchain))
        sentence = (
            f"<span style='font-weight:600'>{title}</span>, partition <a "
            f"href='partition:{name}'>{name}</a> of "
            f"{counted(graph.count_nodes(partition.nodes), 'node')}"
        )
        sentence = ", ".join(filter(None, [sentence, escape(times)]))
        return [
            f"<p><span style='background:{look.colour};color:{look.text}'>"
            f"&nbsp;{escape(look.tag)}&nbsp;</span> {sentence}{self._formats(partition)}</p>"
        ]

    def _explanation(self, primary: int) -> list[str]:
        """Return what the engine says about the choice, as HTML."""
        document = self.document
        explanation = document.questions.explanation
        if explanation is not None:
            sentences = [*explanation.words, *map(_refusal, explanation.not_offered)]
            return [*(f"<p>{escape(text)}</p>" for text in sentences), *self._links(explanation)]
        if not document.costs.candidates:
            text = "Run first: nothing is measured yet."
        elif document.placement.partition_of(primary) is None:
            text = "There is no placement yet. Run, or search again."
        else:
            return []
        return [f'<p class="q">{text}</p>']

    def _links(self, explanation: ExplainAnswer) -> list[str]:
        """Return links to what can be done: measure again, see the second-best placement."""
        links = []
        if explanation.ties:
            links.append(f"<a href='measure:'>{'Measure again'}</a>")
        if explanation.runner_up is not None:
            links.append(f"<a href='runner-up:'>{'Show the second-best placement'}</a>")
        return [f"<p>{' · '.join(links)}</p>"] if links else []

    def _formats(self, partition: Partition) -> str:
        """Return the formats and conversions of a partition, as the rest of a sentence."""
        formats = border_words(partition.takes, partition.gives)
        shown, graph = self.document.placement.shown, self.document.operators
        text = f"; {escape(formats)}" if formats else ""
        for conversion in shown.placement.conversions if shown is not None else ():
            if conversion.node in partition.nodes or conversion.node in partition.takes:
                sentence = (
                    f"the value of {graph.names[conversion.node]} is converted from "
                    f"{conversion.source} to "
                    f"{conversion.target} once, {time_text(conversion.us)}"
                )
                text += f"; {escape(sentence)}"
        return text

    def _clicked(self, url: QUrl) -> None:
        kind, _, value = url.toString().partition(":")
        document = self.document
        if kind == "partition" and document.placement.shown is not None:
            for partition in document.placement.shown.placement.partitions:
                if partition.id == value:
                    document.selection.select(partition.nodes, document.selection.primary)
        elif kind == "measure":
            document.execution.measure_now(document.selection.operators, longer=True)
        elif kind == "runner-up" and (told := document.questions.explanation) and told.runner_up:
            document.show_placement(told.runner_up, "Runner-up")


def _refusal(refusal: NoCandidate) -> str:
    """Say why a toolchain has no candidate here."""
    return f"{toolchain_title(refusal.toolchain)} has no candidate: {refusal.reason}."


TEXTS = {"relax": "Relax", "tir": "TensorIR"}
"""The texts of a candidate by the field of the engine's answer."""
PLAN = "Steps"
"""What the list calls the library's plan, or TVM's kernels."""


class CodePage(Panel):
    """One text at a time, of those that the candidate's toolchain gives."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__(document, theme, "codePage")
        self.note = text_label("Select a candidate or a placed node to see its code.", "quiet")
        self.choice = named(QComboBox(), "codeChoice", "What is shown")
        self.choice.currentTextChanged.connect(self._show)
        self.text = named(QPlainTextEdit(readOnly=True), "codeText", "Code")
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.plan = named(QTreeWidget(), "codePlan", "The library's plan")
        self.plan.setHeaderLabels(["Step", "Algorithm", "Layout", "Post-ops"])
        allow_copying(self.plan)
        choice = (self.choice, 0, Qt.AlignmentFlag.AlignLeft)
        parts = (self.note, choice, (self.text, 1), (self.plan, 1), None)
        lay_out(QVBoxLayout(self), *parts, edge=1)
        self._texts: dict[str, str] = {}
        """What there is to show, by what the list calls it."""
        document.questions.inside_changed.connect(self.refresh)
        theme.changed.connect(self._fonts)
        self._fonts()
        self._show("")

    def _fonts(self) -> None:
        self.text.setFont(self.theme.mono())

    def refresh(self) -> None:
        """Show what the engine has answered."""
        answer = self.document.questions.inside
        if answer is None:
            return
        texts = {title: getattr(answer, key) for key, title in TEXTS.items()}
        self._texts = {title: text for title, text in texts.items() if text}
        self.plan.clear()
        for step in answer.plan:
            cells = [step[name] for name in ("op", "algorithm", "layout", "post_ops")]
            self.plan.addTopLevelItem(QTreeWidgetItem(cells))
        for at in range(self.plan.columnCount()):
            self.plan.resizeColumnToContents(at)
        before = self.choice.currentText()
        with QSignalBlocker(self.choice):
            self.choice.clear()
            self.choice.addItems([*self._texts, *[PLAN] * bool(answer.plan)])
            self.choice.setCurrentIndex(max(0, self.choice.findText(before)))
        nothing = "" if self._texts else "The toolchain gives no code."
        self.note.setText(answer.reason or nothing)
        self.note.setVisible(bool(self.note.text()))
        self._show(self.choice.currentText())

    def _show(self, title: str) -> None:
        """Show the text or the plan that the list calls so."""
        self.choice.setVisible(bool(title))
        self.plan.setVisible(title == PLAN)
        self.text.setVisible(title in self._texts)
        self.text.setPlainText(self._texts.get(title, ""))
        if title == TEXTS["relax"]:
            self._highlight()

    def _highlight(self) -> None:
        """Mark the selected operator's name in the Relax text."""
        graph, at = self.document.operators, self.document.selection.primary
        if at is None:
            return
        cursor = self.text.document().find(short_operator(graph.calls[at].op))
        if not cursor.isNull():
            self.text.setTextCursor(cursor)
            self.text.centerCursor()
