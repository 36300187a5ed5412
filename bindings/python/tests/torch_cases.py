"""Every option of qkv.attention on tensors, small and in float64, for derivatives and compilers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv
from torch import Tensor
from torch_oracle import random

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 4, 2, 3, 5, 3, 2


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, dtype=torch.float64, seed=seed)


def above(least: float, *shape: int) -> Tensor:
    return least + numbers(*shape).abs()


def mask(*shape: int) -> Tensor:
    """About a third is false; the first query has nothing but false where there are several."""
    made = numbers(*shape, seed=4) > -0.4
    if shape[-2:] == (QUERIES, KEYS):
        made[..., 0, :] = False
    return made


@dataclass
class Case:
    """A call of qkv.attention: options that are tensors with a gradient, and all others."""

    options: dict[str, Any] = field(default_factory=dict)
    learned: dict[str, Tensor] = field(default_factory=dict)
    queries: int = QUERIES

    def tensors(self) -> list[Tensor]:
        """query, key, value, and what is learned beside them; all of them leaves."""
        layout = [0, 2, 1, 3] if self.options.get("layout") == "blhd" else [0, 1, 2, 3]
        sizes = [(HEADS, self.queries, WIDTH), (KV_HEADS, KEYS, WIDTH), (KV_HEADS, KEYS, VALUES)]
        made = [numbers(BATCH, *size, seed=n).permute(layout) for n, size in enumerate(sizes)]
        return [x.detach().clone().requires_grad_() for x in (*made, *self.learned.values())]

    def function(self, **more: Any) -> Callable[..., Any]:
        """Of the tensors, in this order."""

        def attend(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Any:
            return qkv.attention(q, k, v, **dict(zip(self.learned, learned)), **self.options, **more)

        return attend


CASES: dict[str, Case] = {
    "plain": Case(),
    "causal top left": Case({"causal": True, "align": "top_left"}),
    "causal bottom right": Case({"causal": True, "align": "bottom_right"}, queries=KEYS + 2),
    "window": Case({"window": (1, 0), "align": "bottom_right"}),
    "offset": Case({"causal": True, "q_offset": 1}),
    "offsets": Case({"causal": True, "q_offset": torch.tensor([0, 3]), "key_start": torch.tensor([1, 0])}),
    "lengths": Case({"kv_lengths": torch.tensor([3, 0])}),
    "documents": Case({"document_ids": (torch.tensor([[0, 1, 1], [0, 0, 2]]), torch.tensor([[0, 0, 1, 1, 2]]))}),
    "keep mask": Case({"keep_mask": mask(BATCH, HEADS, QUERIES, KEYS)}),
    "ignore mask": Case({"ignore_mask": mask(BATCH, 1, 1, KEYS)}),
    "slopes": Case({"align": "top_left"}, {"alibi_slopes": above(0.1, HEADS)}),
    "sinks": Case({"keep_mask": mask(QUERIES, KEYS)}, {"sinks": numbers(HEADS)}),
    "zero key": Case({"zero_key": True}),
    "scale": Case({"scale": -0.7}),
    "scales": Case({}, {"scale": numbers(HEADS)}),
    "one scale": Case({}, {"scale": numbers()}),
    "cap": Case({"softcap": 1.5}),
    "caps": Case({}, {"softcap": above(0.5, HEADS)}),
    "one cap": Case({}, {"softcap": above(0.5)}),
    "tiled": Case({"heads": "tiled"}),
    "dropout": Case({"dropout": 0.4, "training": True, "seed": 2**64 - 3}),
    "kept": Case({"dropout": 0.4, "training": True, "dropout_keep": mask(1, HEADS, QUERIES, KEYS)}),
    "heads inside": Case({"layout": "blhd", "causal": True, "align": "top_left"}),
    "formula": Case({"attention": "causal align:top_left | softcap:2 bias scale:0.8 | sink_softmax zero_key"}, {}),
    "everything": Case(
        {"causal": True, "align": "bottom_right", "kv_lengths": torch.tensor([5, 3]), "zero_key": True, "dropout": 0.2}
        | {"training": True, "seed": 7},
        {"bias": numbers(HEADS, 1, KEYS), "alibi_slopes": above(0.1, HEADS), "sinks": numbers(HEADS)}
        | {"scale": above(0.5, HEADS), "softcap": above(2)},
    ),
}
CASES["formula"].learned = {"bias": numbers(QUERIES, KEYS), "sinks": numbers(HEADS)}
for _sizes in itertools.product((1, BATCH), (1, HEADS), (1, QUERIES), (1, KEYS)):
    CASES["bias " + " ".join(map(str, _sizes))] = Case({}, {"bias": numbers(*_sizes)})
