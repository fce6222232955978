"""Keeps large weights as files by their content, which all covers of a model share.

Modules are built and linked without a copy of them: where TVM's virtual machine has a large
constant there is a *mark*, a short tensor that names the file, and the bytes of toolchains' modules
are cut where they hold weights of the model as it has them. ``model.so`` then holds modules of kind
``KIND``, which the loaders of artifacts make whole (``with_weights`` in ``run_artifact.py``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.support.errors import ArtifactError, ToolchainError
from collage_engine.support.files import write_atomically

KIND = b"collage.weights"
"""Kind of a module that names files. Its bytes are fields behind their lengths: the kind of the
module that it stands for; then the bytes of that one, in which every second field is the name of a
file whose content belongs there."""
FOLDER = "weights"
"""Folder of these files beside ``model.so``."""
LEAST_BYTES = 1 << 16
"""Bytes of a weight that gets a file, at least; chosen: a file takes some 20 µs whenever a module
is built or loaded, in which as many bytes are copied."""

_MAGIC = b"\0collage weight\0"
"""How a mark begins. The file's name follows, then what precedes the values of the constant for
which it stands, behind its length."""
NAME_DIGITS = 32
"""Hexadecimal digits of a file's name: 128 bits of the digest of its content."""


def _head(kind: tuple[int, int, int], shape: Sequence[int], size: int) -> bytes:
    """Return what precedes a tensor's values where TVM writes it (``SaveDLTensor``).

    Args:
        kind: Code, bits and lanes of its element type.
        shape: Its extents.
        size: Bytes of its values.
    """
    tensors, cpu = 0xDD5E40F096B4A13F, (1, 0)
    begin = struct.pack("<QQiiiBBH", tensors, 0, *cpu, len(shape), *kind)
    return begin + struct.pack(f"<{len(shape) + 1}q", *shape, size)


class SharedWeights:
    """The large weights of a model's covers, each written once.

    Args:
        folder: Where the files lie, as long as covers are built.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _keep(self, weight: bytes | np.ndarray) -> str:
        """Return the name of the file with a weight's bytes, which is written unless it is there.

        Raises:
            ArtifactError: It cannot be written.
        """
        data = _bytes_of(weight).data
        name = hashlib.sha256(data).hexdigest()[:NAME_DIGITS]
        file = self.folder / name
        try:
            if not file.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(file, bytes(data))
        except OSError as error:
            raise ArtifactError(f"{file} cannot be written: {error.strerror or error}") from error
        return name

    def marked(self, module: Any) -> Any:
        """Return a lowered partition with marks in place of the large constants of its ``main``."""
        from tvm.relax.expr_functor import PyExprMutator, mutator

        @mutator
        class Marking(PyExprMutator):  # type: ignore[misc,unused-ignore]
            visit_generic_const_ = staticmethod(self._mark)

        module = module.clone()
        module["main"] = Marking().visit_expr(module["main"])
        return module

    def _mark(self, value: Any) -> Any:
        """Return the mark for a large constant; other values as they are."""
        import tvm
        from tvm.ir import GenericConst

        tensor = value.value if isinstance(value, GenericConst) else None
        if not isinstance(tensor, tvm.runtime.Tensor):
            return value
        array = tensor.numpy()
        if array.nbytes < LEAST_BYTES:
            return value
        kind = tensor.dtype.type_code, tensor.dtype.bits, tensor.dtype.lanes
        head = _head(kind, tuple(map(int, tensor.shape)), array.nbytes)
        mark = _MAGIC + self._keep(array).encode() + with_length(head)
        return GenericConst(tvm.runtime.tensor(np.frombuffer(mark, np.uint8)), value.ty)

    def cut(
        self, blob: bytes, given: Mapping[str, Sequence[bytes | np.ndarray]]
    ) -> tuple[bytes, tuple[str, ...]]:
        """Return a packed blob of imported modules that names files in place of large weights.

        Args:
            blob: What ``runtime.ModulePackImportsToTensor`` returns.
            given: The weights that the toolchain's module of a symbol was given.

        Returns:
            The blob, and the names of the files.
        """
        tree, modules = modules_of(blob)
        pieces, names = [tree], dict[str, None]()
        for kind, begin, end in modules:
            if kind == LIBRARY:
                pieces.append(with_length(kind))
                continue
            files = _with_names(
                blob, begin, end, sorted(self._spots(kind, blob, begin, end, given))
            )
            if len(files) == 1:
                pieces += map(with_length, (kind, *files))
                continue
            names.update((name.decode(), None) for name in files[1::2])
            content = b"".join(map(with_length, (kind, *files)))
            pieces += map(with_length, (KIND, content))
        return with_length(b"".join(pieces)), tuple(names)

    def _spots(
        self,
        kind: bytes,
        blob: bytes,
        begin: int,
        end: int,
        given: Mapping[str, Sequence[bytes | np.ndarray]],
    ) -> Iterator[tuple[int, int, bytes, str]]:
        """Yield where a module's bytes are cut: begin and end, what stands there, and a file."""
        if kind == b"relax.VMExecutable":
            spot = blob.find(_MAGIC, begin, end)
            while spot >= 0:
                named = spot + len(_MAGIC)
                place, after = _field(blob, named + NAME_DIGITS)
                before = _head((1, 8, 1), (after - spot,), after - spot)
                first = spot - len(before)
                if blob[first:spot] != before:
                    raise ToolchainError("this version of TVM writes constants in another format")
                yield first, after, blob[place:after], blob[named : named + NAME_DIGITS].decode()
                spot = blob.find(_MAGIC, after, end)
        elif end - begin >= LEAST_BYTES:
            _, begin = _field(blob, begin)
            first, begin = _field(blob, begin)
            after = begin
            for weight in given.get(blob[first:begin].decode(errors="replace"), ()):
                data = _bytes_of(weight)
                if data.size < LEAST_BYTES:
                    continue
                spot = _find(blob, data, after, end)  # most stand in the order in which they come
                spot = spot if spot >= 0 else _find(blob, data, begin, end)
                if spot >= 0:
                    after = spot + data.size
                    yield spot, after, b"", self._keep(weight)


def _bytes_of(weight: bytes | np.ndarray) -> np.ndarray:
    """Return a weight's bytes, as they lie in memory."""
    if isinstance(weight, bytes):
        return np.frombuffer(weight, np.uint8)
    return np.ascontiguousarray(weight).reshape(-1).view(np.uint8)


def _find(blob: bytes, data: np.ndarray, begin: int, end: int) -> int:
    """Return where a part of a blob holds a weight's bytes; -1: not where it first seems to."""
    spot = blob.find(data[:LEAST_BYTES].tobytes(), begin, end)
    whole = np.frombuffer(blob, np.uint8)[spot : spot + data.size]
    return spot if spot >= 0 and np.array_equal(whole, data) else -1


def _with_names(
    blob: bytes, begin: int, end: int, spots: list[tuple[int, int, bytes, str]]
) -> list[bytes]:
    """Return a module's bytes in pieces; every second one is the name of a file."""
    pieces = []
    for first, after, head, name in spots:
        if first >= begin:  # weights that begin alike may be taken for each other
            pieces += [blob[begin:first] + head, name.encode()]
            begin = after
    return [*pieces, blob[begin:end]]


def modules_of(blob: bytes) -> tuple[bytes, list[tuple[bytes, int, int]]]:
    """Return what a packed blob of imported modules holds behind the number of all bytes.

    Returns:
        The tree of imports, as two lists of numbers; and of each module the kind, and where its
        bytes begin and end.
    """
    end = 8
    for _ in range(2):
        end += 8 + 8 * int.from_bytes(blob[end : end + 8], "little")
    tree, modules = blob[8:end], []
    while end < len(blob):
        begin, end = _field(blob, end)
        kind = blob[begin:end]
        begin, end = (end, end) if kind == LIBRARY else _field(blob, end)
        modules.append((kind, begin, end))
    return tree, modules


LIBRARY = b"_lib"
"""Kind of the library itself in its blob, which has no bytes there."""


def _field(blob: bytes, begin: int) -> tuple[int, int]:
    """Return where the bytes behind a length begin and end."""
    return begin + 8, begin + 8 + int.from_bytes(blob[begin : begin + 8], "little")


def with_length(data: bytes) -> bytes:
    """Return bytes behind their length, as modules are serialised."""
    return struct.pack("<Q", len(data)) + data
