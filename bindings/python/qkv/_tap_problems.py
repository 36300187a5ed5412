"""What qkv's own attentions computed, as `qkv.attention` would be called for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from torch import Tensor

from ._formula import facts
from ._prepare import Problem

#: Of tensors that keywords call otherwise.
KEYWORDS = {
    "key_lengths": "kv_lengths",
    "query_offset": "q_offset",
    "scales": "scale",
    "softcaps": "softcap",
}
#: Words of a formula whose order matters, as keywords have it.
STEPS = ("scales", "softcap", "softcaps", "alibi", "bias")
UNSAID = ("query", "key", "value", "dropout_keep", "cumulative_query_lengths", "cumulative_key_lengths")


def keywords_of(p: Problem) -> dict[str, Any]:
    """The keywords of `qkv.attention` for all but q, k, v and dropout, which acts in training only."""
    text, _ = facts(p.formula)
    said = words_of(text)
    keywords: dict[str, Any] = {"attention": text} if said is None else said
    tensors = {KEYWORDS.get(name, name): x for name, x in p.tensors.items() if name not in UNSAID}
    if "query_documents" in tensors:
        of_q, of_k = tensors.pop("query_documents"), tensors.pop("key_documents")
        tensors["document_ids"] = of_q if of_q is of_k else (of_q, of_k)
    return keywords | tensors


def words_of(text: str) -> dict[str, Any] | None:
    """What a formula says without tensors, as keywords; None where they have no words for it, as for two windows."""
    keywords: dict[str, Any] = {}
    words = [word.partition(":")[::2] for word in text.replace(" | ", " ").split(" ")]
    names = [name for name, _ in words]
    steps = [name for name in names if name in STEPS]
    one_each = len(set(names)) == len(names) and not {"softcap", "softcaps"} <= set(names)
    if not one_each or steps != sorted(steps, key=STEPS.index):
        return None
    for name, numbers in words:
        if name in ("causal", "zero_key"):
            keywords[name] = True
        elif name == "window":
            left, right = (int(n) for n in numbers.split(","))
            keywords["window"] = (left, right)
        elif name in ("align", "heads"):
            keywords[name] = numbers
        elif name in ("scale", "softcap"):
            keywords[name] = float(numbers)
    if "scales" in names and keywords.pop("scale", 1.0) != 1.0:
        return None
    return keywords


def dropout_of(p: Problem) -> float:
    """The probability that acted."""
    return facts(p.formula)[1] if p.seed is not None or "dropout_keep" in p.tensors else 0.0


def sequences(p: Problem, out: Tensor) -> Iterator[tuple[Problem, Tensor]]:
    """Those of a packed batch that have queries and keys, each as a batch of its own, {1, H, L, D}."""
    of_q, of_k = (p.tensors[f"cumulative_{name}_lengths"].tolist() for name in ("query", "key"))
    for b, (rows, keys) in enumerate(zip(pairwise(of_q), pairwise(of_k))):
        if rows[0] == rows[1] or keys[0] == keys[1]:
            continue
        at = {"query": slice(*rows), "key": slice(*keys), "value": slice(*keys)}
        lengths = (rows[1] - rows[0], keys[1] - keys[0])
        tensors: dict[str, Tensor] = {}
        for name, x in p.tensors.items():
            if name in at:
                tensors[name] = x[at[name]].transpose(0, 1)[None]
            elif not name.startswith("cumulative"):
                tensors[name] = of_sequence(name, x, b, lengths)
        yield Problem(p.formula, tensors, p.seed), out[at["query"]].transpose(0, 1)[None]


def of_sequence(name: str, x: Tensor, b: int, lengths: tuple[int, int]) -> Tensor:
    """Of what is {B or 1, Hq, longest L, longest S}, documents {B or 1, longest}, or positions {B or 1}, a sequence's part."""
    if x.ndim == 1 and name not in ("query_offset", "key_start"):  # one number a head
        return x
    x = x[b : b + 1] if x.shape[0] > 1 else x
    if x.ndim == 4:
        return x[:, :, : lengths[0], : lengths[1]]
    return x[:, : lengths[name == "key_documents"]] if x.ndim == 2 else x
