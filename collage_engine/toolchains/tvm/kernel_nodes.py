"""Keeps track of which nodes of the graph a kernel computes, from Relax's operators to the kernels.

Relax carries no mark of an operator's origin through its passes, but until operators are fused a
variable keeps its name: the value of a node is called after it. Fusing renames results and has
equal groups share one function. The calls are therefore followed through the fused functions: a
value is the one that called the same kernel on the same values before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, Tuple, TupleGetItem

Key: TypeAlias = Any
"""Identifies a value: what it calls, and the keys of what it reads."""
Computed: TypeAlias = frozenset[int]
"""The numbers of the operators that a value belongs to."""


class NamingBuilder(relax.BlockBuilder):  # type: ignore[misc,unused-ignore]
    """A block builder that calls what it emits after nodes of the graph."""

    hint = ""

    def name_by(self, nodes: Iterable[int]) -> None:
        """Call what is emitted from now on after these nodes."""
        # An end without a digit, since TVM replaces the digits at the end of a name.
        self.hint = "node" + "".join(f"{index}_" for index in nodes)

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        """Emit a value, as ``BlockBuilder`` does."""
        return super().emit(expr, name_hint or self.hint)


def named_nodes(name: str) -> Computed:
    """Return the nodes that a variable is called after; none where it is called otherwise."""
    found = re.match(r"node((?:\d+_)+)", name)
    return frozenset(map(int, found[1].split("_")[:-1])) if found else frozenset()


def nodes_of_calls(legal: tvm.IRModule, fused: tvm.IRModule) -> list[tuple[str, Computed]]:
    """Return what each call of a fused module computes: its callee, and nodes of the graph.

    Args:
        legal: The module before its operators are fused; its values are called after nodes.
        fused: The module afterwards, whose ``main`` calls groups and single kernels.
    """
    values = _Values(legal["main"])
    known: dict[str, Key] = {str(p.name): str(p.name) for p in fused["main"].params}
    calls = []
    for name, value in _bindings(fused["main"]):
        callee = _callee(value)
        if callee is None:
            known[name] = values.key(value, known)
            continue
        computed: list[str] = []
        if isinstance(value.op, GlobalVar):
            group = fused[callee]
            inside = {
                str(parameter.name): values.key(argument, known)
                for parameter, argument in zip(group.params, value.args, strict=True)
            }
            for inner, made in _bindings(group):
                inside[inner] = values.take(made, inside, computed)
            known[name] = values.key(group.body.body, inside)
        else:
            known[name] = values.take(value, known, computed)
        calls.append((_text(callee), Computed().union(*map(values.owner, computed))))
    return calls


class _Values:
    """The values of a function before its operators are fused."""

    def __init__(self, function: relax.Function) -> None:
        self._made = dict(_bindings(function))
        self._readers: dict[str, list[str]] = {}
        """The values that are made of a value."""
        self._waiting: dict[Key, list[str]] = {}
        """The values of a key that were not come across so far, in order."""
        known: dict[str, Key] = {}
        for name, value in self._made.items():
            for read in _variables(value):
                self._readers.setdefault(read, []).append(name)
            if _callee(value) is None:
                known[name] = self.key(value, known)
            else:
                self._waiting.setdefault(self.key(value, known), []).append(name)

    def key(self, value: Any, known: dict[str, Key]) -> Key:
        """Return what identifies a value.

        Args:
            value: An expression.
            known: What identifies variables, by their names; another one is identified by its name.
        """
        if isinstance(value, relax.Var):
            return known.get(str(value.name), str(value.name))
        if isinstance(value, TupleGetItem):
            whole = self.key(value.tuple_value, known)
            return whole[1][value.index] if whole[0] == "tuple" else ("field", whole, value.index)
        if isinstance(value, Tuple):
            return "tuple", tuple(self.key(field, known) for field in value.fields)
        if isinstance(value, Call):
            return str(value.op), tuple(self.key(arg, known) for arg in value.args)
        return _text(value) if isinstance(value, GlobalVar | relax.ExternFunc) else hash(value)

    def take(self, value: Any, known: dict[str, Key], computed: list[str]) -> Key:
        """Return what identifies a value of the fused module; note which value it was before."""
        key = self.key(value, known)
        before = self._waiting.get(key)
        if before is None:
            return key
        # Equal computations have one key; they are come across in their order.
        name = before.pop(0) if len(before) > 1 else before[0]
        computed.append(name)
        return name

    def owner(self, name: str) -> Computed:
        """Return the nodes of a value; one without is a step on the way to what reads it."""
        at = name
        while not named_nodes(at) and at in self._readers:
            at = self._readers[at][0]
        sources = [] if named_nodes(at) else _variables(self._made[name])
        return named_nodes(at).union(*map(named_nodes, sources))


def _bindings(function: relax.Function) -> Iterator[tuple[str, Any]]:
    """Return the values of a function by the names of their variables."""
    for block in function.body.blocks:
        for binding in block.bindings:
            yield str(binding.var.name), binding.value


def _variables(value: Any) -> list[str]:
    """Return the names of the variables that a value is made of."""
    return [str(variable.name) for variable in relax.analysis.free_vars(value)]


def _callee(value: Any) -> Any:
    """Return the group, kernel or library's function that a value calls; None: it calls none."""
    if not isinstance(value, Call):
        return None
    if isinstance(value.op, GlobalVar):
        return value.op
    first = value.args[0] if value.args else None
    return first if isinstance(first, GlobalVar | relax.ExternFunc) else None


def _text(callee: Any) -> str:
    return str(callee.name_hint if isinstance(callee, GlobalVar) else callee.global_symbol)
