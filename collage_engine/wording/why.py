"""The sentences that explain why a node runs where it does: Why panel, ``collage explain``."""

from __future__ import annotations

# -- the chosen candidate ----------------------------------------------------------

NOTHING_MEASURED = "Nothing is measured yet here: a run measures it."
NOT_PLACED = "{node} is not placed: {reason}."
NO_PLACEMENT = "no placement was found"
RUNS = "{toolchain} runs {operators}"
WITH_TIME = "{text}: {cost}"
AS_LONG = "; by itself {other} would take as long"
SHORTER = "; by itself {other} would take {more} more"
LONGER = "; by itself {other} would take {less} less, but {reason}"
PROVEN_WITHIN = "{text} (the placement is proven to be at most {gap} above the best one)"
LIBRARY_CALLS = "It calls {library} for {calls}."
CONVERTED = "The value of {node} is converted once from {source} to {target}."
CONVERTED_IN = "The value of {node} is converted once from {source} to {target}: {cost}."

# -- why a candidate with a lower cost was not chosen --------------------------------

AS_FAST = "the best placement with it takes as long"
EXPECTED_FASTER = "another placement with it takes {less} less"
HAND_OVERS_COST = "the best placement with it takes {more} longer, because of its hand-overs"
AT_LEAST_LONGER = "the best placement with it takes at least {more} longer"
NO_TIME = "there was no time to find the best placement with it"
RULED_OUT = "no placement contains it: a pin or its neighbours rule it out"

# -- the alternatives ----------------------------------------------------------------

CANDIDATE = "{toolchain}'s {operators}"
NOT_DECIDED = (
    "Not decided on this machine now: {candidates}. A placement with one of these takes as long, "
    "as far as measurements tell."
)
PIN = "Pin {number}: {reason}"
PINNED_HERE = "The pin {pin} puts it here: {outcome}."
PIN_NOT_KEPT = "This placement was made without the pin {pin}, which it does not keep."

# -- other placements ----------------------------------------------------------------

EXPORTED_BASELINE = "{run} exports the baseline {baseline}"
BASELINE_FASTER = "{text}: end to end it took {took}, the search's best placement {ours}"
BASELINE_TIED = (
    "{text}: end to end it is tied with the search's best placement ({took} and {ours}), and it "
    "is simpler"
)
SECOND_IS_SAME = "The second-best placement is the same."
SECOND_HAS = "The second-best placement has {theirs} instead of {ours} and takes {time}."
SECOND_HAS_SAME = (
    "The second-best placement has the same at {node}; elsewhere it has {theirs} instead of "
    "{ours} and takes {time}."
)
TIME_LONGER = "{more} longer"
TIME_SHORTER = "{more} less"
TIME_EQUAL = "as long"

# -- the table of alternatives --------------------------------------------------------

TITLES = ("Toolchain", "Nodes", "Here", "Whole model", "Status")
STATUS: dict[str, str] = {
    "chosen": "chosen",
    "tied": "as fast, within noise",
    "slower": "slower",
    "faster": "expected to be faster",
    "at least": "slower",
    "unmeasured": "not measured",
    "not known": "not known: there was no time to search a placement with it",
    "ruled out": "in no placement under the pins and limits",
    "instead of the pin": "if it were pinned there instead",
    "invalid": "cannot run",
    "no candidate": "no candidate",
}
"""What is known of an alternative, by its status."""
ABOUT_COLUMNS = (
    "Here: the cost in this model. An isolated cost is mostly lower, since a candidate that runs "
    "over and over by itself finds its weights in the caches. Whole model: the extra time of the "
    "best placement with this choice, against the placement that is shown."
)

# -- devices -------------------------------------------------------------------------

ON_DEVICE = "It is on {device}: {reason}."
REASON_OF_DEVICE = {
    "pin": "it is pinned there",
    "only": "nothing on another device takes it",
    "cost": "it costs least there, copies included",
    "default": "it is the default device, and nothing asks for another",
}
"""Why a node is on its device, by the search's reason."""

# -- headings of the Why panel -------------------------------------------------------

SELECT_A_NODE = "Select a node to learn why it runs where it does."
RUN_FIRST = "Run first: nothing is measured yet."
NO_PLACEMENT_YET = "There is no placement yet. Run, or search again."
MEASURE_AGAIN = "Measure again"
SHOW_RUNNER_UP = "Show the second-best placement"
AND_MORE = "{names} and {count} more"
INTERNALLY = "{shapes} · internally {operator}"
IN_PARTITION = "{toolchain}, partition {partition} of {operators}"
CONVERTED_ONCE = "the value of {node} is converted from {source} to {target} once, {cost}"
