"""Outputs and gradients on tensors against the formula, written in PyTorch's plain operations: in float64 it is the truth."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv
from torch import Tensor
from torch_oracle import DTYPES, agree, random

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 4, 2, 33, 65, 17, 9
BOTTOM = KEYS - QUERIES
ROW, COLUMN = torch.arange(QUERIES)[:, None], torch.arange(KEYS)[None, :]
LENGTHS = torch.tensor([KEYS - 6, 0])
DOCUMENTS = torch.arange(BATCH * QUERIES).view(BATCH, QUERIES) // 9, torch.arange(KEYS).expand(BATCH, KEYS) // 9


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    *,
    offset: int = 0,
    scale: Any = WIDTH**-0.5,
    softcap: Any = None,
    bias: Any = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    zero_key: bool = False,
) -> tuple[Tensor, Tensor]:
    """out and log-sum-exp, 0 where a query sees nothing. Numbers of heads are {H, 1, 1}; keep broadcasts to {B, H, L, S}."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = scale * (q @ k.mT)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes * (ROW + offset - COLUMN).abs()
    scores = scores + bias
    more = [] if sinks is None else [sinks.expand(HEADS, 1, 1)]
    more += [torch.zeros(HEADS, 1, 1)] * zero_key
    columns = [x.to(scores.dtype).expand(BATCH, HEADS, QUERIES, 1) for x in more]
    some = keep.any(-1, keepdim=True) | bool(more)
    scores = torch.cat([scores.where(keep | ~some, -torch.inf), *columns], -1)
    weights = (scores.softmax(-1) * some)[..., :KEYS].to(v.dtype)
    lse = scores.logsumexp(-1).where(some[..., 0], 0)
    return weights @ v, lse.to(torch.float64 if q.dtype == torch.float64 else torch.float32)


def heads(x: Tensor) -> Tensor:
    return x.view(-1, 1, 1)


ALL = torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool)
CAUSAL = ROW + BOTTOM >= COLUMN
SAME_DOCUMENT = (DOCUMENTS[0][..., None] == DOCUMENTS[1][:, None])[:, None]
EXISTS = (LENGTHS[:, None] > torch.arange(KEYS))[:, None, None]
BOTTOM_RIGHT = {"align": "bottom_right"}

#: Keywords here; who sees whom and keywords of the formula there; the tensors that both learn, by name.
CASES: dict[str, tuple[dict[str, Any], Tensor, dict[str, Any], tuple[str, ...]]] = {
    "nothing": ({}, ALL, {}, ()),
    "causal": ({"causal": True, **BOTTOM_RIGHT}, CAUSAL, {}, ()),
    "window": ({"window": (5, 2), "align": "top_left"}, (ROW - COLUMN <= 5) & (COLUMN - ROW <= 2), {}, ()),
    "window to the left": ({"window": (8, -1), **BOTTOM_RIGHT}, ROW + BOTTOM - COLUMN <= 8, {}, ()),
    "window and causal": (
        {"window": (7, 0), "causal": True, "q_offset": 3},
        (ROW + 3 - COLUMN <= 7) & (ROW + 3 >= COLUMN),
        {},
        (),
    ),
    "window beyond the keys": (
        {"window": (3, 0), "q_offset": KEYS - 9},
        (ROW + KEYS - 9 - COLUMN <= 3) & (ROW + KEYS - 9 >= COLUMN),
        {},
        (),
    ),
    "soft-cap": ({"softcap": 1.5}, ALL, {"softcap": 1.5}, ()),
    "soft-caps": ({}, ALL, {}, ("softcap",)),
    "scales": ({}, ALL, {}, ("scale",)),
    "sinks": ({"causal": True, "align": "top_left"}, ROW >= COLUMN, {}, ("sinks",)),
    "slopes": (BOTTOM_RIGHT, ALL, {"offset": BOTTOM}, ("alibi_slopes",)),
    "slopes and causal": ({"causal": True, **BOTTOM_RIGHT}, CAUSAL, {"offset": BOTTOM}, ("alibi_slopes",)),
    "zero key": ({"zero_key": True}, ALL, {"zero_key": True}, ()),
    "sinks and a zero key": ({"zero_key": True}, ALL, {"zero_key": True}, ("sinks",)),
    "lengths": ({"kv_lengths": LENGTHS}, EXISTS, {}, ()),
    "lengths and sinks": ({"kv_lengths": LENGTHS}, EXISTS, {}, ("sinks",)),
    "documents": ({"document_ids": DOCUMENTS}, SAME_DOCUMENT, {}, ()),
    "bias": ({}, ALL, {}, ("bias",)),
    "everything": (
        {"causal": True, "q_offset": BOTTOM, "window": (40, 0), "document_ids": DOCUMENTS, "zero_key": True},
        CAUSAL & (ROW + BOTTOM - COLUMN <= 40) & SAME_DOCUMENT,
        {"offset": BOTTOM, "zero_key": True},
        ("softcap", "bias", "alibi_slopes", "sinks", "scale"),
    ),
}


def learned(name: str) -> Tensor:
    if name == "bias":
        return random(HEADS, 1, KEYS, seed=4)
    numbers = random(HEADS, seed=5)
    return {"softcap": numbers.abs() + 1, "scale": numbers / 4, "alibi_slopes": numbers.abs() / 8}.get(name, numbers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_as_near_as_plain_ones(case: str, dtype: torch.dtype) -> None:
    options, keep, there, names = CASES[case]

    def ours(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = qkv.attention(q, k, v, **options, **dict(zip(names, more)), return_lse=True)
        return out, lse.where(lse > -torch.inf, 0)

    def theirs(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        given = {name: x if name == "bias" else heads(x) for name, x in zip(names, more)}
        return formula(q, k, v, keep, **there, **given)

    q = random(BATCH, HEADS, QUERIES, WIDTH, dtype=dtype, seed=1)
    k = random(BATCH, KV_HEADS, KEYS, WIDTH, dtype=dtype, seed=2)
    v = random(BATCH, KV_HEADS, KEYS, VALUES, dtype=dtype, seed=3)
    agree(ours, theirs, [q, k, v, *(learned(name) for name in names)])
