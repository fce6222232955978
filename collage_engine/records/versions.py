"""The versions of everything that outlives a process or crosses its border.

A program reads and writes one version of each, and says so in a sentence where it meets another. A
number is raised for the reason that stands beside it. A field that is added with a default needs
none, because records are read with their defaults and unknown fields are left out.

=====================  =========================================================================
STORE_SCHEMA           The tables of the measurement store (``store/store.py``).
STORE_EXPORT           The JSON lines of ``collage store export``.
MEASURING_PROTOCOL     How costs are measured. It is part of every measurement's key: a bump makes
                       all stored costs unknown, so raise it only when old costs no longer compare.
                       (Keys also hold the hash of a toolchain's sources and the versions of its
                       library: changing those invalidates that toolchain's costs alone.)
                       Version 8 has a canonical form of operators and values.
SESSION_FORMAT         The records of ``*.collage`` (``store/session_file.py``).
ARTIFACT_FORMAT        The exported folder. An artifact carries its own loaders, so it runs without
                       this program and beside any version of it.
SERVICE_PROTOCOL       The requests and answers of the service. Both sides must have the same one,
                       because desktop and engine are installed together.
__version__            The project's; the wheel takes it from here.
=====================  =========================================================================
"""

__version__ = "0.1.0"
STORE_SCHEMA = 5
STORE_EXPORT = 3
MEASURING_PROTOCOL = 8
SESSION_FORMAT = 6
ARTIFACT_FORMAT = 6
SERVICE_PROTOCOL = 3
