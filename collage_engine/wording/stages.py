"""The sentences that a run says while it goes on: details of its stages, and its warnings."""

from __future__ import annotations

# -- details of stages ---------------------------------------------------------------

WHAT_TOOLCHAINS_RUN = "what the toolchains can run of the model"
LOOKING_FOR = "looking for {toolchain}; what it needs is compiled, once per machine"
BUILDING = "building {name}"
CHECKING = "checking {name}"
TIMING = "timing {name}"
ROUND = "round {number} of {rounds}, {contenders}"
NOT_REACHED = "the run ended before its turn came"
WHOLE_MODELS_TRIED = "{placements} tried, {single} of them on one toolchain"
FASTEST_TRIED = "{tried}; the fastest is {name} with {took}"
NONE_EXPORTABLE = "{tried}; none can be exported"
PROFILING_GROUPS_ON = "what each group of operators takes on {toolchain}, inside the model"
NO_MIX_PROMISES = "{groups} of operators, of which no mix of toolchains promises a gain"
NO_MIX_RAN = "{groups} of operators; no mix of toolchains could be timed"
FASTEST_MIX = (
    "{groups} of operators; the fastest mix has {partitions} and takes {ms} ms, {share} % against "
    "the fastest toolchain alone"
)
RECORDING_VALUES = "recording the model's own values"
NO_SEARCH_WITHIN_MODEL = "no search on the costs within the model: {reason}"

# -- warnings ------------------------------------------------------------------------

NOT_READY_ONE = (
    "{toolchains} is left out of this run: it was not ready within {share} of the budget. What "
    "a toolchain needs is compiled and tried once per machine; run `collage toolchains` "
    "beforehand, or give a larger --budget"
)
NOT_READY = (
    "{toolchains} are left out of this run: they were not ready within {share} of the budget. What "
    "a toolchain needs is compiled and tried once per machine; run `collage toolchains` "
    "beforehand, or give a larger --budget"
)
NOTHING_MEASURED = (
    "nothing was measured ({reason}): the placement follows the order of the toolchains, and "
    "nobody knows whether it is fastest"
)
NOTHING_TUNED = "nothing was tuned ({reason}): kernels are tuned by timing them there"
EMULATING = "what rounding each product does"
BUILDING_PRECISION = "the whole model with some products rounded"
PRODUCTS_ROUNDED = "{rounded} of {products} products may be rounded"
NOT_EMULATED = (
    "which products may be rounded is not known, so that only whole models are tried in reduced "
    "precision: {reason}"
)
AMPLIFIES_ROUNDING = (
    "the model amplifies rounding: its output {output!r} moves by {moved} when inputs and weights "
    "change in the last bit, and the given tolerance of {tolerance} is hardly more; what only "
    "computes in another order may be refused"
)
LARGE_TOLERANCE = "errors of {which} up to {bound} of its largest value are taken for right: {why}"
OF_OUTPUT = "{output!r}"
OF_OUTPUTS = "an output"
BY_ROUNDING = "the model amplifies rounding (--tolerance sets another bound)"
BY_PRECISION = "as much is explained by roundings to the precision of its values"
NOT_CHECKED = (
    "not checked: {outputs}: on no range of random inputs is any of the true values finite; give "
    "inputs that the model is made for with --inputs, since wrong results would not be noticed"
)
STATED_OTHERWISE = (
    "the test data says something else of the output {output!r} than the model's file computes "
    "(relative error {error}); placements are compared with what the file computes"
)
NOT_CHECKED_GIVEN = (
    "not checked: {outputs}: on the given inputs all of the true values are NaN or infinite, so "
    "that wrong results would not be noticed; give others with --inputs"
)
PARTLY_CHECKED = (
    "not checked: {shares}: on random inputs these values are NaN or infinite; inputs that the "
    "model is made for (--inputs) may check them"
)
NOTHING_CHECKED = (
    "no output could be checked: on no range of random inputs is any of the true values finite; "
    "give inputs that the model is made for with --inputs FILE.npz, or export it as it is with "
    "--unchecked (in the desktop: run again with Export what cannot be checked)"
)
NOTHING_CHECKED_GIVEN = (
    "no output could be checked: on the given inputs all of the true values are NaN or infinite; "
    "give others with --inputs FILE.npz, or export it as it is with --unchecked (in the desktop: "
    "run again with Export what cannot be checked)"
)
MANY_REFUSED = (
    "{refused} of {ran} contenders were refused because their outputs differ from the reference's "
    "by {least} to {most}, more than the tolerance of {tolerance}; what is left may be much slower "
    "than they are (--tolerance admits more of floats, and never of whole numbers)"
)
UNSCHEDULED = (
    "the exported placement runs {kernels} as TVM's plain loops, which are tens of times slower "
    "than scheduled kernels: none of our rules could write them"
)
MEASURING_ENDED_EARLY = "measuring came to an early end: {error}"

# -- why a run ends without a placement ------------------------------------------------

BUDGET_BEFORE_A_COVER = (
    "the budget was spent before every node had a measured candidate: give a larger --budget; what "
    "was measured is kept"
)
BUDGET_BEFORE_A_COVER_BECAUSE = (
    "no placement has run with right numbers ({reasons}), and the budget was spent before every "
    "node had a measured candidate: give a larger --budget; what was measured is kept"
)
NOTHING_RIGHT_FOR = (
    "no placement exists: no candidate of {nodes} runs with right numbers ({reasons})"
)
NOT_WRITTEN = "the artifact could not be written"
DISK_FULL = (
    "no space left on the disk of {path}, where a run keeps what it needs on the way: free some, "
    "or set TMPDIR to a folder with more"
)
