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
LIBRARY_CALLS = "It calls the library {library} for {calls}."
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

ALTERNATIVES = "Alternatives, with the extra time of the whole model:"
CANDIDATE = "{toolchain}'s {operators}"
WITH_COST = "{name}, {cost}"
CHOSEN = "{name} is chosen: {cost}"
INVALID = "{name} cannot run: {reason}"
INVALID_WITHOUT_REASON = "its measurement failed"
NO_EXTRA = "{name}: none; a placement with it is expected to be as fast"
EXTRA = "{name}: +{more}"
LESS = "{name}: {less} less"
NOT_DECIDED = (
    "Not decided on this machine now: {candidates}. A placement with one of these takes as long, "
    "as far as measurements tell."
)
AT_LEAST = "{name}: at least +{more}"
NOT_KNOWN = "{name}: not known; there was no time to find the best placement with it"
IN_NO_PLACEMENT = "{name} is in no placement"
IN_NO_PLACEMENT_UNDER = "{name} is in no placement under the {constraints}"
UNMEASURED = "{name} was not measured"
UNMEASURED_BECAUSE = "{name} was not measured: {reason}"
UNMEASURED_AS_GOOD = "{name} was not measured and could be as good"
UNMEASURED_AT_LEAST = "{name} was not measured: at least +{more}"
UNMEASURED_AT_LEAST_BECAUSE = "{name} was not measured: at least +{more} ({reason})"
NO_CANDIDATE = "{toolchain} has no candidate here: {reason}"
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
WHY = "Why"
MEASURE_AGAIN = "Measure again"
NO_CANDIDATES = "No candidate"
RUNNER_UP = "Runner-up"
SHOW_RUNNER_UP = "Show it in the graph"
PRODUCERS = "Producers"
CONSUMERS = "Consumers"
AND_MORE = "{names} and {count} more"
INTERNALLY = "{shapes} · internally {operator}"
IN_PARTITION = "{toolchain}, partition {partition} of {operators}"
CONVERTED_ONCE = "the value of {node} is converted from {source} to {target} once, {cost}"
RUNNER_UP_EXPECTED = "{cost}, {difference}."
RUNNER_UP_WITH = "{cost}, {difference}, with this node on {toolchain}."
NO_DIFFERENCE = "no difference"
AGAINST_SHOWN = "{gain} against the shown placement"
