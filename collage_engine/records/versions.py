"""The versions of everything that outlives a process or crosses its border, and what a bump means.

Raise a number only for the reason that stands beside it: a field that is added with a default needs
none, because records are read with their defaults and unknown fields are left out. Whoever raises a
number adds the reader or migration in the same change, and a test with a file written before it
(``tests/data/old_versions``).

=====================  =========================================================================
STORE_SCHEMA           The tables of the measurement store. A bump comes with a module in
                       ``store/migrations`` that brings a store one version on; the rows stay
                       usable. A store of a newer version is refused with a sentence.
STORE_EXPORT           The JSON lines of ``collage store export``. A bump comes with a reader of the
                       older lines in ``Store.import_``.
MEASURING_PROTOCOL     How costs are measured. It is part of every measurement's key: a bump makes
                       all stored costs unknown, so raise it only when old costs no longer compare.
                       (Keys also hold the hash of a toolchain's sources and the versions of its
                       library: changing those invalidates that toolchain's costs alone.)
SESSION_FORMAT         The tables and records of ``*.collage``. Raise it when an older program would
                       misunderstand the file, which it then opens for reading only. Files of all
                       older formats must stay readable: ``session/file.py`` brings them up to date.
                       Version 2 has the table ``shapes``, with the documents of the other shapes
                       that a model is placed for; a session for one shape is still of version 1.
ARTIFACT_FORMAT        The exported folder. An artifact carries its own loaders, so old ones run
                       without this program; a bump says that `collage run` needs another reader,
                       which joins the older ones in ``artifact/loader/run_artifact.py``. Version 2
                       may have entries for several shapes, whose modules stand in shared pieces.
SERVICE_PROTOCOL       The requests and answers of the service. Both sides must have the same one,
                       because desktop and engine are installed together.
=====================  =========================================================================
"""

STORE_SCHEMA = 3
STORE_EXPORT = 2
MEASURING_PROTOCOL = 4
SESSION_FORMAT = 2
ARTIFACT_FORMAT = 2
SERVICE_PROTOCOL = 1
