"""The sentences that the command line prints around its tables."""

from __future__ import annotations

# -- what was typed -----------------------------------------------------------------

NO_OPTION = "there is no option {name}"
DID_YOU_MEAN = "(did you mean {}?)"

# -- place, report -----------------------------------------------------------------

WARNING = "warning: {text}"
SESSION = "session: {path}"
ARTIFACT = "artifact: {path}"
TRACE = "trace: {path} (opens in https://ui.perfetto.dev and chrome://tracing)"
TRACE_RUN, TRACE_BETWEEN = "run", "between partitions"
NEW_TOOLCHAIN = "{folder}: pip install ./{folder}, then: collage toolchains check {name}"
ANNOTATED = "annotated model: {path}"
SESSION_OPTION = "ONNX Runtime's option {option}: {value}"
NO_PLACEMENT = "No placement."
COMPILED = "Compiled for {target}, not measured: {what}, {partitions}"
CHOSEN = "Chosen: {whose}, {us} for {nodes} in {partitions} on {target} with {threads}"
COLLAGES = "Collage's placement"
BASELINE = "the baseline {name}"
ABOUT_TIES = "→ is exported; = is as fast as →, as far as their common rounds can tell."
NO_TIME = "{name} ({kind}) has no time: {reason}"
EXPECTED = (
    "Expected: {us}, the sum of its partitions, launches and hand-overs; measured, it takes {off} "
    "{direction}."
)
MODEL_ERROR = "Largest error against the model's own result: {error} (relative){inputs}"
MEASURED_ON = "Measured on {machine}, a machine of the farm"
CLOCKS = "Processor clocks at the beginning and the end: {clocks}"
MEMORY = "Memory: {memory}"
PIN = "pin {pin}: {state}"
PIN_BECAUSE = "pin {pin}: {state}, {reason}"
PRICE = "price {us}"
LIMIT = "limit {text}"
BARRED = "May not be exported, {reason}: {names}"
FORMATS = "{count} of {partitions} take or give {formats}; {converted}"
NOTHING_CONVERTED = "nothing is converted"
ONE_CONVERTED = "{values} is converted once{took}"
SOME_CONVERTED = "{values} are converted once each{took}"
IN_ALL = ", {us} in all"

# -- toolchains --------------------------------------------------------------------

NO_DEVICE = "{name} has no device here: {reason}"
MISSING = "{name} is missing: {reason}"
NO_REASON = "its probe gave no reason"
TO_USE = "  to use it: {command}"

# -- candidates, explain -------------------------------------------------------------

CANDIDATES_LISTED = "{candidates}, {distinct:,} distinct, {unknown:,} not measured yet"
NODE = "node {number}: {title}{names}, internally {operator}"
SEVERAL_NODES = "Several nodes have this name: {numbers}; explain them by number."
EVERY_CANDIDATE = "--json has every candidate here: {count}"

# -- compare -----------------------------------------------------------------------

TWO_TIMES = "{one}: {one_us}   {other}: {other_us}"
DIFFERENCE = "difference: {by}"
NO_DIFFERENCE = "none"
BY_TOOLCHAIN = "{toolchain}: {before} → {after}"
MOVED = "{nodes} moved, {regrouped} regrouped"
MOVED_FROM_TO = "  {before} → {after}: {nodes}"
REGROUPED = "  in other partitions of the same toolchain: {nodes}"

# -- store -------------------------------------------------------------------------

FILE = "file: {path}"
NO_FILE = "it does not exist yet: nothing has been measured"
READ_ONLY = "it cannot be written here: what it holds is used, and new measurements are not kept"
SIZE = "size: {bytes}"
MEASUREMENTS = "measurements: {count}, of them {invalid} invalid"
KIND = "  {name}: {count}"
CONSTANTS = "constants of this machine: {count}"
MEASURED_FROM_TO = "measured from {oldest} to {newest}"

# -- toolchains check, export, run ---------------------------------------------------

RUN_IS_KEPT = (
    "{error}; the run is kept in {session}, and 'collage export {session} -o FOLDER' writes its "
    "artifact"
)
CANCELLED = "cancelled; what was measured is kept"
LOOKING_AT_MACHINE = "looking at what is on this machine"
NOT_CHECKED = "not made, since they rest on what failed: {checks}"
CHECKS = "{name}: {passed} of {checks} checks passed, {failed} failed"
SAMPLE_ERROR = "largest error against the sample: {error} (relative)"
THROUGHPUT = "throughput: {rate} runs per second by {instances} with {threads} each"
RATE_WHEN_EXPORTED = "{text}; {rate} when it was exported"
LOADED_IN = "loaded in {load}, first result after {first}"
LATENCY = "latency: p50 {p50}, p90 {p90}, p99 {p99} ({runs}, {threads})"
WHEN_EXPORTED = "expected:  {us} when it was exported"

NO_EXPORTED_TIME = (
    "--fail-if-slower: {path} does not say what one call took when it was exported (an artifact of "
    "several shapes says it of each, in its folders)"
)
OTHER_MACHINE = (
    "--fail-if-slower: the time of {path} was measured on {other}, and this is {here}: times of "
    "different machines are not compared"
)
SLOWER_BY = (
    "not slower than when it was exported by more than is allowed: {by}",
    "slower than when it was exported by more than is allowed: {by}",
)

# -- check -------------------------------------------------------------------------

COMPARING = "timing both in common rounds"
GATE_TITLES = {
    "passed": "{model} against {against}: **passed**",
    "failed": "{model} against {against}: **failed**",
    "tie": "{model} against {against}: **tie**, the machine is too noisy to say",
    "not compared": "{model} against {against}: **not compared**",
}
GATE_LATENCY = "{us}, the baseline {baseline}: {by}, allowed {limit}"
GATE_INTERVAL = " (99 % interval {low} to {high}, {pairs} of processes in common rounds)"
GATE_STORED = " (stored time, of another moment: what lies {noise} above that is a tie)"
GATE_NOT_COMPARED = (
    "{us}; the baseline's model file is gone and its stored time is of another machine"
)
GATE_ERROR = "largest error {error} (relative), allowed {limit}"
GATE_MEMORY = "loading adds {taken}, allowed {limit}"
GATE_MACHINE = "Machine: {machine}."
GATE_OTHER_MACHINE = (
    "The baseline was measured on another machine: {machine}. Its stored time was not used."
)
GATE_UNTOLD = "an untold one"

# -- Ctrl-C, defects -----------------------------------------------------------------

NO_WORKING_FOLDER = "the current folder does not exist any more: change to another one"
DEFECT = "a defect of Collage Explorer: {kind}: {reason} ({variable}=1 shows where)"

# -- search ----------------------------------------------------------------------------

SEARCHING = "searching; this takes at most about {seconds} s (--time-limit)"
BESIDES = "besides: {reason}"
NONE_FOUND_IN_TIME = (
    "No placement was found in time, and none is proved not to exist (--time-limit)."
)
PLACEMENT_COSTS = "The placement costs {us} µs ({bound})."
THE_LEAST = "the least"
AT_LEAST = "at least {us} µs"
ITS_CANDIDATES = "Its candidates are {names}"
IS_A_PLACEMENT = "This is a placement that keeps to all pins and limits. It costs {us} µs."
IS_NO_PLACEMENT = "This is no placement as asked for: {faults}."
MORE_FAULTS = "and {faults} (--json lists all)"
ITS_COST = "Its cost is {us} µs."
