"""Lists what else could run a node, as the table of *Why* shows it on every face."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.records.answers import Alternative, ExplainAnswer
from collage_engine.wording.amounts import DASH, signed_time, time_text
from collage_engine.wording.titles import toolchain_title

TITLES = ("Toolchain", "Nodes", "Here", "Price", "Status")
_STATUS: dict[str, str] = {
    "chosen": "chosen",
    "tied": "as fast",
    "slower": "slower",
    "faster": "expected to be faster",
    "at least": "slower",
    "unmeasured": "not measured",
    "not known": "not searched",
    "ruled out": "in no placement under the pins and limits",
    "instead of the pin": "if it were pinned there instead",
    "invalid": "cannot run",
    "no candidate": "no candidate",
}
"""What is known of an alternative, by its status."""
ABOUT_COLUMNS = (
    "Here: the cost in this model. An isolated cost is mostly lower, since a candidate that runs "
    "over and over by itself finds its weights in the caches. Price: the extra time of the whole "
    "model, that of the best placement with this choice less that of the placement that is shown."
)


@dataclass(frozen=True, kw_only=True)
class WhyRow:
    """A line of the table: one choice at a node."""

    toolchain: str
    """The title of the toolchain, with its options."""
    candidate: str | None
    """Its id; None where the toolchain has no candidate."""
    operators: str
    here: str
    """The candidate's cost."""
    whole: str
    """The extra time of the whole model, against the shown placement."""
    status: str
    is_chosen: bool


def why_rows(answer: ExplainAnswer) -> list[WhyRow]:
    """Return the chosen candidate, and the best other one of each toolchain.

    Args:
        answer: The engine's explanation; it lists every candidate.
    """
    best: dict[tuple[str, bool], Alternative] = {}
    for alternative in answer.alternatives:
        name = alternative.toolchain.partition("[")[0]
        best.setdefault((name, alternative.status == "chosen"), alternative)
    return [
        WhyRow(
            toolchain=toolchain_title(each.toolchain),
            candidate=each.candidate,
            operators=each.operators,
            here=time_text(each.here_us),
            whole=_whole(each),
            status=status_text(each),
            is_chosen=each.status == "chosen",
        )
        for each in best.values()
    ]


def status_text(each: Alternative) -> str:
    """Return what is known of a choice, with the reason where there is one."""
    return f"{_STATUS[each.status]}: {each.reason}" if each.reason else _STATUS[each.status]


def _whole(each: Alternative) -> str:
    """Return the price of a choice: ``+12.0 µs``, ``≥ +12.0 µs``, or a dash."""
    if each.whole_us is None:
        return DASH
    bound = "≥ " if each.status in ("at least", "unmeasured") else ""
    return f"{bound}{signed_time(each.whole_us) if each.whole_us else time_text(0.0)}"
