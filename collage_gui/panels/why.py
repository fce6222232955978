"""Says why a node runs where it does; what else could run it is the table of candidates."""

from __future__ import annotations

import re
from html import escape

from PySide6.QtCore import Qt, QUrl
from PySide6.QtWidgets import QTextBrowser, QVBoxLayout, QWidget

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import toolchain_look
from collage_engine.records.answers import ExplainAnswer, NoCandidate
from collage_engine.records.format import border_words
from collage_engine.records.placement import Partition
from collage_engine.support.text import counted
from collage_engine.wording.amounts import node_shapes, time_text
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.candidates import partition_text
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, named

UNITS = re.compile(r"(?<=\d) (?=(?:µs|ms|s|%|B|KiB|MiB|GiB)\b|%)")
"""A pattern of the spaces between numbers and units, at which lines do not break."""


class WhyPanel(QWidget):
    """Shows only what the engine says; nothing is invented here."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("whyPanel")
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
        self.text.setHtml(self._style_sheet() + _unbroken("".join(body)))

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
        title = f"{graph.title(primary)} · {graph.name(primary)}"
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
        sentence = (
            f"{_strong(toolchain_title(partition.toolchain))}, partition <a "
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
                    f"the value of {graph.name(conversion.node)} is converted from "
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
        elif (
            kind == "runner-up"
            and document.questions.explanation
            and document.questions.explanation.runner_up
        ):
            document.show_placement(document.questions.explanation.runner_up, "Runner-up")


def _strong(text: str) -> str:
    """Return a text in the weight of headings: the font has no bolder one."""
    return f"<span style='font-weight:600'>{escape(text)}</span>"


def _refusal(refusal: NoCandidate) -> str:
    """Say why a toolchain has no candidate here."""
    return f"{toolchain_title(refusal.toolchain)} has no candidate: {refusal.reason}."


def _unbroken(html: str) -> str:
    """Return a text whose lines do not break between a number and its unit."""
    return UNITS.sub("&nbsp;", html)
