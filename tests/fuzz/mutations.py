"""Mutations that know the structure of what they change: JSON values, ONNX models, SQLite tables.

A mutated file is usually well-formed, so that it comes past the parser and reaches the code behind.
"""

from __future__ import annotations

import copy
import json
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from onnx import ModelProto

NASTY: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    10**9,
    2**31,
    2**63 - 1,
    2**64,
    -(2**63),
    -0.5,
    1e-320,
    1e308,
    float("inf"),
    float("nan"),
    "",
    " ",
    "0",
    "abc",
    "..",
    "/",
    "../../outside.bin",
    "~nobody",
    "a\x00b",
    "\x1b]0;PWNED\x07",
    "=cmd|' /C calc'!A0",
    "<img src=x>",
    "\ud7ff\uffff",
    "ü" * 5000,
    "x" * 70000,
    [],
    {},
    [[]],
    [None],
    [0, 0],
    [-1],
    [10**9],
    {"": ""},
    [1] * 3000,
)
"""Values that programs are seldom written for."""


def mutate_json(random: Random, data: Any) -> Any:
    """A copy of a JSON value with one to three changes somewhere inside."""
    data = copy.deepcopy(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = _changed(random, data)
    return data


def _changed(random: Random, data: Any) -> Any:
    places = list(_places(data))
    if not places:
        return copy.deepcopy(random.choice(NASTY))
    holder, key = random.choice(places)
    kind = random.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, other_key = random.choice(places)
        holder[key] = copy.deepcopy(other[other_key])
    elif kind == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == 3 and isinstance(holder, dict):
        holder[random.choice(("unknown", "", "__class__", "x" * 300))] = holder.pop(key)
    elif kind == 4 and isinstance(holder[key], (int, float)):
        holder[key] = random.choice((-holder[key], holder[key] + 1, holder[key] * 1000, 0))
    elif kind == 5 and isinstance(holder[key], str):
        holder[key] = holder[key][: len(holder[key]) // 2] + random.choice(("", "\x00", "\n", "é"))
    else:
        held = type(holder[key])
        alike = [value for value in NASTY if type(value) is held]
        nasty = random.choice(alike if alike and random.random() < 0.7 else NASTY)
        holder[key] = copy.deepcopy(nasty)  # else later changes would change the list itself
    return data


def _places(data: Any) -> Any:
    """Every (container, key) in a JSON value."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield data, key
            yield from _places(value)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield data, index
            yield from _places(value)


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Bytes that are cut off, changed, repeated or swapped somewhere."""
    if not data:
        return bytes(random.randrange(256) for _ in range(20))
    at, size = random.randrange(len(data)), random.choice((1, 2, 8, 200))
    return (
        data[:at],
        data[:at] + random.randbytes(size) + data[at + size :],
        data[:at] + data[at : at + size] * random.choice((2, 50)) + data[at:],
        data[:at] + data[at + size :],
        data + data[at:],
    )[random.randrange(5)]


def mutate_model(random: Random, model: ModelProto) -> bytes:
    """A serialised model with one to three fields of its messages changed."""
    if random.random() < 0.1:
        return mutate_bytes(random, model.SerializeToString())
    changed = copy.deepcopy(model)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change_message(random, changed)
    return changed.SerializeToString()


def _change_message(random: Random, message: Any) -> None:
    """Walk down from a message by chance, and change a field where the walk ends."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        field, value = random.choice(fields)
        repeated = not isinstance(value, (str, bytes, int, float)) and hasattr(value, "append")
        inside = field.message_type is not None
        if inside and random.random() < 0.85:
            message = random.choice(list(value)) if repeated else value
            continue
        if repeated:
            _change_list(random, value, inside)
        elif inside or random.random() < 0.2:
            message.ClearField(field.name)
        else:
            _set(random, message, field, value)
        return


def _change_list(random: Random, values: Any, inside: bool) -> None:
    at, kind = random.randrange(len(values)), random.randrange(4)
    if kind == 0:
        del values[at]
    elif kind == 1:
        values.append(values[at])
    elif kind == 2:
        other = random.randrange(len(values))
        items = [copy.deepcopy(v) for v in values]
        items[at], items[other] = items[other], items[at]
        del values[:]
        values.extend(items)
    elif not inside:
        try:
            values[at] = random.choice([v for v in NASTY if type(v) is type(values[at])])
        except (ValueError, TypeError, IndexError):
            del values[at]
    else:
        values.extend([values[at]] * random.choice((2, 40)))


def _set(random: Random, message: Any, field: Any, value: Any) -> None:
    kind = bytes if isinstance(value, bytes) else type(value)
    choices = [v.encode("utf-8", "replace") if kind is bytes else v for v in NASTY if _is(v, kind)]
    for choice in random.sample(choices, len(choices)):
        try:
            setattr(message, field.name, choice)
        except (ValueError, TypeError):
            continue  # outside the range of the field's type
        return


def _is(value: Any, kind: type) -> bool:
    wanted = str if kind is bytes else kind
    return type(value) is wanted


def mutate_database(random: Random, path: Path) -> None:
    """Change a cell of a table, mostly inside the JSON that it holds, or the tables themselves."""
    if random.random() < 0.08:
        path.write_bytes(mutate_bytes(random, path.read_bytes()))
        return
    connection = sqlite3.connect(path)
    try:
        query = "select name from sqlite_master where type = 'table'"
        for _ in range(random.choice((1, 1, 2))):
            names = connection.execute(query).fetchall()  # the change before may have renamed one
            _change_table(random, connection, random.choice(names)[0])
        connection.commit()
    finally:
        connection.close()


def _change_table(random: Random, connection: sqlite3.Connection, table: str) -> None:
    rows = connection.execute(f'select rowid, * from "{table}"').fetchall()
    columns = [about[1] for about in connection.execute(f'pragma table_info("{table}")')]
    kind = random.randrange(12)
    if kind == 0:
        connection.execute(f'alter table "{table}" rename to "{table}_"')
        make = f'create view "{table}" as select * from "{table}_"'
        connection.execute(random.choice((make, "select 1")))
    elif kind == 1 and "zz" not in columns:
        connection.execute(f'alter table "{table}" rename column "{random.choice(columns)}" to zz')
    elif rows and kind == 2:
        connection.execute(f'delete from "{table}" where rowid = ?', [random.choice(rows)[0]])
    elif rows:
        row = random.choice(rows)
        held = [i for i, value in enumerate(row[1:]) if _is_json(value)]
        at = (
            random.choice(held)
            if held and random.random() < 0.8
            else random.randrange(len(columns))
        )
        value: Any = random.choice((*NASTY[:17], "abc", b"\xff\x00"))
        if at in held:
            value = json.dumps(mutate_json(random, json.loads(row[at + 1])))
        try:
            statement = f'update "{table}" set "{columns[at]}" = ? where rowid = ?'
            connection.execute(statement, [value, row[0]])
        except (sqlite3.Error, OverflowError):
            return  # a key that is taken, or a number that is no column's


def _is_json(value: Any) -> bool:
    return isinstance(value, str) and value[:1] in ("{", "[")
