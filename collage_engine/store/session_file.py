"""Reading and writing ``*.collage``: a SQLite file with the documents of a session as JSON.

A file is written beside its final name and renamed, so that it is never half-written. It has one
table, ``documents``, with a row for each shape that the model is placed for. The SHA-256 beside
each document says whether it is what this program wrote: records that were changed by others are
refused, and need not be checked one by one. A file may come from anybody all the same: it is read
for so long and so much, and only if its whole schema is ours, since a view or a computed column is
an expression that SQLite evaluates.

What another writer of the file added in the meantime is merged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sqlite3
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from collage_engine.records.shapes import ShapeChoice
from collage_engine.records.versions import SESSION_FORMAT
from collage_engine.store.document import Document, PlacedShape
from collage_engine.support.errors import InvalidValue, SessionError, UsageError
from collage_engine.support.files import (
    LARGEST_TABLE,
    check_writable,
    locked,
    read_file,
    write_atomically,
)
from collage_engine.support.time_limits import ANSWER_S
from collage_engine.support.typed import decode

TABLE = """CREATE TABLE documents (
        position integer primary key, shape text, is_own integer, json text, sha256 text)"""
"""The whole schema, letter by letter as SQLite keeps it. ``shape`` is the choice that the user
made, as JSON; null where the model is placed for one shape only. ``is_own`` is 1 for the document
that the others belong to."""
STEPS = 20_000
"""Steps of SQLite's virtual machine between two looks at the clock. Measured: 0.2 ms of a query
that joins, 1.2 ms of one that sorts."""


def save_session(
    document: Document, path: str | Path, seen: Collection[str] | None = None
) -> Document:
    """Write a document to a file.

    Args:
        document: What is written.
        path: The file; what it holds is replaced.
        seen: Ids of the runs that the file held when it was read or written last. With them the
            file is locked, read again, and what another process has added to it is kept
            (``session.file``). None: the file is replaced, whatever it holds.

    Returns:
        The document as the file holds it now.

    Raises:
        SessionError: The file cannot be written, or holds something else than a session by now.
    """
    path = Path(path)
    try:
        with contextlib.ExitStack() as stack:
            if seen is not None:
                stack.enter_context(locked(path.resolve().parent))
                if path.exists() and path.stat().st_size:
                    document = merged(document, load_session(path), seen)
            write_atomically(path, _content(document))
    except (OSError, ValueError, sqlite3.Error) as error:  # ValueError: no name of a file
        raise SessionError(f"cannot write the session {path}: {error}") from error
    return document


def _content(document: Document) -> bytes:
    """Return the bytes of a session's file."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(f"{TABLE}; pragma user_version = {SESSION_FORMAT};")
        for position, (choice, held) in enumerate(document.placed_shapes):
            content = msgspec.json.encode(dataclasses.replace(held, shapes=[]))
            shape = msgspec.json.encode(choice).decode() if document.shapes else None
            digest = hashlib.sha256(content).hexdigest()
            row = (position, shape, held is document, content.decode(), digest)
            connection.execute("insert into documents values (?, ?, ?, ?, ?)", row)
        connection.commit()
        return connection.serialize()


def load_session(path: str | Path) -> Document:
    """Read a session.

    Raises:
        SessionError: It is no session, or one of another version of this program.
    """
    path = Path(path)
    try:
        content = read_file(path, LARGEST_TABLE)
    except (FileNotFoundError, ValueError):  # ValueError: a name that no file can have
        raise SessionError(f"there is no session file {path}") from None
    except OSError as error:
        raise SessionError(f"there is no session file {path}: {error.strerror}") from error
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            if content:  # of an empty file SQLite would say only that it has no memory
                connection.deserialize(content)
            end = time.monotonic() + ANSWER_S
            connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
            return _read(connection)
    except (sqlite3.Error, msgspec.MsgspecError, InvalidValue, MemoryError) as error:
        raise SessionError(
            f"{path} is not a readable Collage session: {str(error) or 'it takes too much memory'}"
        ) from error


def _read(connection: sqlite3.Connection) -> Document:
    (version,) = connection.execute("pragma user_version").fetchone()
    schema = connection.execute("select sql from sqlite_master").fetchall()
    if schema != [(TABLE,)] or version != SESSION_FORMAT:
        raise InvalidValue(
            f"it is no session of format {SESSION_FORMAT}, the only one that this version of "
            "Collage Explorer reads: open it with the version that wrote it"
        )
    own: Document | None = None
    shapes: list[PlacedShape] = []
    rows = connection.execute("select shape, is_own, json, sha256 from documents order by position")
    for shape, is_own, text, digest in rows:
        if hashlib.sha256(str(text).encode()).hexdigest() != digest:
            raise InvalidValue("it is damaged, or was changed by another program")
        document = decode(text, Document)
        own = document if is_own else own
        if shape is not None:
            shapes.append(PlacedShape(decode(shape, ShapeChoice), None if is_own else document))
    if own is None:
        raise InvalidValue("it holds no document")
    own.shapes = shapes
    return own


def merged(ours: Document, theirs: Document, seen: Collection[str]) -> Document:
    """Return our document with what the file holds that we have never seen.

    Args:
        ours: The document that is to be saved.
        theirs: What the file holds now.
        seen: Ids of the runs, of all shapes, that the file held when we read or wrote it last. One
            of them that ours lacks was deleted, and stays so.

    Returns:
        A document with the runs of both, the older first. Pins and settings are ours; a cost that
        only the file knows is taken over where both are of the same graph.
    """
    held = [document for _, document in theirs.placed_shapes]
    together = _with_additions(ours, held, seen)
    together.shapes = [
        PlacedShape(shape.choice, shape.document and _with_additions(shape.document, held, seen))
        for shape in ours.shapes
    ]
    return together


def _with_additions(ours: Document, held: Sequence[Document], seen: Collection[str]) -> Document:
    """Return our document of one shape with what the file's of the same shape has beside it."""
    together = Document(**vars(ours))
    theirs = next((document for document in held if ours.continues(document)), None)
    if theirs is None:
        return together
    mine = {run.id for run in ours.runs}
    new = [run for run in theirs.runs if run.id not in mine and run.id not in seen]
    together.runs = sorted([*ours.runs, *new], key=lambda run: run.started_at)
    if theirs.graph == ours.graph:
        candidates = {c.id: c for c in ours.candidates}
        for candidate in theirs.candidates:
            own = candidates.setdefault(candidate.id, candidate)
            if own.cost.state == "unknown" and own.key == candidate.key:
                candidates[candidate.id] = candidate
        together.candidates = list(candidates.values())
        together.constants = theirs.constants | ours.constants
    return together


def earlier_session(path: str | Path) -> Document | None:
    """Return what a session's file already holds.

    It is None where there is no such file, or an empty one.

    Raises:
        UsageError: Writing there would lose what is no session of this version.
    """
    check_writable(path)
    target = Path(path)
    if not target.exists() or not target.stat().st_size:
        return None
    try:
        return load_session(target)
    except SessionError as error:
        raise UsageError(f"the session would overwrite a file: {error}") from error
