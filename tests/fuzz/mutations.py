"""Mutations that know the structure of what they change: JSON values and ONNX models.

A mutated file is usually well-formed, so that it comes past the parser and reaches the code behind.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from onnx import ModelProto

NASTY: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    10**9,
    2**63 - 1,
    2**64,
    -0.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "abc",
    "../../outside.bin",
    "a\x00b",
    "\x1b]0;PWNED\x07",
    "=cmd|' /C calc'!A0",
    "<img src=x>",
    "\ud7ff\uffff",
    "x" * 70000,
    [],
    {},
    [None],
    [0, 0],
    [-1],
    [1] * 3000,
)
"""Values that programs are seldom written for."""


def mutate_json(random: Random, data: Any) -> Any:
    """A copy of a JSON object or list with one to three changes somewhere inside."""
    data = copy.deepcopy(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(data))
        if not places:
            return data
        holder, key = random.choice(places)
        kind = random.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, other_key = random.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        elif kind == 2 and isinstance(holder, dict):
            holder[random.choice(("unknown", "__class__", "x" * 300))] = holder.pop(key)
        else:
            # A copy: later changes would otherwise change the list of values itself.
            holder[key] = copy.deepcopy(_nasty(random, holder[key]))
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    if isinstance(data, dict | list):
        for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
            yield data, key
            yield from _places(value)


def _nasty(random: Random, value: Any) -> Any:
    """A value in the place of another one, mostly of its type."""
    alike = [each for each in NASTY if type(each) is type(value)]
    return random.choice(alike if alike and random.random() < 0.7 else NASTY)


def mutate_text(random: Random, data: Any) -> bytes:
    """A JSON value with changes, as text, of which a tenth is damaged."""
    text = json.dumps(mutate_json(random, data)).encode()
    return mutate_bytes(random, text) if random.random() < 0.1 else text


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Bytes that are cut off, changed, repeated or left out somewhere."""
    at, size = random.randrange(len(data)), random.choice((1, 2, 8, 200))
    return random.choice(
        (
            data[:at],
            data[:at] + random.randbytes(size) + data[at + size :],
            data[:at] + data[at : at + size] * 50 + data[at:],
            data[:at] + data[at + size :],
        )
    )


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
    while fields := message.ListFields():
        field, value = random.choice(fields)
        repeated = hasattr(value, "append")
        items = list(value) if repeated else [value]
        if field.message_type is not None and random.random() < 0.85:
            message = random.choice(items)
            continue
        items = copy.deepcopy(items)
        message.ClearField(field.name)
        with contextlib.suppress(ValueError, TypeError):  # a value of another type or range
            if repeated:
                items = random.choice(
                    (items[1:], items * 2, items[::-1], [*items, *items[:1] * 40])
                )
                getattr(message, field.name).extend(items)
            elif field.message_type is None and random.random() < 0.8:
                nasty = _nasty(random, value)
                is_bytes = isinstance(value, bytes)
                setattr(message, field.name, str(nasty).encode() if is_bytes else nasty)
        return
