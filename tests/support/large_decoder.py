"""A decoder with weights of any size in a file beside the model, written without holding them.

``python -m tests.support.large_decoder FOLDER`` writes the one of 3.2 GB: three blocks of width
4,096 over four tokens, small enough in operations that a call takes less than a second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from onnx import TensorProto

from tests.zoo.net import Net

WEIGHTS = "weights.data"
ALIGNMENT = 4096
"""Bytes to which each tensor is aligned, as PyTorch's and ONNX Runtime's exporters do."""
_BLOCK = 1 << 20
"""Random numbers that are drawn; tensors repeat them from different places on."""


class _Weights:
    """Tensors that are written to a file one after the other."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._random = np.random.default_rng(20261123).standard_normal(_BLOCK, dtype=np.float32)
        self.tensors: list[TensorProto] = []

    def add(self, name: str, shape: tuple[int, ...], scale: float) -> str:
        """Write a tensor of normal numbers."""
        count = int(np.prod(shape))
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        offset = self._file.tell()
        block = np.roll(self._random, 7919 * len(self.tensors)) * np.float32(scale)
        for begin in range(0, count, _BLOCK):
            self._file.write(block[: min(_BLOCK, count - begin)].tobytes())
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        fields = (("location", WEIGHTS), ("offset", offset), ("length", 4 * count))
        for key, value in fields:
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_decoder(
    folder: Path, width: int = 4096, blocks: int = 3, words: int = 24_000, tokens: int = 4
) -> Path:
    """Write ``decoder.onnx`` and its weights.

    Args:
        folder: Where; it is made.
        width: Of the hidden states; each block has 12 times its square of weights.
        blocks: Of attention and a feed-forward network.
        words: Of the vocabulary, whose table is read by the tokens and by the last product.
        tokens: Of the input ``ids`` [1, tokens]; the output is ``scores`` [1, tokens, words].

    Returns:
        The model's path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = _Weights(folder / WEIGHTS)
    net = Net("decoder")

    def product(value: str, name: str, rows: int, columns: int, **more: list[str]) -> str:
        return net.op("MatMul", value, weights.add(name, (rows, columns), rows**-0.5), **more)

    norm = net.const(np.ones(width, np.float32)), net.const(np.zeros(width, np.float32))
    factor = net.const(np.float32(width**-0.5))
    mask = net.const(np.triu(np.full((tokens, tokens), -1e4, np.float32), 1))
    ids = net.input("ids", [1, tokens], "int64")
    hidden = net.op("Gather", weights.add("words", (words, width), 1.0), ids)
    for block in range(blocks):
        normal = net.op("LayerNormalization", hidden, *norm)
        q, k, v = (product(normal, f"{part}{block}", width, width) for part in "qkv")
        logits = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))
        logits = net.op("Add", net.op("Mul", logits, factor), mask)
        mixed = net.op("MatMul", net.op("Softmax", logits, axis=-1), v)
        hidden = net.op("Add", hidden, product(mixed, f"o{block}", width, width))
        normal = net.op("LayerNormalization", hidden, *norm)
        wide = net.op("Relu", product(normal, f"up{block}", width, 4 * width))
        hidden = net.op("Add", hidden, product(wide, f"down{block}", 4 * width, width))
    normal = net.op("LayerNormalization", hidden, *norm)
    scores = product(normal, "scores_of_words", width, words, outputs=["scores"])
    net.output(scores, shape=[1, tokens, words])
    weights.close()
    net.weights += weights.tensors
    path = folder / "decoder.onnx"
    path.write_bytes(net.model(check=False).SerializeToString())
    return path


def main() -> None:
    """Write the decoder of 3.2 GB into a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    print(write_decoder(parser.parse_args().folder))


if __name__ == "__main__":
    main()
