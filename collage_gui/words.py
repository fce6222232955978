"""The fixed sentences of the desktop, by subject, so that their wording can be reviewed here.

Titles and tips of actions are in ``actions.py``. Sentences about figures are shared with reports
and the command line and come from ``collage_engine.drawing``.
"""

from __future__ import annotations

from collections.abc import Sequence

# -- banner ------------------------------------------------------------------------

SHOW_THE_WHOLE_MESSAGE = "Show the whole message"

# -- command palette ---------------------------------------------------------------

PALETTE_QUESTION = "What do you want to do?"

# -- document window: export controller --------------------------------------------

EXPORTING_THE_ARTIFACT = "Exporting the artifact…"

# -- document window: find bar -----------------------------------------------------

NAME_OPERATOR_OR_SHAPE = "Name, operator or shape"
FIND_IN_THE_GRAPH = "Find in the graph"

# -- document window: pin controller -----------------------------------------------

NO_TOOLCHAINS_YET = "The engine has not named its toolchains yet."

# -- document window: run controller -----------------------------------------------

LOOKING_FOR_CANDIDATES = "Looking for candidates…"
BASELINE_OF_THE_NEXT_RUN = "This placement is a baseline of the next run."
NO_RUNNER_UP_YET = "The engine has not named a runner-up yet."
RUN_CANCELLED = "The run was cancelled; what was measured is kept."

# -- document window: split view ---------------------------------------------------

SECOND_GRAPH = "Graph of the compared placement"
SECOND_PLACEMENT = "Placement in the second view"
ABOUT_DIFFERENCES_ONLY = "Dim the operators that both placements run in the same partition"
CLOSE_THE_SPLIT_VIEW = "Close the split view"

# -- graph view: canvas ------------------------------------------------------------

ABOUT_GRAPH = "The dataflow graph. The Model tab lists the same operators for screen readers."

# -- graph view: minimap -----------------------------------------------------------

ABOUT_MINIMAP = "The whole graph. Drag to move the view."

# -- main window: documents --------------------------------------------------------

NO_SAMPLE_MODEL = "The sample model is not installed."
RUN_OF_THE_EARLIER_FILE = "A run of the earlier file is under way. Stop it, then reload."

# -- main window: engine -----------------------------------------------------------

ASK_CONNECTION = "Where the engine runs:\nlocal, ssh:HOST, or python:/path/to/python"

# -- main window: menus ------------------------------------------------------------

CLEAR_THIS_LIST = "Clear this list"

# -- main window: toolbar ----------------------------------------------------------

ABOUT_THREADS = "auto: one thread for each physical core"
STOP_THE_RUN = "Stop the run"

# -- main window: window -----------------------------------------------------------

ABOUT_CONNECTION = "Where the engine runs. Click to connect to another engine."

CREDITS = (
    "After Collage (Jeon et al., PACT 2022) and TVM RFC 0062.\n"
    "Font: Inter, SIL Open Font License 1.1."
)

# -- panels: all runs --------------------------------------------------------------

ABOUT_ALL_RUNS = "Each run against the shown one. A double click shows a run."

# -- panels: candidates ------------------------------------------------------------

ABOUT_SPREAD = "Half of what lies between the 20th and the 80th percentile"
NO_COSTS_YET = "Choose Run: costs appear here once the candidates are measured."
STATE_OF_CANDIDATES = "State of candidates"
MEASURE_ON_EVERY_TOOLCHAIN = "Measure on every toolchain now"
MEASURE_AGAIN_LONGER = "Measure again, longer"
SELECT_FOR_CANDIDATES = "Select a node or a partition to see only its candidates."

# -- panels: changes ---------------------------------------------------------------

SHOW_IN_GRAPH = "Show in graph"

# -- panels: facts -----------------------------------------------------------------

ABOUT_FACTS = "Limits, accuracy, memory, formats and tuning of the run"

# -- panels: inside ----------------------------------------------------------------

SELECT_FOR_CODE = "Select a node or a candidate to see its code."
ATTRIBUTES_TYPES_AND_WEIGHTS = "Attributes, types and weights"
NODES_THAT_RUN_TOGETHER = "ONNX nodes that run together"
NODES_NOT_LISTED = "{nodes} more, which are not listed"
LIBRARY_PLAN = "The library's plan"
ASKING_THE_ENGINE = "Asking the engine…"
NO_SUCH_TEXT = "The toolchain gives no such text."

# -- panels: limits form -----------------------------------------------------------

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

# -- panels: machines --------------------------------------------------------------

NO_FARM = "No farm is configured."

# -- panels: memory ----------------------------------------------------------------

WEIGHTS_OF_EACH_TOOLCHAIN = "Weights of each toolchain"
BYTES_OF_EACH_PARTITION = "Bytes of each partition"
NO_PLACEMENT = "There is no placement yet."

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

# -- panels: pins ------------------------------------------------------------------

ABOUT_PRICE = "The price is the cost with this pin less the cost without it."
ABOUT_PRICE_OF_PIN = "The cost with this pin less the cost without it, with all other pins"
NO_PINS = (
    "There are no pins. Select nodes and press P to demand a toolchain for them, or Shift+P to "
    "forbid one. A search then says what each pin costs, or why it is infeasible."
)

# -- panels: precision choice ------------------------------------------------------

ABOUT_PRECISION = "The lowest that candidates may compute in, within the tolerance"

# -- panels: progress --------------------------------------------------------------

STOP_AND_KEEP = "Stop and keep"
ABOUT_STOP_AND_KEEP = "End the run with the best placement so far, which is confirmed quickly"
ABOUT_CANCEL = "End the run without a result; what was measured is kept"
MEASUREMENTS_ARE_KEPT = "What was measured is kept."

# -- panels: roofline --------------------------------------------------------------

LEFT_TO_WIN = "Left to win"
OF_THE_ROOFLINE = "Of roofline"
ROOFLINE_TITLE = "Time above the certified bounds"

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
NO_FARM_CHOSEN = "none: this machine measures"
NAME_OF_THE_RUN = "Name of the run"
CHECK_BEFORE_RUNNING = "Check before running"
ABOUT_CHECK = "What a run would do, without measuring anything"
ABOUT_ORDER_OF_TOOLCHAINS = "The order decides greedy partitioning and exact ties; drag to reorder."
LIMITS_TITLE = "Limits on what is deployed"

# -- panels: runs ------------------------------------------------------------------

LATENCIES_TITLE = "Latency of runs and baselines"
NO_RUNS_YET = (
    "Runs and baselines appear here: how fast the placement is, and what you could have without it."
)
NOTE_ON_THE_RUN = "Note on the run"

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

# -- shapes dialog -----------------------------------------------------------------

ABOUT_SHAPES = (
    "The model leaves these sizes open. Each combination of the values is placed by a run of its "
    "own, and one artifact holds them all."
)
PAD_SMALLER_INPUTS = "Pad smaller inputs to the next larger shape"
ABOUT_PADDING = (
    "The exported artifact then also takes sizes in between, along the dimensions where a check on "
    "values shows that padding changes no result."
)
NO_NAMED_DIMENSIONS = (
    "The model names no dimension: all sizes of its inputs are fixed. Other sizes can be given "
    "under Input sizes."
)


def sizes_of_dimension(name: str) -> str:
    """Name the field of a dimension."""
    return f"Sizes of {name}"


def inputs_with_dimension(inputs: Sequence[str]) -> str:
    """Say which inputs have a dimension."""
    return f"A dimension of {', '.join(inputs)}"


# -- panels: toolchain list --------------------------------------------------------

TOOLCHAINS_TITLE = "Toolchains, in the order of greedy partitioning"

# -- panels: transitions -----------------------------------------------------------

TRANSITIONS_TITLE = "Values handed from toolchain to toolchain"
ABOUT_TRANSITIONS = (
    "Values handed over, from the row's toolchain to the column's; within one toolchain: "
    "between two of its partitions."
)

# -- shortcuts page ----------------------------------------------------------------

LIST_OF_SHORTCUTS = "List of shortcuts"

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


# -- sentences with fields -------------------------------------------------------------


def not_written(path: str, reason: str) -> str:
    """That a file could not be written, and why."""
    return f"{path} could not be written: {reason}"


def not_a_regular_expression(reason: object) -> str:
    """That a search text is no regular expression, and why."""
    return f"not a regular expression: {reason}"


def save_the_changes(names: str) -> str:
    """The question before documents with changes are closed."""
    return f"Save the changes to {names}?"


def changed_on_disk(name: str) -> str:
    """That another program has written a file that is open."""
    return f"{name} has changed on disk."


def asking_the_farm(address: str) -> str:
    """That the engine asks a farm, and there is no answer yet."""
    return f"Asking {address} for its machines…"


def not_an_npz_file(name: str) -> str:
    """That a file that was chosen as inputs holds none."""
    return f"{name} is not an .npz file"


def only_these(label: str, detail: str) -> str:
    """Return the tip of an entry of the legend."""
    return f"{label}: {detail}. Click to see only these."


def of_what_is_deployed(label: str) -> str:
    """The spoken name of a field with a limit."""
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
