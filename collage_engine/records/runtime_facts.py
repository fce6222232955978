"""Names of the constants that say what the runtimes of toolchains bring to a deployment.

The rooms that can import toolchains write these constants into the document; the search under
deployment limits reads them in a process that imports no toolchain.
"""

BYTES = "runtime-bytes:"
"""``runtime-bytes:<name>`` in the constants: size of the libraries it brings."""
LICENCE = "runtime-licence:"
"""``runtime-licence:<name>:<SPDX>``: 1 where a library of it is under that licence."""
WEIGHTS = "weights-bytes"
