"""Models of the benchmark on the device, as users of PyTorch write them, with random weights.

A module is made anew wherever it is needed: the same seed gives the same weights, so that the
exported file and the subjects of the comparison compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SEED = 0
TOKENS = 128
"""Positions of the language models."""


def _image(size: int = 224) -> dict[str, Any]:
    import torch

    return {"x": torch.randn(1, 3, size, size)}


def _tokens(vocabulary: int) -> dict[str, Any]:
    import torch

    tokens = torch.randint(0, vocabulary, (1, TOKENS))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _transformer(kind: str, **sizes: Any) -> tuple[Any, dict[str, Any]]:
    """A model of transformers whose attention is PyTorch's ``scaled_dot_product_attention``."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(attn_implementation="sdpa", **sizes)
    config.return_dict = False
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return getattr(transformers, f"{kind}Model")(config), _tokens(config.vocab_size)


def _vision(name: str) -> tuple[Any, dict[str, Any]]:
    import torchvision

    return getattr(torchvision.models, name)(), _image()


def _convnext() -> tuple[Any, dict[str, Any]]:
    import timm

    return timm.create_model("convnext_tiny"), _image()


def _unet_block(
    channels: int = 320, size: int = 32, text: int = 768, heads: int = 8
) -> tuple[Any, dict[str, Any]]:
    """A residual block and a transformer block at the first level of Stable Diffusion's U-Net."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self, given: int) -> None:
            super().__init__()
            self.query = nn.Linear(channels, channels, bias=False)
            self.key = nn.Linear(given, channels, bias=False)
            self.value = nn.Linear(given, channels, bias=False)
            self.result = nn.Linear(channels, channels)

        def forward(self, x: Any, given: Any) -> Any:
            parts = (self.query(x), self.key(given), self.value(given))
            q, k, v = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in parts)
            y = functional.scaled_dot_product_attention(q, k, v)
            return self.result(y.transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))
            self.convs = nn.ModuleList(
                nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)
            )
            self.time = nn.Linear(1280, channels)
            self.layers = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
            self.own, self.cross = Attention(channels), Attention(text)
            self.gate = nn.Linear(channels, 8 * channels)
            self.down = nn.Linear(4 * channels, channels)

        def forward(self, image: Any, time: Any, words: Any) -> Any:
            y = self.convs[0](functional.silu(self.norms[0](image)))
            y = y + self.time(functional.silu(time))[:, :, None, None]
            image = image + self.convs[1](functional.silu(self.norms[1](y)))
            x = self.norms[2](image).flatten(2).transpose(1, 2)
            normed = self.layers[0](x)
            x = x + self.own(normed, normed)
            x = x + self.cross(self.layers[1](x), words)
            value, gate = self.gate(self.layers[2](x)).chunk(2, dim=-1)
            x = x + self.down(value * functional.gelu(gate))
            return image + x.transpose(1, 2).unflatten(2, (size, size))

    inputs = (torch.randn(1, channels, size, size), torch.randn(1, 1280), torch.randn(1, 77, text))
    return Block(), dict(zip(("image", "time", "words"), inputs, strict=True))


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert_base": lambda: _transformer("Bert"),
    "resnet50": lambda: _vision("resnet50"),
    "qwen2": lambda: _transformer(
        "Qwen2",
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=8,
        num_attention_heads=14,
        num_key_value_heads=2,
    ),
    "vit_b_16": lambda: _vision("vit_b_16"),
    "gpt2": lambda: _transformer("GPT2"),
    "convnext_tiny": _convnext,
    "unet_block": _unet_block,
    "efficientnet_b0": lambda: _vision("efficientnet_b0"),
}
"""In the order in which the figures are wanted."""


def module_of(name: str, precision: str) -> tuple[Any, dict[str, Any]]:
    """Return a module in evaluation mode and its inputs, on the processor, in a precision."""
    import torch

    torch.manual_seed(SEED)
    module, inputs = MODELS[name]()
    kind = getattr(torch, precision)
    inputs = {n: v.to(kind) if v.is_floating_point() else v for n, v in inputs.items()}
    return module.eval().to(kind), inputs


def export(name: str, precision: str, file: Path) -> None:
    """Write a model as PyTorch's exporter does, and its inputs beside it (``.npz``)."""
    import torch

    module, inputs = module_of(name, precision)
    names = list(inputs)
    with torch.inference_mode():
        torch.onnx.export(
            module, (), file, kwargs=inputs, input_names=names, dynamo=True, external_data=False
        )
    arrays = {n: v.numpy() for n, v in inputs.items()}
    np.savez(file.with_suffix(".npz"), **arrays)
