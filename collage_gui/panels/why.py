"""Says why a node runs where it does, and which toolchains have no candidate for it."""

from __future__ import annotations

import re
from html import escape

from PySide6.QtCore import QSize, QUrl
from PySide6.QtWidgets import QTextBrowser, QVBoxLayout, QWidget

from collage_engine.drawing.figures import latency_text, latency_us
from collage_engine.drawing.formatting import (
    counted,
    gain_text,
    node_shapes,
    time_text,
)
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import toolchain_look, toolchain_title
from collage_engine.records.answers import ExplainAnswer
from collage_engine.records.format import border_words
from collage_engine.records.placement import Partition, Placement
from collage_engine.wording import why as words
from collage_gui.document.document import Document
from collage_gui.panels.cost_text import partition_text
from collage_gui.theme import Theme

UNITS = re.compile(r"(?<=\d) (?=(?:µs|ms|s|%|B|KiB|MiB|GiB)\b|%)")
"""A pattern of the spaces between numbers and units, at which lines do not break."""
MOST_LINKS = 12
"""Producers or consumers that are named; the others are counted. Chosen."""


class WhyPanel(QWidget):
    """Shows only what the engine says; nothing is invented here."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("whyPanel")
        self.text = QTextBrowser(openLinks=False)
        self.text.setObjectName("whyText")
        self.text.setAccessibleName("Why")
        self.text.setFrameShape(QTextBrowser.Shape.NoFrame)
        self.text.anchorClicked.connect(self._clicked)
        box = QVBoxLayout(self)
        box.setContentsMargins(6, 4, 6, 4)
        box.addWidget(self.text)
        document.selection.changed.connect(self.refresh)
        document.questions.explanation_changed.connect(self.refresh)
        document.placement.changed.connect(self.refresh)
        theme.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Explains the primary operator."""
        graph, primary = self.document.operators, self.document.selection.primary
        if graph is None or primary is None:
            body = [f'<p class="q">{words.SELECT_A_NODE}</p>']
        else:
            body = [
                *self._heading(graph, primary),
                *self._partition(graph, primary),
                *self._explanation(primary),
                *self._neighbours(graph, primary),
            ]
        self.text.setHtml(self._style_sheet() + _unbroken("".join(body)))

    def _style_sheet(self) -> str:
        c = self.theme.colours
        return (
            f"<style>h3 {{ font-size: {self.theme.scaled(14)}px; font-weight: 600;"
            f" margin: 10px 0 3px 0; }}"
            f"p {{ margin: 3px 0; }} .q {{ color: {c.quiet}; }} a {{ color: {c.focus}; }}"
            f"td {{ padding: 1px 12px 1px 0; }}</style>"
        )

    def _heading(self, graph: OperatorGraph, primary: int) -> list[str]:
        node = graph.calls[primary]
        others = graph.count_nodes(self.document.selection.operators) - 1
        title = f"{graph.title(primary)} · {graph.name(primary)}"
        if others > 0:
            title = words.AND_MORE.format(names=title, count=others)
        inside = graph.titles.lowered(primary)
        about = words.INTERNALLY.format(shapes=node_shapes(node), operator=inside)
        return [f"<h3>{escape(title)}</h3><p class='q'>{escape(about)}</p>"]

    def _partition(self, graph: OperatorGraph, primary: int) -> list[str]:
        """Returns the partition that holds the operator, its toolchain and its cost."""
        partition = self.document.placement.partition_of(primary)
        if partition is None:
            return []
        look = toolchain_look(partition.toolchain)
        times = partition_text(partition, self.document.costs.of(partition.candidate))
        name = escape(partition.id, quote=True)
        sentence = words.IN_PARTITION.format(
            toolchain=_strong(toolchain_title(partition.toolchain)),
            partition=f"<a href='partition:{name}'>{name}</a>",
            operators=counted(graph.count_nodes(partition.nodes), "node"),
        )
        sentence = ", ".join(filter(None, [sentence, escape(times)]))
        return [
            f"<p><span style='background:{look.colour};color:{look.text}'>"
            f"&nbsp;{escape(look.tag)}&nbsp;</span> {sentence}{self._formats(partition)}</p>"
        ]

    def _explanation(self, primary: int) -> list[str]:
        """Returns what the engine says about the choice, as HTML."""
        document = self.document
        explanation = document.questions.explanation
        if explanation is not None:
            return [
                *self._reasons(explanation),
                *self._measure_again(explanation),
                *self._runner_up(explanation.runner_up),
                *self._without_candidate(explanation),
            ]
        if not document.costs.candidates:
            text = words.RUN_FIRST
        elif document.placement.partition_of(primary) is None:
            text = words.NO_PLACEMENT_YET
        else:
            return []
        return [f'<p class="q">{text}</p>']

    def _reasons(self, explanation: ExplainAnswer) -> list[str]:
        if not explanation.words:
            return []
        texts = (f"<p>{escape(text)}</p>" for text in explanation.words)
        return [f"<h3>{words.WHY}</h3>", *texts]

    def _measure_again(self, explanation: ExplainAnswer) -> list[str]:
        """Returns a link that measures again, where measurements do not decide."""
        if not explanation.ties:
            return []
        return [f"<p><a href='measure:'>{words.MEASURE_AGAIN}</a></p>"]

    def _without_candidate(self, explanation: ExplainAnswer) -> list[str]:
        """Returns the toolchains that have no candidate for the operator, and why."""
        if not explanation.not_offered:
            return []
        rows = (
            f"<tr><td>{_strong(toolchain_title(each.toolchain))}</td>"
            f"<td>{escape(each.reason)}</td></tr>"
            for each in explanation.not_offered
        )
        return [f"<h3>{words.NO_CANDIDATES}</h3><table>", *rows, "</table>"]

    def _formats(self, partition: Partition) -> str:
        """Returns the formats and conversions of a partition, as the rest of a sentence."""
        formats = border_words(partition.takes, partition.gives)
        shown, graph = self.document.placement.shown, self.document.operators
        text = f"; {escape(formats)}" if formats else ""
        if shown is None or graph is None:
            return text
        for each in shown.placement.conversions:
            if each.node in partition.nodes or each.node in partition.takes:
                sentence = words.CONVERTED_ONCE.format(
                    node=graph.name(each.node),
                    source=each.source,
                    target=each.target,
                    cost=time_text(each.us),
                )
                text += f"; {escape(sentence)}"
        return text

    def _runner_up(self, placement: Placement | None) -> list[str]:
        document = self.document
        if (
            placement is None
            or document.placement.shown is None
            or document.selection.primary is None
        ):
            return []
        shown, us = document.placement.shown.placement, latency_us(placement)
        against = latency_us(shown)
        if placement.measured_us is None or shown.measured_us is None:
            us, against = placement.estimated_us, shown.estimated_us
        owner = next(
            (p for p in placement.partitions if document.selection.primary in p.nodes), None
        )
        sentence = (words.RUNNER_UP_WITH if owner else words.RUNNER_UP_EXPECTED).format(
            cost=latency_text(placement),
            difference=same_or(gain_text(us, against)),
            toolchain=toolchain_title(owner.toolchain) if owner else "",
        )
        return [
            f"<h3>{words.RUNNER_UP}</h3><p>{escape(sentence)} "
            f"<a href='runner-up:'>{words.SHOW_RUNNER_UP}</a></p>"
        ]

    def _neighbours(self, graph: OperatorGraph, primary: int) -> list[str]:
        out = []
        for title, operators in (
            (words.PRODUCERS, graph.producers(primary)),
            (words.CONSUMERS, graph.consumers(primary)),
        ):
            if operators:
                links = ", ".join(
                    f"<a href='node:{n}'>{escape(graph.title(n))} · {escape(graph.name(n))}</a>"
                    for n in operators[:MOST_LINKS]
                )
                left = len(operators) - MOST_LINKS
                text = words.AND_MORE.format(names=links, count=left) if left > 0 else links
                out.append(f"<h3>{title}</h3><p>{text}</p>")
        return out

    def _clicked(self, url: QUrl) -> None:
        kind, _, value = url.toString().partition(":")
        document = self.document
        if kind == "node":
            document.selection.select([int(value)], int(value))
        elif kind == "partition" and document.placement.shown is not None:
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

    def sizeHint(self) -> QSize:
        """Lower than a text browser's, so that the panel above gets the room."""
        hint = super().sizeHint()
        hint.setHeight(200)
        return hint


def _strong(text: str) -> str:
    """Returns a text in the weight of headings: the font has no bolder one."""
    return f"<span style='font-weight:600'>{escape(text)}</span>"


def _unbroken(html: str) -> str:
    """Returns a text whose lines do not break between a number and its unit."""
    return UNITS.sub("&nbsp;", html)


def same_or(gain: str) -> str:
    """Returns ``no difference`` for a gain of nothing, else the gain and what it is against."""
    return words.NO_DIFFERENCE if gain == "0.0 %" else words.AGAINST_SHOWN.format(gain=gain)
