"""The sentences about what a user demands: pins, limits on what is deployed, and their verdicts."""

from __future__ import annotations

# -- pins in words -----------------------------------------------------------------

NODE = "node {numbers}"
NODES = "nodes {numbers}"
AND_MORE = "{shown} and {left} more"
NOT_ON = "{nodes} not on {toolchain}"
ON_DEVICE = "{nodes} on device {device}"
ON = "{nodes} on {toolchain}"
EXACTLY = "exactly {nodes} as one partition"
TOGETHER = "{nodes} in one partition"
NAMED_NODE = "'{name}' ({type})"
NUMBERED_NODE = "node {number} ({type})"
MORE_NODES = "{nodes} and {left} more nodes"
ONE_MORE_NODE = "{nodes} and 1 more node"

# -- limits in words ---------------------------------------------------------------

ALLOWED_RUNTIMES = "only the runtimes {names}"
MOST_RUNTIMES = "at most {runtimes}"
MOST_BYTES = "at most {megabytes} MB"
MOST_MEMORY = "at most {megabytes} MB of memory while running"
HONOURED_WITH = "with {megabytes} MB"
HONOURED_WITH_AT = "with {megabytes} MB, price {price}"
ALLOWED_LICENCES = "only the licences {names}"
NOTHING = "(none)"
WEIGHTS_ARE_LARGER = "{limit} (the weights by themselves take {megabytes} MB)"
LICENCES_HERE = "{limit} (here there are {licences})"

# -- verdicts ----------------------------------------------------------------------

VERDICT = "{what}: honoured, {outcome}"
HONOURED_AT = "costs {price}"
HONOURED_AT_SHARE = "costs {price} ({share} %)"
HONOURED_FREE = "costs nothing"
HONOURED_ANYWAY = "as the best placement does anyway"
TOO_WIDE_FOR_A_PRICE = "but the graph is too wide to say what it costs exactly"
NO_TIME_FOR_A_PRICE = "but there was no time to say what it costs exactly"
NOT_DECIDED = "{pin}: it is not decided, since there is no placement to judge it by"

# -- why there is no placement -----------------------------------------------------

NO_PLACEMENT_EXISTS = "no placement exists: {reason}"
BESIDES = "; besides, "
NONE_LEFT_FOR = "no candidate is left for {nodes}"
WITH_REASON = "{sentence}: {reason}"
PIN_NOT_HONOURED = "the pin {pin} cannot be honoured"
PINS_NOT_TOGETHER = "the pins {pins} and {last} cannot hold together"
NONE_EXACTLY = "no candidate is exactly these nodes"
NONE_HOLDS_ALL = "no candidate holds all of these nodes"
NO_COMBINATION = "every node has candidates left, but no combination of them is a placement"
NONE_KEEPS_TO = "none keeps to {limits}"
WITH_PIN = "{sentence} together with the pin {pins}"
WITH_PINS = "{sentence} together with the pins {pins}"
NONE_ON_DEVICE = "no candidate for {nodes} is on the device {device}; there is only cpu"
NO_CALL = "{toolchain} and {library} compute no group of operators with this {operator} together"
NOT_BY_ITSELF = "{toolchain} does not take {operator} by itself"
STAYS_ON_THE_HOST = "{operator} stays on the host, not on {detail}"
GAINS_NOTHING = "{operator} gains nothing in {detail}"
NO_PARTITION_IS_VALID = "none of the partitions that {toolchain}'s rules propose passes its checks"
NO_RULES = "{toolchain} has no rules of its own"
NOT_OF_THIS_RUN = "{toolchain} is not among the toolchains of this run ({used})"
NOT_MEASURED_FOR = "no candidate was measured for {nodes}"
HAS_NO_CANDIDATE = "{toolchain} has no candidate for {nodes} ({why})"
NO_TOOLCHAIN = "no toolchain"
NOTHING_TAKES = "no toolchain of this run takes {nodes} ({why}); allow more toolchains"
UNDECIDED = (
    "the graph is too wide to find a placement in time, or to prove that there is none: pin some "
    "nodes, or use fewer toolchains"
)
NOT_MEASURED = "what the pins ask for has not been measured yet: run again, which measures it"

# -- the same, in the search, which knows numbers of nodes only ------------------------

NO_PLACEMENT_KEEPS_TO = "no placement keeps to {limits}"
THIS_PIN = "the pin cannot be honoured: {pins}"
THESE_PINS = "these pins cannot hold together: {pins}"
IN_BRACKETS = "{sentence} ({reason})"
MAYBE_FEWER = "{sentence}; there was no time to find out whether fewer of these are enough"
NONE_COVERS = "no measured candidate covers {nodes}"
NO_COMBINATION_AT_ALL = (
    "every node has measured candidates, but no combination of them is a placement: partitions "
    "would overlap or wait for each other, or a conversion does not exist"
)
NO_FURTHER_THAN = "{sentence}; the search gets no further than {nodes}"

# -- a placement or an artifact beyond a limit -------------------------------------

ARTIFACT_TOO_LARGE = (
    "the artifact has {megabytes} MB, more than the {most} MB asked for: its weights and runtime "
    "libraries fit, its code, samples and licences come on top"
)
BEYOND_LIMITS = "beyond the limits: {limits}"
AGAINST_PIN = "against the pin {pins}"
AGAINST_PINS = "against the pins {pins}"
NOT_AMONG_RUNTIMES = "{names} is not among the runtimes"
MEGABYTES = "{megabytes} MB"
BRINGS_LICENCES = "{runtime} brings {licences}"

# -- pins as they are typed ----------------------------------------------------------

HOW_PINS_ARE_WRITTEN = (
    "write 'GLOB[,GLOB]=WHAT' with WHAT one of NAME, !NAME, exactly, exactly:NAME, together, "
    "@DEVICE; a node's name that holds commas or brackets may stand in double quotes"
)
NO_PIN = "{pin!r} is not a pin: {how}"
PIN_WITHOUT_NODES = "the pin {pin!r} names no node: {how}"
PIN_WITHOUT_DEVICE = "the pin {pin!r} names no device after '@': {how}"
UNKNOWN_TOOLCHAIN = "the pin {pin!r}: there is no toolchain {name!r}; known are {known}"
CLEANED_UP = (
    "the pin {pin!r}: {glob!r} matches only {node!r}, which clean-up removed (it is computed once, "
    "when the model is read)"
)
MATCHES_NOTHING = "the pin {pin!r}: {glob!r} matches no node of the model"
MATCHES_NOTHING_NEAR = "the pin {pin!r}: {glob!r} matches no node of the model; near are {near}"
PIN_ON = "{kind} pin on {nodes}"
PIN_DROPPED = "{pin}: none of its nodes is in this model; the pin is dropped"
NODES_GONE = "{pin}: no longer in the model: {nodes}"

# -- what is wrong with a placement that was given -------------------------------------

IN_NO_CANDIDATE = "node {node} is in no candidate of the placement"
WAIT_FOR_EACH_OTHER = "candidates {names} wait for each other"
NO_SUCH_CANDIDATE = "there is no candidate {name}"
CANNOT_BE_CHOSEN = "candidate {name} is {state}, so it cannot be chosen"
IN_TWO_CANDIDATES = "node {node} is in candidate {one} and in candidate {other}"
USES_OTHERS = "it uses {names}, which is not allowed"
USES_MORE = "it uses {runtimes}; at most {most} are allowed"
TAKES_MORE = "it takes {bytes} bytes; at most {most} are allowed"
LICENCE_NOT_ALLOWED = "{name} is under {licence}, which is not allowed"
NO_CONVERSION = "the value of node {node} cannot be converted from {source} to {target}"
