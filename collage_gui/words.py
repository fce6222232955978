"""Holds the fixed sentences of the desktop, by subject, so that their wording can be reviewed.

Titles and tips of actions are in ``actions.py``. Sentences about figures are shared with reports
and the command line and come from ``collage_engine.drawing``.
"""

from __future__ import annotations

from collections.abc import Sequence

# -- banner ------------------------------------------------------------------------

SHOW_THE_WHOLE_MESSAGE = "Show the whole message"

# -- command palette ---------------------------------------------------------------

PALETTE_QUESTION = "What do you want to do?"

# -- document: runs, searches and pins ----------------------------------------------

SEARCH_ON_STORED_COSTS = "Search on stored costs"
PIN_AS_NOW = "as now"
BEST_SO_FAR = "Best so far"
CANCELLED_RUN = "Cancelled run"
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


# -- files of pins -------------------------------------------------------------------

WITHOUT_PINS_FIELD = "it has no 'collage_pins'"


def no_file_of_pins(reason: object) -> str:
    """Says that a file holds no pins."""
    return f"this is no file of pins: {reason}"


def pins_of_another_version(version: object, known: int) -> str:
    """Says that a file of pins was written in another format."""
    return f"this file of pins is of version {version}, not {known}"


def nodes_of_placement_gone(lost: int, nodes: str) -> str:
    """Says that nodes of a file's placement are not in the model any more."""
    return f"{lost} of {nodes} of the placement {'is' if lost == 1 else 'are'} gone."


def pin_malformed(number: int, reason: object) -> str:
    """Says that a pin of a file cannot be read."""
    return f"pin {number} of the file is malformed: {reason}"


def pin_without_nodes(number: int, nodes: int) -> str:
    """Says that none of a pin's nodes is in the model."""
    what = "its node is not" if nodes == 1 else f"none of its {nodes} nodes is"
    return f"Pin {number}: {what} in this model."


def pin_dropped(number: int, kind: str, gone: str, count: int) -> str:
    """Says that a pin means nothing without the nodes that are gone."""
    return f"Pin {number} ({kind}) was dropped, since {gone} {'is' if count == 1 else 'are'} gone."


def pin_kept_without(number: int, gone: str, left: int) -> str:
    """Says that a pin was kept on the nodes that are still there."""
    more = f" and {left} more" if left else ""
    return f"Pin {number} was kept without {gone}{more}."


def pins_applied(pins: str, problems: Sequence[str], left: int) -> str:
    """Says what became of the pins of a file.

    Args:
        pins: How many there are.
        problems: What does not match the model, the first of it.
        left: How many problems more there are.
    """
    if not problems:
        return f"{pins} applied; all of them match."
    text = f"{pins} applied. {' '.join(problems)}"
    return f"{text} The log lists {left} more." if left else text


# -- engine client, connections, starting without a person --------------------------

ENGINE_SHUT_DOWN = "the engine was shut down"
STARTING_THE_ENGINE = "starting the engine…"
RESTART_THE_ENGINE = "Restart the engine"
GIVEN_COMMAND = "a given command"
ENGINE_NOT_RUNNING = "the engine is not running: restart it"
ENGINE_LINE_TOO_LONG = "the engine sent a line longer than 256 MiB"
ENGINE_GAVE_NO_REASON = "the engine gave no reason"
ENGINE_DOES_NOT_ANSWER = "The engine does not answer. What was measured is kept."


def not_a_message(text: str) -> str:
    """Says that the engine wrote something that belongs to no protocol."""
    return f"not a message of the protocol: {text}"


def another_protocol(reason: object) -> str:
    """Says that the engine's first answer cannot be read."""
    return f"the engine speaks another protocol ({reason})"


def malformed_answer(method: str, reason: object) -> str:
    """Says that an answer of the engine cannot be read."""
    return f"the engine's answer to {method} is malformed: {reason}"


def malformed_notification(method: str, reason: object) -> str:
    """Says that a notification of the engine cannot be read."""
    return f"malformed notification {method}: {reason}"


def protocol_versions_differ(theirs: int, ours: int) -> str:
    """Says that the engine is of another version than the window."""
    return (
        f"the engine speaks protocol version {theirs}, this window {ours}: install the same "
        "version on both sides"
    )


def engine_did_not_answer(where: str, seconds: float) -> str:
    """Says that an engine was started and said nothing."""
    return f"the engine ({where}) did not answer within {seconds:.0f} s"


def engine_not_started(command: str) -> str:
    """Says that the program of the engine is not there."""
    return f"the engine could not be started: {command} not found"


def engine_crashed(signal: int) -> str:
    """Says that the engine's process was ended by a signal; 0 where it is not known."""
    return f"the engine crashed (signal {signal})" if signal else "the engine crashed"


def engine_ended(status: int) -> str:
    """Says that the engine's process ended by itself."""
    return f"the engine ended with exit status {status}"


def engine_lost(reason: str, measuring: str) -> str:
    """Returns the banner after the engine ended: why, and what it was measuring."""
    text = f"{reason} while measuring {measuring}" if measuring else reason
    return f"{text}. What was measured is kept."


def no_host_name(text: str) -> str:
    """Says that a connection over ssh names no machine."""
    return f"{text!r} is no host name"


def no_connection(text: str) -> str:
    """Says that a text is no connection."""
    return f"{text!r}: a connection is local, ssh:HOST, python:PATH or command:…"


# -- document window: docks ---------------------------------------------------------

WHY_AND_INSIDE = "Why and inside"
RUNS_AND_LOG = "Runs and log"

# -- document window: export controller --------------------------------------------

EXPORTING_THE_ARTIFACT = "Exporting the artifact…"
GRAPH_AS_PNG = "Graph as PNG"
SELECTION_AS_PNG = "Selection as PNG"
WHOLE_GRAPH_AS_PNG = "Whole graph as PNG"
GRAPH_AS_SVG = "Graph as SVG"
TABLES_AS_CSV = "Tables as CSV, into a folder"
RUN_AS_JSON = "Run as JSON"
EXPORT_THE_ARTIFACT = "Export the compiled artifact"
NO_RUN_TO_EXPORT = "There is no run to export yet."


def artifact_written(folder: str, size: str, what: str) -> str:
    """Says where an artifact is, how large it is, what is in it, and how it is run."""
    content = f": {what}" if what else ""
    return f"Written: {folder} ({size}){content}. Run it: python {folder}/loader/run_artifact.py"


# -- document window: find bar -----------------------------------------------------

NAME_OPERATOR_OR_SHAPE = "Name, operator or shape"
FIND_IN_THE_GRAPH = "Find in the graph"

# -- document window: picture controller -------------------------------------------

READING_THE_MODEL = "Reading the model…"
LAYING_OUT = "Laying out the graph…"
FOUND_WITHOUT_THE_PINS = "No placement satisfies the pins: this one was found without them."
OLDER_THAN_THE_PINS = "This placement is older than the pins. Press Space to search again."
NOT_PROFILED = "The shown placement was not profiled in a confirmed run."
NO_TIMES = "No partition has a time."
NO_OTHER_RUN = "There is no other run to compare with."
NOT_REDUCED = "Everything is in float32; a run with a lower precision tells what rounding does."
ONE_DEVICE = "Everything runs on one device."
REFERENCE_WITHOUT_TIMES = "The reference has no measured time for the same operators."

# -- document window: pin controller -----------------------------------------------

NO_TOOLCHAINS_YET = "The engine has not named its toolchains yet."
PIN_AS_ONE_PARTITION = "Pin as one partition"
KEEP_TOGETHER = "Keep together"
KEEP_THIS_PARTITION = "Keep this partition"
PIN_ALL_AS_NOW = "Pin all as now"
SAVE_PINS = "Save pins and placement"
APPLY_PINS = "Apply pins from a file"
FILE_PLACEMENT_IS_BASELINE = "The file's placement is a baseline of the next run."
PIN_DEMANDS = {
    "on": "on {toolchain}",
    "never": "never on {toolchain}",
    "exactly": "exactly one partition",
    "exactly on": "exactly one partition of {toolchain}",
    "together": "together in one partition",
    "device": "on device {device}",
}
"""The sentence of what a pin demands, by the pin's kind."""

# -- document window: run controller -----------------------------------------------

CHOOSE_TOOLCHAINS = "Choose toolchains"
LOOKING_FOR_CANDIDATES = "Looking for candidates…"
BASELINE_OF_THE_NEXT_RUN = "This placement is a baseline of the next run."
NO_RUNNER_UP_YET = "The engine has not named a runner-up yet."
RUN_CANCELLED = "The run was cancelled; what was measured is kept."


def run_would_fail(nodes: Sequence[str], left: int) -> str:
    """Returns the answer to Check first where no placement is possible.

    Args:
        nodes: Nodes that nothing can run, the first of them.
        left: How many more there are.
    """
    more = f" and {left} more" if left else ""
    return f"A run would fail: no chosen toolchain has a candidate for {', '.join(nodes)}{more}."


def what_a_run_would_do(candidates: str, distinct: str, stored: str, took: str) -> str:
    """Returns the answer to Check first: how many candidates, and how long a run takes."""
    return (
        f"{candidates}, {distinct} of them distinct and {stored} measured already. Expected: "
        f"{took}."
    )


# -- document window: split view ---------------------------------------------------

SECOND_GRAPH = "Graph of the compared placement"
SECOND_PLACEMENT = "Placement in the second view"
ABOUT_DIFFERENCES_ONLY = "Dim the operators that both placements run in the same partition"
CLOSE_THE_SPLIT_VIEW = "Close the split view"

# -- graph view: canvas ------------------------------------------------------------

ABOUT_GRAPH = "The dataflow graph. The outline (O) lists the same operators for screen readers."

# -- graph view: layout, legend ------------------------------------------------------

PICTURE_TOO_LARGE = "the picture is too large"

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


def layout_took_too_long(seconds: float) -> str:
    """Says that a layout was given up."""
    return f"layout took longer than {seconds} s"


def layout_ended(status: int) -> str:
    """Says that the process that computes the layout failed."""
    return f"layout ended with {status}"


def not_laid_out(reason: str) -> str:
    """Says that the graph cannot be drawn."""
    return f"The graph could not be laid out: {reason}."


# -- graph view: minimap -----------------------------------------------------------

ABOUT_MINIMAP = "The whole graph. Drag to move the view."

# -- main window: documents --------------------------------------------------------

NO_SAMPLE_MODEL = "The sample model is not installed."
RUN_OF_THE_EARLIER_FILE = "A run of the earlier file is under way. Stop it, then reload."
MODELS_AND_SESSIONS = "Models and sessions (*.onnx *.collage);;All files (*)"
RUN_WILL_BE_STOPPED = "A run is under way: it will be stopped."
LOST_WITHOUT_SAVING = (
    "Without saving, pins, runs and notes are lost; measurements stay in the store."
)

# -- main window: engine -----------------------------------------------------------

ASK_CONNECTION = "Where the engine runs:\nlocal, ssh:HOST, or python:/path/to/python"

# -- main window: menus ------------------------------------------------------------

CLEAR_THIS_LIST = "Clear this list"

# -- main window: toolbar ----------------------------------------------------------

ABOUT_THREADS = "auto: one thread for each physical core"
THREADS_AUTO, LONGEST_THREADS = "Threads: auto", "Threads: 256"
LONGEST_BUDGET = "Budget: 59 min 30 s"
"""The longest usual text of the budget's field; it sets the field's width."""
STOP_THE_RUN = "Stop the run"

# -- main window: window -----------------------------------------------------------

ABOUT_CONNECTION = "Where the engine runs. Click to connect to another engine."

CREDITS = (
    "After Collage (Jeon et al., PACT 2022) and TVM RFC 0062.\n"
    "Font: Inter, SIL Open Font License 1.1."
)

# -- panels: all runs --------------------------------------------------------------

ABOUT_ALL_RUNS = "Each run against the shown one. A double click shows a run."
ABOUT_DRIFT_OF_BASELINES = (
    "How much slower the baselines were than in the shown run: the median over those that both "
    "runs timed. It is the machine's doing, not the placement's."
)
ABOUT_WITHOUT_DRIFT = "The latency at the speed that the machine had for the shown run"

# -- panels: bar chart -------------------------------------------------------------


def expected_past_the_axis(latency: str) -> str:
    """Returns an expected latency that lies beyond the end of the chart."""
    return f"expected → {latency}"


# -- panels: candidates ------------------------------------------------------------

ABOUT_SPREAD = "Half of what lies between the 20th and the 80th percentile"


def candidates_shown(shown: int, total: str, measured: int) -> str:
    """Says how many candidates the table shows, and how many of all have a cost."""
    return f"{shown:,} of {total} · {measured:,} measured"


CHOSEN = "chosen"
CHOSEN_IN_MODEL = "chosen, in the model"
"""The time of a partition that was timed in whole placements and not by itself."""
NO_COSTS_YET = "Costs appear here once these candidates are measured."
STATE_OF_CANDIDATES = "State of candidates"
MEASURE_NOW = "Measure now"
ABOUT_MEASURE_NOW = "Measure the selection as one partition on every toolchain"
MEASURE_LONGER = "Measure longer"
ABOUT_MEASURE_LONGER = "Measure the chosen candidate, or the selection, again with more repeats"
SELECT_FOR_CANDIDATES = "Select a node or a partition to see only its candidates."
OPEN_A_MODEL_FIRST = "Open a model to see what could run it."


def nothing_measured_yet(took: str) -> str:
    """Returns the text that stands where candidates will be.

    Args:
        took: How long a run takes; empty where that is not known.
    """
    text = (
        "Nothing is measured yet. A run finds every sub-graph that a toolchain could take, "
        "measures each, and searches for the fastest placement."
    )
    return f"{text} It takes about {took}." if took else text


# -- panels: texts of costs ----------------------------------------------------------

NOT_MEASURED_YET = "Not measured yet"
SEEN_IN_MODEL = "measured in whole placements"
PREDICTED_IN_MODEL = "predicted from them"


def median_of(cost: str, repeats: str) -> str:
    """Returns an isolated cost and the repeats that it is the median of."""
    return f"{cost}, the median of {repeats}"


def percentiles(low: str, high: str) -> str:
    """Returns the spread of a cost."""
    return f"20th–80th percentile {low} – {high}"


def largest_error(error: str) -> str:
    """Returns the error of a candidate."""
    return f"Largest relative error {error}"


def measured_at(when: str, from_store: bool) -> str:
    """Says when a cost was measured, and whether the store had it."""
    return f"Measured {when}, from the store" if from_store else f"Measured {when}"


# -- panels: changes ---------------------------------------------------------------

SHOW_IN_GRAPH = "Show in graph"
SHOW_ANOTHER_RUN = "Show another run to compare it with this one."
CHOOSE_A_RUN_IN_AGAINST = (
    "Choose a run in “Against” in the toolbar, to see which nodes moved between toolchains."
)


def changes_against(
    before: str, moved: int, regrouped: int, same: int, difference: str, toolchains: str
) -> str:
    """Says what a comparison of two runs counts."""
    return (
        f"Against {before}: {moved} moved, {regrouped} regrouped, {same} same · {difference} · "
        f"partitions: {toolchains}"
    )


# -- panels: facts -----------------------------------------------------------------

NO_FACTS = "No facts are known of this placement: a run tells those of what it exports."
ABOUT_FACTS = "Limits, accuracy, memory, formats and tuning of the run"

# -- panels: in-model times ----------------------------------------------------------

PARTITIONS_IN_THE_MODEL = "Partitions in the model"

# -- panels: input sizes -------------------------------------------------------------


def no_input_sizes(text: str) -> str:
    """Says that a text gives no sizes of an input."""
    return f"{text!r}: sizes are written NAME=1,3,224,224"


# -- panels: inside ----------------------------------------------------------------

SELECT_FOR_CODE = "Select a node or a candidate to see its code."
ATTRIBUTES_TYPES_AND_WEIGHTS = "Attributes, types and weights"
NODES_THAT_RUN_TOGETHER = "ONNX nodes that run together"
NODES_NOT_LISTED = "{nodes} more, which are not listed"
LIBRARY_PLAN = "The library's plan"
ASKING_THE_ENGINE = "Asking the engine…"
NO_SUCH_TEXT = "The toolchain gives no such text."

# -- panels: limits form -----------------------------------------------------------

ANY_OF_THE_TOOLCHAINS = "any of the toolchains above"
ABOUT_ALLOWED_TOOLCHAINS = (
    "Partitions of these toolchains only. Unlike a toolchain that is not checked above, the "
    "others are measured all the same, so that the limit's price is known."
)
ABOUT_MOST_TOOLCHAINS = "Partitions of at most so many different toolchains"
ABOUT_ARTIFACT_SIZE = "Weights and runtime libraries together, in millions of bytes"
ABOUT_MEMORY = (
    "Resident memory of the process while it runs, in millions of bytes. What takes more is "
    "measured, so that the limit's price is known, and cannot win."
)

# -- panels: log -------------------------------------------------------------------

EMPTY_LOG = "What the engine reports appears here."

# -- panels: memory ----------------------------------------------------------------

WEIGHTS_OF_EACH_TOOLCHAIN = "Weights of each toolchain"
BYTES_OF_EACH_PARTITION = "Bytes of each partition"
NO_PLACEMENT = "There is no placement yet."
MEMORY_NOT_MEASURED = (
    "No run has measured the memory of this placement: only what can be counted from the types of "
    "its values is shown."
)


def measured_memory(memory: str) -> str:
    """Says what a run has measured of a placement's memory."""
    return f"Measured in the last run: {memory}."


# -- panels: model tree ------------------------------------------------------------

OPERATORS_OF_THE_MODEL = "Operators of the model"
TYPE_AND_NAME = "Type and name"
NAME_IN_THE_FILE = "Name in the file"

# -- panels: partitions ------------------------------------------------------------

ABOUT_REFERENCE = "The time of the same operators in the placement that is compared with"
ABOUT_NEXT_BEST = "The regret of the next best candidate on the same operators"
NO_PLACEMENT_RUN = (
    "There is no placement yet. Run to see which toolchain takes which part, and at what cost."
)
FIRST_PLACEMENT_COMES = "The first placement stands here as soon as the run has timed one."


def converted_once(values: str, took: str) -> str:
    """Returns the values that are converted between formats, and what that takes."""
    return f"{values} converted once, {took}"


def with_hand_overs(latency: str) -> str:
    """Says what the search expects of a placement, hand-overs and launches included."""
    return f"with hand-overs {latency} expected"


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


# -- panels: precision choice ------------------------------------------------------

ABOUT_PRECISION = "The lowest that candidates may compute in, within the tolerance"
FLOAT32_EVERYWHERE = "float32 everywhere"
TF32_PRODUCTS = "products on tensor cores, operands rounded to ten bits of mantissa"
FLOAT16_PRODUCTS = "operands of products rounded to half precision, where that is faster"
BFLOAT16_PRODUCTS = "operands of products rounded to bfloat16, where that is faster"
INT8_MARKED = "for models that mark themselves what is rounded to 8 bits (QDQ)"

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


# -- panels: progress --------------------------------------------------------------

STOP_AND_KEEP = "Stop and keep"
ABOUT_STOP_AND_KEEP = "End the run with the best placement so far, which is confirmed quickly"
ABOUT_CANCEL = "End the run without a result; what was measured is kept"
MEASUREMENTS_ARE_KEPT = "What was measured is kept."
NO_PLACEMENT_TIMED = "No placement is timed yet"
IN_THE_MODEL = "In the model"


def time_left(time: str) -> str:
    """Returns the time that is left of a stage."""
    return f"{time} left"


def best_so_far(latency: str) -> str:
    """Returns the best placement that a run under way has found."""
    return f"{BEST_SO_FAR}: {latency}"


def at_most_for_the_run(time: str) -> str:
    """Returns the time that is left of a run's budget."""
    return f"{time} of the budget left"


# -- panels: roofline --------------------------------------------------------------

LEFT_TO_WIN = "Left to win"
OF_THE_ROOFLINE = "Of roofline"
ROOFLINE_TITLE = "Achieved rates"


def time_of_last_run_or(expected: str) -> str:
    """Says what the column of times holds.

    Args:
        expected: What it holds where the last run was not profiled.
    """
    return f"The time in the last run; where that was not profiled: {expected}"


# -- panels: run settings ----------------------------------------------------------

ABOUT_TARGET = "cpu, cuda (this machine's device), or cuda:sm_80 for another"
CANDIDATES_THAT_CAN_MATTER = "candidates that can matter"
MEASURE_IN_THE_MODEL = "Measure in the model"
ABOUT_IN_MODEL_COSTS = (
    "Run the best placements, take what their partitions cost in the model, predict the other "
    "costs from it, and search again.\nOtherwise the search uses isolated costs."
)
ABOUT_TOLERANCE = "Largest error of the whole model, relative to its largest output"
ABOUT_INPUTS = "Choose an .npz file of representative inputs, keyed by input name"
ABOUT_CHOOSING_SHAPES = "Sizes of the dimensions that the model names, such as its batch"
NAME_OF_THE_RUN = "Name of the run"
CHECK_BEFORE_RUNNING = "Check before running"
ABOUT_CHECK = "What a run would do, without measuring anything"
ABOUT_ORDER_OF_TOOLCHAINS = "The order decides greedy partitioning and exact ties; drag to reorder."
LIMITS_TITLE = "Limits on what is deployed"
ABOUT_BUDGET = (
    "How long the whole run may take, from its start to the exported artifact: 30 s, 10 min, 1 h. "
    "Its best placement so far is kept when the time is over."
)

# -- panels: runs ------------------------------------------------------------------

LATENCIES_TITLE = "Latency of runs and baselines"
NO_RUNS_YET = (
    "Runs and baselines appear here: how fast the placement is, and what you could have without it."
)
NOTE_ON_THE_RUN = "Note on the run"
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


# -- panels: shapes ----------------------------------------------------------------

ITEMS_PER_SECOND = "Items per second"
BEST_SINGLE_TOOLCHAIN = "Best single toolchain"
CHOOSE_SHAPES = "Choose shapes…"
ABOUT_SHAPES_TABLE = "The graph shows the shape whose row is selected. A run places all of them."
SHAPES_FOLLOW_THE_RUN = "The graph shows the shape whose run is under way."
SHAPES_OF_ANOTHER_SESSION = (
    "This run was one of several; the graphs of the other shapes are in sessions of their own."
)
ABOUT_GAIN_OVER_SINGLE = (
    "How much longer the placement takes than the fastest toolchain that runs the whole model "
    "alone; negative when it is faster"
)

# -- preferences -----------------------------------------------------------------

LAYS_OUT_AGAIN = "lays out again"
MEASURES_AGAIN = "measures again on the next run"
TAKES_EFFECT_AT_ONCE = "takes effect at once"
FOLD_LONG_GRAPHS = "Fold long graphs into columns"
SHOW_THE_MINIMAP = "Show the minimap"
PANELS_FITTING = "As the window's size allows"
PANELS_AROUND = "Around the graph"
PANELS_IN_A_COLUMN = "In one column"
FOLLOW_THE_SYSTEM = "Follow the system"
TOP_TO_BOTTOM = "Top to bottom"
LEFT_TO_RIGHT = "Left to right"
SEARCH_WHEN_A_PIN_CHANGES = "Search again as soon as a pin changes"
CONFIRM_AFTER_SEARCH = "Confirm quickly in the background after such a search"
THREADS_OR_CORES = "Threads (0: physical cores)"
KEEP_A_RECOVERY_COPY = "Keep a recovery copy of every document"
ASK_BEFORE_CLOSING = "Ask before closing what is not saved"

# -- shapes dialog -----------------------------------------------------------------

ABOUT_SHAPES = (
    "The model leaves these sizes open. Each combination of the values is placed by a run of its "
    "own, and one artifact holds them all."
)
PAD_SMALLER_INPUTS = "Pad smaller inputs to the next larger shape"
ABOUT_PADDING = (
    "The exported artifact then also takes sizes in between, along the dimensions where it is "
    "proved that padding changes no result."
)
NO_NAMED_DIMENSIONS = (
    "The model names no dimension: all sizes of its inputs are fixed. Other sizes can be given "
    "under Input sizes."
)


def sizes_of_dimension(name: str) -> str:
    """Name the field of a dimension."""
    return f"Sizes of {name}"


def no_size(name: str, text: str) -> str:
    """Says that a size of a dimension cannot be read."""
    return f"{name}: {text!r} is no size; sizes are written 1, 4, 16"


def no_size_yet(name: str) -> str:
    """Says that a dimension has no size."""
    return f"{name} has no size yet; sizes are written 1, 4, 16"


def inputs_with_dimension(inputs: Sequence[str]) -> str:
    """Say which inputs have a dimension."""
    return f"A dimension of {', '.join(inputs)}"


# -- panels: toolchain list --------------------------------------------------------

TOOLCHAINS_TITLE = "Toolchains, in the order of greedy partitioning"
COMPILES_WITHOUT_MEASURING = "no device here: compiles for one, without measuring"


def only_for(devices: Sequence[str]) -> str:
    """Says that a toolchain has nothing for the chosen kind of device."""
    return f"only for {' and '.join(devices)}"


# -- panels: transitions -----------------------------------------------------------

TRANSITIONS_TITLE = "Values handed from toolchain to toolchain"
ABOUT_TRANSITIONS = (
    "Values handed over, from the row's toolchain to the column's; within one toolchain: "
    "between two of its partitions."
)

# -- shortcuts page ----------------------------------------------------------------

LIST_OF_SHORTCUTS = "List of shortcuts"
IN_THE_GRAPH = "In the graph"
MOUSE_AND_KEYS = (
    ("Wheel", "Zoom at the pointer; with Shift scroll sideways; with two fingers pan"),
    ("Drag", "Pan"),
    ("Shift+drag", "Select what the rectangle touches"),
    ("Ctrl+drag", "Zoom to an area"),
    ("Shift+click", "Add to the selection"),
    ("Double click", "Open a collapsed group, or select the partition"),
    ("Arrows", "Walk along edges"),
    ("Enter, Backspace", "Into a group, out of it"),
)

# -- welcome -----------------------------------------------------------------------

ABOUT_THE_PROGRAM = (
    "Which toolchain should run which part of a model, so that the whole is fastest?"
)
OPEN_THE_SAMPLE_MODEL = "Open the sample model"
OPEN_A_MODEL_OR_SESSION = "Open a model or session…"
OR_DROP_A_FILE = "or drop an .onnx or .collage file anywhere in this window"
HOW_IT_WORKS = "How it works"
TOOLCHAINS_ON_THIS_MACHINE = "Toolchains on this machine"
LOOKING_FOR_TOOLCHAINS = "The engine is looking for toolchains"
NO_RECENT_FILES = "Files that you open are listed here."
STARTING = (
    "Looking for toolchains… At the first start their adapters are compiled once, which takes "
    "half a minute to two minutes. A model can be opened meanwhile."
)


def examining_toolchain(number: int, total: int) -> str:
    """Say which of the toolchains the engine is looking for."""
    return STARTING.replace("toolchains…", f"toolchains: {number} of {total}.", 1)


STEPS = (
    "Open a model: its operators are drawn as a graph.",
    "Run: every sub-graph that a toolchain could take is measured, then the fastest placement is "
    "searched and confirmed end to end.",
    "Ask: select a node to see its candidates, their costs, and why one was chosen.",
    "Pin: demand a toolchain for some nodes and see at once what it costs.",
    "Export: a compiled module that runs without the explorer.",
)


def only_for_nvidia_devices(names: str) -> str:
    """Returns the line of the toolchains that are of no use on a machine without a device."""
    return f"– only for NVIDIA devices, of which there is none here: {names}"


def was_open_at_a_crash(name: str) -> str:
    """Says that work can be restored."""
    return f"{name} was open when the explorer ended unexpectedly."


# -- sentences with fields -------------------------------------------------------------


def not_written(path: str, reason: str) -> str:
    """Says that a file could not be written, and why."""
    return f"{path} could not be written: {reason}"


def cannot_be_written(path: object) -> str:
    """Says that a picture could not be written."""
    return f"{path} cannot be written"


def not_a_regular_expression(reason: object) -> str:
    """Says that a search text is no regular expression, and why."""
    return f"not a regular expression: {reason}"


def save_the_changes(names: str) -> str:
    """Returns the question before documents with changes are closed."""
    return f"Save the changes to {names}?"


def changed_on_disk(name: str) -> str:
    """Says that another program has written a file that is open."""
    return f"{name} has changed on disk."


def not_an_npz_file(name: str) -> str:
    """Says that a file that was chosen as inputs holds none."""
    return f"{name} is not an .npz file"


def only_these(label: str, detail: str) -> str:
    """Return the tip of an entry of the legend."""
    return f"{label}: {detail}. Click to see only these."


def of_what_is_deployed(label: str) -> str:
    """Returns the spoken name of a field with a limit."""
    return f"{label} of what is deployed"


def about_licences(known: str) -> str:
    """Return the tip of the field of licences.

    Args:
        known: The licences of the available toolchains; empty where there are none.
    """
    text = (
        "Runtime libraries under these licences only, by their SPDX names, separated by commas; "
        "BSD means all BSD ones."
    )
    return f"{text}\nThe toolchains here have: {known}" if known else text
