"""The headings, column titles and sentences of the HTML report."""

from __future__ import annotations

# -- the first page ----------------------------------------------------------------

TITLE = "Placement of {name}"
MEASURED = "measured end to end"
EXPECTED = "expected"
AGAINST_EXPECTED = "measured against expected"
LARGEST_ERROR = "largest relative error of the outputs"
PARTITIONS = "partitions"
NODES = "nodes"
PEAK_MEMORY = "peak memory"
LOWER_BOUND = "best by these costs (proved)"
CONDITIONS = "Conditions of every number below"

# -- accuracy ----------------------------------------------------------------------

ACCURACY = "Accuracy"
TRIED_FOR_ACCURACY = "Whole models with some products rounded, or all"
PRODUCTS_ROUNDED = "products rounded"
EMULATED_ERROR = "emulated error"
MODEL_ERROR = "error of the whole model"

# -- baselines ---------------------------------------------------------------------

BASELINES = "Against every baseline"
PLACEMENT = "placement"
KIND = "kind"
MEDIAN = "median"
PERCENTILES = "20–80 %"
AGAINST_CHOSEN = "against the chosen one"
NOT_MEASURED = "not measured"
ABOUT_LATENCIES = (
    "The whole model, end to end, on {device} with {threads}, timed in interleaved rounds. The "
    "range is from the 20th to the 80th percentile of the rounds."
)
TIES = (
    "Tied with {chosen}: {names}. In the rounds that they ran together they are within 1 %, or "
    "within 3 % and a signed-rank test does not tell them apart."
)
NO_TIES = "No other placement is tied with {chosen}."

# -- other runs --------------------------------------------------------------------

INSTANCES = "Instances at once"
SHAPES = "Shapes in one artifact"
RUNS = "Runs of this session"
ABOUT_RUNS = (
    "Differences are those of each run from {run}: a negative one was faster. The drift is how "
    "much slower the same baselines were in that run. An operator is moved where it runs on "
    "another toolchain, and regrouped where its partition holds other operators."
)
RUN = "run"
EXPORTED = "exported"
LATENCY = "latency"
AGAINST_THIS_RUN = "against this run"
DRIFT = "drift of the baselines"
MOVED = "moved"
REGROUPED = "regrouped"
THREADS = "threads"
STARTED = "started"

# -- the graph and its partitions --------------------------------------------------

GRAPH = "The graph, coloured by the chosen toolchains"
COLLAPSED = (
    "Each box is a partition. The desktop shows the single operators, and so does the SVG export."
)
ABOUT_PARTITIONS = "{sum}; with launches and hand-overs, {total} are expected"
ABOUT_TIMES = (
    "Isolated: the candidate measured by itself. Expected in this model: the cost that the search "
    "used. Last run: the partition's time while the whole exported model was profiled."
)
ID = "id"
TOOLCHAIN = "toolchain"
PRECISION = "precision"
ONNX_NODES = "{count} ONNX nodes"
ROOFLINE = "Achieved rates (roofline)"
ABOUT_ROOFLINE = (
    "The roof is what a partition would take at the best rates, in operations and in bytes a "
    "second, that any measured candidate of this model achieved on this machine."
)
TIME = "time"
GFLOPS = "GFLOP/s"
GBPS = "GB/s"
ROOF = "roof"
LEFT_TO_WIN = "above the roof"
OF_ROOFLINE = "of the roofline"
OTHERS = "The other {count} partitions"
MEMORY_BY_PARTITION = "Memory of each toolchain and partition"
ABOUT_MEMORY = (
    "Weights and values are counted from the types in the graph. What a toolchain holds, packed as "
    "it computes with it, was measured in the process that confirmed the run."
)
WEIGHTS = "weights"
GIVEN = "given to it"
PACKED = "held, packed"
INPUTS = "inputs"
OUTPUTS = "outputs"
INSIDE = "inside"
CONVERTED = "Values that are converted between partitions"
OPERATOR = "operator"
FROM = "from"
TO = "to"
ONCE = "expected, once"
OUTSIDE = "Kernels outside every partition"
KERNEL = "kernel"
CALLS = "calls"
HANDED_OVER = "Values handed from one toolchain (row) to another (column)"

# -- constraints -------------------------------------------------------------------

LIMITS = "Limits on what is deployed"
LIMIT = "limit"
PINS = "Pins"
PIN = "pin"
VERDICT = "verdict"
PRICE = "price"
REASON = "reason"

# -- the end -----------------------------------------------------------------------

HOW_FOUND = "How it was found"
SECONDS = "The stages took: {stages}."
VERSION = "version"
STATE = "state"
AVAILABLE = "available"
FOOT = "Collage Explorer {version} · model SHA-256 {hash}"
