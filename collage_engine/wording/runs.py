"""The sentences about a run, its figures and facts: desktop, reports and command line."""

from __future__ import annotations

# -- the three times of a partition ------------------------------------------------

ISOLATED, EXPECTED, LAST_RUN = "isolated", "expected in this model", "last run"
"""What the three times of a partition are called."""
ABOUT_EXPECTED = (
    "The cost that the search uses. Where whole placements were run, it is the cost in this model: "
    "measured there, or predicted from what was measured. Elsewhere it is the isolated cost."
)
ABOUT_ISOLATED = (
    "Measured by itself, over and over, so that its weights and code are in the nearest caches. "
    "In the model, where everything else runs in between, it takes longer."
)
TWO_COSTS = (
    "Expected: in this model, where everything else runs in between. Isolated: over and over by "
    "itself, with its weights in the caches."
)
"""Why the two costs differ that stand beside each other in the table of candidates."""
ABOUT_LAST_RUN = "Its part of the confirmed run, in which the whole exported model was profiled."
ABOUT_DIFFERENCE = "The time in the last run less the expected one."
ABOUT_REGRET = (
    "The extra time of the whole model: what the best placement with this candidate takes, less "
    "what the shown placement takes; measured where both were, else expected"
)

# -- sums and estimates ------------------------------------------------------------

ADD_UP_TO = "the partitions add up to {us}"
NO_COST_YET = "no partition has a cost yet"
SOME_HAVE_COSTS = "{known} of {partitions} have a cost"
EXPECTED_LATENCY = "expected {us}"
EXPECTED_SO = "as expected"
EXPECTED_AND_MORE = "expected {us} (measured is {off} more)"
EXPECTED_AND_LESS = "expected {us} (measured is {off} less)"
MORE, LESS = "more", "less"
LOWER_BOUND = "best by these costs: {us} (proved)"

# -- the verdict -------------------------------------------------------------------

AGAINST = "{gain} against {name}"
BEST_SINGLE = "the best single toolchain ({name}, {us})"
NEXT_SINGLE = "the next best single toolchain ({name}, {us})"
OF_LATENCY = "{name} ({us})"
TIMES_FASTER = "{factor} times faster than {other}"
TIMES_SLOWER = "{factor} times slower than {other}"
SHARE_FASTER = "{share} % faster than {other}"
SHARE_SLOWER = "{share} % slower than {other}"
NOT_DECIDED = "{other}: not decided on this machine now"
NOT_MEASURED = "The placement was not measured end to end."
COLLAGE_TAKES = "Collage's placement takes {us}."
COLLAGE_WITHIN_NOISE = "Collage's placement takes {us}, within noise of {best} ({best_us})."
COLLAGE_AGAINST = "Collage's placement takes {us}, {against} ({best_us})."
BASELINE_EXPORTED = "{winner} is exported: it takes {us}."
NOTHING_ELSE_FOUND = "The search found no other placement."
BEST_FOUND = "The best placement of the search ({toolchains})"
FOUND_NOT_MEASURED = "{found} was not measured end to end; it is {latency}."
NOT_ALLOWED = "not allowed"
ALSO = "also {names}"
TIED = "tied"
FOUND_TIED = "{found} takes {us}: a tie, and {winner} is simpler."
FOUND_SLOWER = "{found} takes {us}, {against}."

# -- what was measured -------------------------------------------------------------

FEW_MEASURED = (
    "Only {known} of {distinct} candidates were measured, too few to search. A larger budget "
    "measures more."
)
UNMEASURED = "{candidates} unmeasured"
LEFT_OUT = "{text}: the budget ended before the best placement was measured throughout"
NOT_NEEDED = "{text}: by what was measured, the best placement consists of others"
RUN_GOES_ON = "This is the best placement so far: the run goes on."
STOPPED = "The run was stopped, and its best placement so far was kept."
BUDGET_ENDED = "The run ended with {left}."
CANDIDATES_LEFT = "{left} of {distinct} candidates unmeasured"
PLACEMENTS_LEFT = "{placements} untimed"
CONFIRMED_QUICKLY = (
    "It was confirmed quickly: against the last run and the best baseline, in few rounds."
)
CONFIRMED_AGAINST_SOME = (
    "It was confirmed against the placements that may be the fastest: the time left was not "
    "expected to be enough for all."
)
CONFIRMED_BY_TRIAL = "It was not timed in a fresh process: the time had ended."

# -- ties, drift, conditions -------------------------------------------------------

NO_PLACEMENT = "no placement"
NOT_KNOWN = "not known"
DRIFT_OF_BASELINES = "baselines {gain}"
BASELINES_DRIFTED = "baselines {gain} against {run}"
ON_THREADS = "{took} on {threads}"
ROUND_TRIP = "{ns} ns for a cache line between two cores and back"
LOAD_AT_BEGINNING = "at the beginning: {load}"
LOAD_AT_END = "at the end: {load}"
NO_LOAD_AT_BEGINNING = "no other load at the beginning"
NO_OTHER_LOAD = "no other load at the beginning and the end"

# -- roofline and memory -----------------------------------------------------------

ABOUT_LEFT = "The partition's time less what it would take at those rates"
ABOUT_EFFICIENCY = "The time at those rates as a share of the partition's time"
ABOUT_GFLOPS = "Operations of convolutions and matrix products, computed directly, by the time"
ABOUT_GBPS = "Bytes of inputs, weights and outputs, by the time"
NO_ROOFLINE = "No partition has a time."
ABOVE_ROOF = "{left} are above what the best rates seen in this model allow"
HALF_IN = "; half of that is in {partitions}"
ABOUT_WEIGHTS = "The bytes of the constants that these operators read, as the model stores them"
ABOUT_INPUTS = "The bytes of the values that the partition takes from other partitions or inputs"
ABOUT_OUTPUTS = "The bytes of the values that it hands over or that leave the model"
ABOUT_INSIDE = (
    "The bytes of the values between its own operators, each once; fused kernels never write most "
    "of them"
)

# -- accuracy ----------------------------------------------------------------------

ONE_INPUT = "one input only"
CHECKED_ON = ", checked on {inputs}"
SETS_OF_INPUTS = "{count} sets of inputs"
ALL_IN_FULL = "precision: every partition computes as the model says, none in less"
NOTHING_REDUCED_KEEPS = (
    "precision: every partition computes as the model says; nothing faster in less keeps the "
    "tolerance"
)
SOME_REDUCED = "precision: {reduced} of {partitions} ({nodes}) in {precisions}{error}"
EACH_WITHIN = ", each by itself within {error}"
ERROR_NOT_KNOWN = "accuracy: not known; tolerance {tolerance}"
ERROR_OF_MODEL = (
    "accuracy: the whole model's largest error on {inputs} is {error}, the tolerance {tolerance}"
)
PRODUCTS_MAY_BE_ROUNDED = (
    "rounding: {rounded} of {products} may be rounded within the tolerance; {trials} tried with "
    "some of them rounded, or all"
)
ROUNDING_LABELS: dict[str, str] = {
    "rounded": "in reduced precision",
    "full": "product in float32",
    "without gain": "product in float32, rounding it saves nothing",
    "no product": "no product",
}
"""What reduced precision does to an operator, by its state."""
ROUNDING_NOTES: dict[str, str] = {
    "rounded": "Rounding it alone makes an error of {error}.",
    "full": "Rounding it alone would make an error of {error}.",
    "without gain": "Rounding it alone would make an error of {error}, and save nothing.",
    "no product": "",
}
"""The same as a sentence with the error of the outputs."""
REDUCED_GAIN = (
    "gain: {us} against {full_us} of the best placement without reduced precision, {factor} times "
    "as fast"
)
AMPLIFIES_ROUNDING = (
    "the model amplifies rounding: when inputs and weights change in the last bit, outputs move "
    "({moves}; otherwise {default} is allowed)"
)
OUTPUT_MOVES = "{output} by {moved}, so that an error of {allowed} is allowed there"

# -- objectives --------------------------------------------------------------------

ALL_P99 = "all times are 99th percentiles of single calls"
ALL_THROUGHPUT = (
    "all times are those of {instances} at once with {threads} each, over the calls of all of them"
)
RUNS_PER_SECOND = ", {rate} runs per second"

# -- facts -------------------------------------------------------------------------

BORDERS_OF_FORMAT = "partitions that take or give {format}"
CONVERTED = "values converted, once each"
AT_NO_COST = "at no cost"
LOWEST_PRECISION = "lowest precision admitted"
MODEL_ERROR = "error of the whole model"
ABOUT_MODEL_ERROR = "max|y−r| / max|r|, the largest over outputs and sets of inputs"
BEST_FLOAT32 = "best in float32"
LOAD_PEAK = "largest while loading"
RUN_PEAK = "largest while running"
BEFORE_LOADING = "before the model is loaded"
MODEL_WEIGHTS = "the model's weights"
WEIGHTS_HELD = "weights held by {toolchain}"
WEIGHTS_TWICE = "weights stored once more"
OF_IT_LIBRARIES = "of it runtime libraries"
PLACE_PEAK = "largest of all processes while placing"
KERNELS_THAT_MATTER = "kernels that could matter"
TUNED_NOW = "tuned in this run"
TUNED_BEFORE = "known from earlier runs"
TUNED_BETTER = "better than untuned"
CANDIDATES = "Candidates: {counts}"
DISTINCT = "{enumerated} found, {distinct} distinct"
MEASURED, AS_WHOLE_MODELS, FROM_STORE, LEFT_UNMEASURED, INVALID = (
    "measured",
    "timed as whole models only",
    "from the store",
    "left unmeasured",
    "invalid",
)
"""What became of candidates; the first four add up to the distinct ones, and invalid ones are among
the first three."""

# -- stages ----------------------------------------------------------------------

STAGE_TITLES = {
    "import": "Reading the model",
    "enumerate": "Finding candidates",
    "whole-models": "Timing whole models",
    "mixes": "Trying mixes",
    "measure": "Measuring",
    "tune": "Tuning",
    "search": "Searching",
    "calibrate": "Measuring in the model",
    "precision": "Choosing what is rounded",
    "build": "Building",
    "confirm": "Confirming end to end",
    "export": "Writing the artifact",
}
"""What the stages of a run are called for people."""

# -- memory ----------------------------------------------------------------------

PEAKS = "at most {loading} while loading, {running} while running"
PEAK = "at most {bytes}"
OF_IT_BEFORE_LOADING = "{bytes} of it before the model is loaded"
WEIGHTS = "weights {bytes}"
HELD_BY = "held by {held}"
STORED_FOR_TWO = "{bytes} of weights stored for two partitions"
ARTIFACT_SIZE = "artifact {bytes}, of it runtimes {runtimes}"
PLACING_TOOK = "placing it took at most {bytes}"

# -- colours of the graph ----------------------------------------------------------

NO_OTHER_RUN = "there is no other run to compare with"
SLOWER_IN_MODEL = "slower in the model"
FASTER_IN_MODEL = "faster in the model"

# -- Ctrl-C --------------------------------------------------------------------------

ENDING = "ending with the best placement so far; another Ctrl-C stops at once"

# -- several shapes ------------------------------------------------------------------

MEASURED_FOR_EARLIER_SHAPES = (
    "{known} of the {distinct} distinct candidates of the shapes after the first had been measured "
    "before"
)
FILES_OF_SHAPES = (
    "the files of {shapes} shapes take {together} together; apart they would take {apart}"
)
PADDED_ALONG = "inputs that are smaller along {dimensions} are padded to the next larger shape"
NOT_PADDED_ALONG = "inputs are not padded along {dimension}: {reason}"
