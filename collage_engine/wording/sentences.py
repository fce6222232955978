"""What several rooms say: names of times, stages and states, sentences on pins and limits."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.records.answers import Alternative, ExplainAnswer
from collage_engine.records.candidate import Refusal
from collage_engine.records.operators import onnx_type
from collage_engine.records.precision import FULL, places_of
from collage_engine.support.text import counted
from collage_engine.wording.amounts import DASH, signed_time, time_text

ISOLATED, EXPECTED, LAST_RUN = "isolated", "expected in this model", "last run"
"""What the three times of a partition are called."""
ABOUT_EXPECTED = (
    "The cost that the search uses. Where whole placements were run, it is the cost in this model: "
    "measured there, or predicted from what was measured. Elsewhere it is the isolated cost."
)
ABOUT_PRICE = (
    "The extra time of the whole model: what the best placement with this candidate takes, less "
    "what the shown placement takes; measured where both were, else expected"
)

NO_TURN = "the run ended before its turn came"
"""The reason of a contender that the run had no time for."""
RUN_GOES_ON = "This is the best placement so far: the run goes on."

STAGE_TITLES = {
    "import": "Reading the model",
    "enumerate": "Finding candidates",
    "whole-models": "Timing whole models",
    "threads": "Trying fewer threads",
    "mixes": "Trying mixes",
    "measure": "Measuring",
    "tune": "Tuning",
    "search": "Searching",
    "calibrate": "Measuring in the model",
    "precision": "Choosing what is rounded",
    "rounded-models": "Timing models that round",
    "build": "Building",
    "confirm": "Confirming end to end",
    "export": "Writing the artifact",
}
"""What the stages of a run are called for people."""

ENDING = "stopping with the best placement so far; another Ctrl-C cancels at once"


def instance_title(instance: str, title_of: Callable[[str], str]) -> str:
    """Return what a toolchain with its options is called: ``TVM (precision bf16)``.

    Args:
        instance: The id of an instance, such as ``tvm[precision=bf16]``, or a toolchain's name.
        title_of: Gives the title of a toolchain; what is none is its own title.
    """

    def text_of(option: str) -> str:
        key, _, value = option.partition("=")
        if key == FULL:
            return f"{counted(len(places_of(value)), 'product')} in float32"
        return f"{key} {value}".rstrip()

    name, _, config = instance.rstrip("]").partition("[")
    texts = ", ".join(map(text_of, filter(None, config.split(","))))
    return f"{title_of(name)} ({texts})" if texts else title_of(name)


HONOURED_ANYWAY = "as the best placement without it does anyway"
NO_COMBINATION = "every node has candidates left, but no combination of them is a placement"
UNDECIDED = (
    "the graph is too wide to find a placement in time, or to prove that there is none: pin some "
    "nodes, or use fewer toolchains"
)
NOT_MEASURED = "what the pins ask for has not been measured yet: run again, which measures it"


def refusal_text(refusal: Refusal) -> str:
    """Return a refusal as a sentence, in ONNX types and toolchains' titles."""
    if refusal.kind == "alone":
        return f"{refusal.toolchain} does not take {onnx_type(refusal.operator)} by itself"
    if refusal.kind == "precision":
        return f"{onnx_type(refusal.operator)} gains nothing in {refusal.detail}"
    return refusal.detail


def named_refusal_text(refusal: Refusal) -> str:
    """Return the sentence for where nothing around it says whose it is."""
    text = refusal_text(refusal)
    return f"{refusal.toolchain}: {text}" if refusal.kind == "judged" else text


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


def best_of_each(answer: ExplainAnswer) -> list[Alternative]:
    """Return the chosen candidate, and the best other one of each toolchain.

    Args:
        answer: The engine's explanation; it lists every candidate.
    """
    best: dict[tuple[str, bool], Alternative] = {}
    for alternative in answer.alternatives:
        name = alternative.toolchain.partition("[")[0]
        best.setdefault((name, alternative.status == "chosen"), alternative)
    return list(best.values())


def status_text(each: Alternative) -> str:
    """Return what is known of a choice, with the reason where there is one."""
    return f"{_STATUS[each.status]}: {each.reason}" if each.reason else _STATUS[each.status]


def price_text(each: Alternative) -> str:
    """Return the price of a choice: ``+12.0 µs``, ``≥ +12.0 µs``, or a dash."""
    if each.whole_us is None:
        return DASH
    bound = "≥ " if each.status in ("at least", "unmeasured") else ""
    return f"{bound}{signed_time(each.whole_us) if each.whole_us else time_text(0.0)}"
