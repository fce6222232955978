"""Holds the fixed sentences of the desktop, by subject, so that their wording can be reviewed.

Titles and tips of actions are in ``actions.py``. Sentences about figures are shared with reports
and the command line and come from ``collage_engine.drawing``.
"""

from __future__ import annotations

# -- document: runs, searches and pins ----------------------------------------------

SEARCH_ON_STORED_COSTS = "Search on stored costs"
PIN_AS_NOW = "as now"
RUN_FAILED = "the run failed"
NO_CANDIDATE_HERE = "no candidate here"
NOT_ASKED = "took no part in the last run"
_HOW_RUNS_END = {"finished": "The run ended", "cancelled": "The run was cancelled"}


def how_a_run_ended(state: str, reason: str | None) -> str:
    """Returns the line of the log at the end of a run."""
    text = _HOW_RUNS_END.get(state, "The run failed")
    return f"{text}: {reason}" if reason else text


def settings_unreadable(run: str, reason: object) -> str:
    """Says that the settings of a stored run cannot be taken over."""
    return f"The settings of {run} cannot be read: {reason}"


def measured_and_valid(candidates: str, valid: int) -> str:
    """Returns the line of the log after a selection was measured."""
    return f"Measured {candidates}; {valid} of them valid."


MEASURING_AS_ONE_PARTITION = "Measuring the selected nodes as one partition."


def no_placement_satisfies(pins: bool, limits: bool, reason: str) -> str:
    """Says why a search found nothing.

    Args:
        pins: Whether there are pins.
        limits: Whether there are limits on what is deployed.
        reason: The engine's reason.
    """
    demands = ["the pins"] * pins + ["the limits"] * limits
    return (
        f"No placement satisfies {' and '.join(demands) or 'the model on these toolchains'}: "
        f"{reason}"
    )


def best_of_the_search_of(run: str) -> str:
    """Returns the title of the best placement that a run's search found."""
    return f"{run}, best of the search"


def no_recovery_copy(reason: object) -> str:
    """Says that unsaved work could not be copied for the case of a crash."""
    return f"No recovery copy could be written: {reason}"


def unmeasured(candidates: int) -> str:
    """Says how many candidates have no cost, as a price in the pin menu."""
    return f"{candidates} unmeasured"


def at_most(price: str) -> str:
    """Returns a price that is only bounded from above."""
    return f"at most {price}"


def at_most_with_unmeasured(price: str, candidates: int) -> str:
    """Returns a price that unmeasured candidates may lower."""
    return f"{at_most(price)}, {candidates} unmeasured"


def at_least(price: str) -> str:
    """Returns a price that is only bounded from below."""
    return f"at least {price}"


def _about_seconds(seconds: float | None) -> str:
    """Says how long measuring takes, in brackets; empty where it is not known."""
    return f" (about {max(1, round(seconds))} s)" if seconds is not None else ""


def measure_unmeasured(candidates: int, seconds: float | None) -> str:
    """Returns the label of the button that measures what has no cost."""
    return f"Measure {candidates} more{_about_seconds(seconds)}"


def measure_of_exactly_these(candidates: str, seconds: float | None) -> str:
    """Returns the label of the menu's entry that measures what has no cost."""
    return f"Measure {candidates} of exactly these{_about_seconds(seconds)}"


# -- document window: find bar -----------------------------------------------------

NAME_OPERATOR_OR_SHAPE = "Name, operator or shape"
FIND_IN_THE_GRAPH = "Find in the graph"

# -- document window: picture controller -------------------------------------------

LAYING_OUT = "Laying out the graph…"
FOUND_WITHOUT_THE_PINS = "No placement satisfies the pins: this one was found without them."
OLDER_THAN_THE_PINS = "This placement is older than the pins. Press Space to search again."
NO_OTHER_RUN = "There is no other run to compare with."
NOT_REDUCED = "Everything is in float32; a run with a lower precision tells what rounding does."

# -- document window: pin controller -----------------------------------------------

PIN_DEMANDS = {
    "on": "on {toolchain}",
    "never": "never on {toolchain}",
    "exactly": "exactly one partition",
    "exactly on": "exactly one partition of {toolchain}",
    "together": "together in one partition",
    "device": "on device {device}",
}
"""The sentence of what a pin demands, by the pin's kind."""

# -- document window: split view ---------------------------------------------------

SECOND_GRAPH = "Graph of the compared placement"
SECOND_PLACEMENT = "Placement in the second view"
ABOUT_DIFFERENCES_ONLY = "Dim the operators that both placements run in the same partition"
CLOSE_THE_SPLIT_VIEW = "Close the split view"

# -- graph view: layout, legend ------------------------------------------------------


MARKS = {
    "hand-over": "hand-over",
    "tie": "tie",
    "expected": "expected, not confirmed",
    "pin": "pinned",
    "measured now": "being measured",
}
"""Marks of the picture that the legend explains, where they occur."""
ABOUT_MARKS = {
    "hand-over": "A value passes to another toolchain, format or device: its size, the conversion "
    "and its cost stand beside the arrow.",
    "tie": "Another toolchain is within noise of the chosen one: measurements do not decide. The "
    "corner has its colour.",
    "expected": "Dashed boxes belong to a placement that no run has confirmed yet.",
    "pin": "A pin demands or forbids something here.",
    "measured now": "The run measures a candidate that consists of these operators.",
}


# -- main window: toolbar ----------------------------------------------------------


# -- panels: facts -----------------------------------------------------------------

NO_FACTS = "No facts are known of this placement: a run tells those of what it exports."

# -- panels: memory ----------------------------------------------------------------

NO_PLACEMENT = "There is no placement yet."


# -- panels: partitions ------------------------------------------------------------

FIRST_PLACEMENT_COMES = "The first placement stands here as soon as the run has timed one."


# -- panels: pins ------------------------------------------------------------------

ABOUT_PRICE = "The price is the cost with this pin less the cost without it."
ABOUT_PRICE_OF_PIN = "The cost with this pin less the cost without it, with all other pins"
NO_PINS = (
    "There are no pins. Select nodes and press P to demand a toolchain for them, or Shift+P to "
    "forbid one. A search then says what each pin costs, or why it is infeasible."
)

SEARCH_FOR_THE_PRICE = "Search again or run to see what it costs."
NO_PLACEMENT_SATISFIES_THEM = "no placement satisfies them"
PLACEMENT_IS_OLDER = "the placement is older than the pins: press Space"


def price_may_be_lower(unmeasured: int) -> str:
    """Says that a pin's price rests on what was measured."""
    are = "candidate is" if unmeasured == 1 else "candidates are"
    return f"{unmeasured} {are} unmeasured: the price may be lower."


def contradicts_pins(numbers: str) -> str:
    """Says with which other pins a pin cannot hold together."""
    return f"(contradicts pin {numbers})"


def expected_with_pins(latency: str, pins: int) -> str:
    """Returns the latency that the search expects under the pins."""
    return f"{latency} expected with {'it' if pins == 1 else 'them'}"


# -- panels: precision slider ------------------------------------------------------

TOLERANCE_SLIDER = "Tolerance"
ABOUT_TOLERANCE_SLIDER = (
    "What another tolerance would bring: the products that would be rounded are coloured at once, "
    "time and error are predicted from what the run has measured"
)
MOVE_THE_SLIDER = "Move the slider to see what another tolerance would bring"
CONFIRM_TOLERANCE = "Run with it"
ABOUT_CONFIRM_TOLERANCE = "Confirm the prediction: run with this tolerance"


def tolerance_text(percent: str) -> str:
    """Returns a tolerance beside its slider."""
    return f"Tolerance {percent} %"


def predicted_rounding(
    rounded: int, products: int, error: str, time: str, float32_time: str
) -> str:
    """Says what is predicted for a tolerance."""
    if not rounded:
        return f"Predicted: nothing faster than {float32_time} in float32 keeps it"
    return (
        f"Predicted: {rounded} of {products} rounded, error {error} %, {time} "
        f"(float32 {float32_time})"
    )


# -- panels: runs ------------------------------------------------------------------

FOUND_BEFORE_CANCELLING = (
    "The run was cancelled. This is the best placement that it had found: it was timed once and is "
    "not kept in the session."
)
WHAT_A_RUN_DOES = (
    "A run measures the candidates, searches for the fastest placement and confirms it end to end "
    "against every baseline."
)
BEST_OF_THE_SEARCH = "Best of the search"
SAVE, EXPORT, COMPARE = "Save", "Export", "Compare"
TIED_WITH_EXPORTED = "tied with what is exported"
EXPORTED = "exported"
IS_BEST_SO_FAR = "best so far"
EXPECTED_NOT_MEASURED = "expected, not measured"


def against_exported(gain: str) -> str:
    """Says how much slower or faster the search's best placement is than what is exported."""
    return f"{gain} against what is exported"


def is_exported(what: str) -> str:
    """Says that a run exports a baseline."""
    return f"{what} is exported"


# -- sentences with fields -------------------------------------------------------------


def cannot_be_written(path: object) -> str:
    """Says that a picture could not be written."""
    return f"{path} cannot be written"


def not_a_regular_expression(reason: object) -> str:
    """Says that a search text is no regular expression, and why."""
    return f"not a regular expression: {reason}"


def only_these(label: str, detail: str) -> str:
    """Return the tip of an entry of the legend."""
    return f"{label}: {detail}. Click to see only these."
