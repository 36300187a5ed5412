"""Masks of Hugging Face transformers, said by words: causal, a window, documents, lengths."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.masking_utils import sdpa_mask

from ._attention import visible

Words = dict[str, Any]  #: keywords of `qkv.attention`


class Mask(Tensor):
    """A mask as transformers passes it on, bool {B, 1, L, S} with true: may attend, which is made only where somebody looks.

    `words` says the same; None: nothing shorter is known. What is sliced or copied out of it stays a Mask. Where a model adds
    it to its scores, which would hide nothing, it raises ValueError.
    """

    words: Words | None
    _dense: Tensor | None

    @property
    def dense(self) -> Tensor:
        """The mask as an ordinary tensor."""
        if self._dense is None:
            assert self.words is not None
            b, h, n, s = self.shape
            q, k = (torch.zeros(()).expand(b, h, length, 1) for length in (n, s))
            self._dense = visible(q, k, k, **self.words)
        return self._dense

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Mask({tuple(self.shape)}, {self.words})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        name = operator.overloadpacket.__name__
        if name in ADDING and any(isinstance(x, Tensor) and x.is_floating_point() for x in args):
            raise ValueError(  # a TypeError would be replaced by Python's own about operands of +
                "this model adds its mask to the scores itself, so it does not use the attention function that "
                'attn_implementation names; load it with attn_implementation="eager"'
            )
        if name in ("alias", "detach"):
            return mask_of(tuple(args[0].shape), args[0].words, args[0]._dense)
        args, kwargs = torch.utils._pytree.tree_map_only(Mask, lambda x: x.dense, (args, kwargs or {}))
        result = operator(*args, **kwargs)
        if name in VIEWS | COPIES and isinstance(result, Tensor) and result.dtype == torch.bool:
            return mask_of(tuple(result.shape), None, result)
        return result


ADDING = {"add", "add_", "baddbmm"}
VIEWS = {"slice", "select", "unsqueeze", "squeeze", "expand", "view", "_unsafe_view", "permute", "transpose"}
COPIES = {"index", "clone", "_to_copy", "repeat"}


def mask_of(shape: tuple[int, ...], words: Words | None, dense: Tensor | None = None) -> Mask:
    """A mask that is said by words, or is there."""
    device = "cpu" if dense is None else dense.device
    mask: Mask = Tensor._make_wrapper_subclass(Mask, shape, dtype=torch.bool, device=device)  # type: ignore[arg-type]
    mask.words, mask._dense = words, dense
    return mask


def make_mask(
    batch_size: int,
    cache_position: Tensor,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Any = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """What transformers asks for a mask: query i stands at cache_position[i], key j at kv_offset + j.

    attention_mask: bool {B, keys so far}, false: padding. Returns bool {B, 1, L, kv_length}, a `Mask` where nothing is traced.

    >>> make_mask(1, torch.arange(2), 2)[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    shape, words = (batch_size, 1, cache_position.shape[0], kv_length), None
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or type(cache_position) is not Tensor  # type: ignore[attr-defined, no-untyped-call]
    if not traced and cache_position.device.type == "cpu":
        words = words_of(mask_function, cache_position, kv_length, kv_offset)
        if words is not None and attention_mask is not None:
            words |= padding_words(words, attention_mask, shape[2:], kv_offset)
    if words is not None:
        return mask_of(shape, words)
    dense = sdpa_mask(
        batch_size=batch_size,
        cache_position=cache_position,
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **(options | {"allow_is_causal_skip": False}),
    )
    return dense if traced or dense.is_meta else mask_of(shape, None, dense)  # type: ignore[return-value, union-attr]


# ---- mask functions: recognised by their code, and only if a grid shows that the code still does what its words say ----


def words_of(
    function: Any, position: Tensor, kv_length: int, kv_offset: int, kinds: Container[str] | None = None
) -> Words | None:
    """The words for a mask function of transformers. None where one is not known, or queries do not stand in a row.

    kinds: those whose words may be used; those that `trusted` found unless given.
    """
    kinds = trusted() if kinds is None else kinds
    first, n = int(position[0]) if len(position) else 0, len(position)
    if n > 1 and not bool((position[1:] - position[:-1] == 1).all()):
        return None
    words: Words = {"q_offset": first, "key_start": kv_offset}
    for part in conjuncts(function):
        kind, given = kind_of(part)
        if kind not in kinds:
            return None
        if kind == "causal":
            words["causal"] = True
        elif kind == "window" and "window" not in words:
            words["window"] = (given["sliding_window"] - 1, -1)
        elif kind == "packed" and "document_ids" not in words:
            ids = given["packed_sequence_mask"]
            if ids.shape[1] < max(first + n, kv_offset + kv_length):
                return None
            if bool((ids != ids[:, :1]).any()):
                ids = ids.int()
                words["document_ids"] = ids[:, first : first + n], ids[:, kv_offset : kv_offset + kv_length]
        elif kind == "chunks" and "document_ids" not in words:
            # a chunk is a document; chunks are counted from the first token that is not padding
            left, size = given["left_padding"][:, None], given["chunk_size"]
            keys = torch.arange(kv_offset, kv_offset + kv_length)
            words["document_ids"] = ((position - left) // size).int(), ((keys - left) // size).int()
        else:
            return None
    return words


def conjuncts(function: Any) -> list[Any]:
    """The functions that a mask function is the AND of."""
    kind, given = kind_of(function)
    if kind != "and":
        return [function]
    return [part for f in given["mask_functions"] for part in conjuncts(f)]


def kind_of(function: Any) -> tuple[str, dict[str, Any]]:
    """Which of transformers' mask functions this is, and what it was made with."""
    code = getattr(function, "__code__", None)
    if code not in codes():
        return "", {}
    return codes()[code], {n: cell.cell_contents for n, cell in zip(code.co_freevars, function.__closure__ or ())}  # type: ignore[union-attr]


def examples() -> dict[str, Any]:
    """One of each mask function that has words, of the transformers that is installed."""
    m, ids = masking_utils, torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2]])
    made: dict[str, Callable[[], Any]] = {
        "causal": lambda: m.causal_mask_function,
        "and": lambda: m.and_masks(m.causal_mask_function, m.causal_mask_function),
        "window": lambda: m.sliding_window_overlay(3),
        "packed": lambda: m.packed_sequence_mask_function(ids),
        "chunks": lambda: m.chunked_overlay(3, torch.tensor([1])),
    }
    found = {}
    for kind, make in made.items():
        with contextlib.suppress(AttributeError, TypeError):  # another version may not have it: it has no words then
            found[kind] = make()
    return found


@functools.cache
def codes() -> dict[Any, str]:
    return {function.__code__: kind for kind, function in examples().items()}


@functools.cache
def trusted() -> frozenset[str]:
    """The kinds whose words give the mask that transformers' own code gives, on a small grid with offsets."""
    position, keys, start = torch.arange(2, 7), 7, 1
    x = torch.zeros(1, 1, 5, 1), torch.zeros(1, 1, keys, 1), torch.zeros(1, 1, keys, 1)
    good = set()
    for kind, function in examples().items():
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            words = words_of(function, position, keys, start, {kind, "causal"})
            theirs = sdpa_mask(1, position, keys, start, function, allow_is_causal_skip=False)
            if words is not None and torch.equal(visible(*x, **words), theirs):  # type: ignore[arg-type]
                good.add(kind)
    return frozenset(good)


# ---- padding ----

#: Documents of padding before and after the keys: each is one run, so a query still sees one range of keys.
BEFORE, AFTER = -(2**31) + 1, -(2**31) + 2


def padding_words(words: Words, attention_mask: Tensor, shape: tuple[int, int], kv_offset: int) -> Words:
    """What padding adds to the words; shape: {L, S}."""
    exists = attention_mask[:, kv_offset : kv_offset + shape[1]].bool()
    exists = torch.nn.functional.pad(exists, (0, shape[1] - exists.shape[1]))  # {B, S}
    return padding(exists, shape[0], words.get("document_ids"))


def padding(exists: Tensor, queries: int, documents: tuple[Tensor, Tensor] | None = None) -> Words:
    """Words for which keys exist, {B, S}: lengths where padding is behind, documents where it is in front, else a mask."""
    if bool(exists.all()):
        return {}
    s = exists.shape[1]
    column, count = torch.arange(s), exists.sum(1)
    first = torch.where(exists, column, s).amin(1)  # {B}: real keys are [first, last)
    last = torch.where(exists, column + 1, 0).amax(1)
    if bool(((last - first != count) & (count > 0)).any()):
        return {"keep_mask": exists[:, None, None]}
    if bool(((first == 0) | (count == 0)).all()):
        return {"kv_lengths": count.int()}
    if documents is None:
        documents = torch.zeros(1, queries, dtype=torch.int32), torch.zeros(1, s, dtype=torch.int32)
    of_queries, of_keys = documents
    of_keys = torch.where(column < last[:, None], of_keys, AFTER)
    return {"document_ids": (of_queries, torch.where(column < first[:, None], BEFORE, of_keys))}


# ---- what an attention function is given ----


def visible_words(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> Words:
    """The keywords for a mask of any kind. A mask says everything; without one, the module says whether it is causal."""
    n, s = query.shape[2], key.shape[2]
    if mask is None:
        return words_without_mask(module, n, s, is_causal, sliding_window)
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"attention_mask is a {type(mask).__name__}, expected a tensor; it was made for another attn_implementation"
        )
    if mask.ndim == 2:  # {B, S} of 0 and 1, as tokenizers make it: padding, no word about who sees whom
        exists = mask != 0
        if mask.shape[1] != s or bool((exists & (mask != 1)).any()):
            raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, expected 0 and 1 for each of {s} keys")
        return words_without_mask(module, n, s, is_causal, sliding_window) | padding(exists, n)
    if mask.ndim != 4:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, expected four axes: (batch, heads, queries, keys)")
    if mask.shape[3] not in (1, s) and mask.shape[3] < s:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, but there are {s} keys")
    if isinstance(mask, Mask):
        if mask.words is not None and mask.shape[2:] == (n, s):
            return dict(mask.words)
        mask = mask.dense
    mask = mask[..., :s] if mask.shape[3] > s else mask  # the same object keeps its words
    if mask.dtype == torch.bool:
        return {"keep_mask": mask}
    if not mask.is_floating_point():
        raise TypeError(f"attention_mask has type {mask.dtype}, expected bool (true: may attend) or numbers to add")
    if mask.shape[1:3] == (1, 1) and not mask.requires_grad and not torch.compiler.is_compiling():
        return dict(words_of_added(mask, n))
    return {"bias": mask}


def words_of_added(mask: Tensor, queries: int) -> Words:
    """Words for one number a key, {B, 1, 1, S}, which is added to all scores: what BERT makes of padding.

    All layers get the same tensor, so it keeps its words, for as long as nobody writes into it.
    """
    version = None if mask.is_inference() else mask._version
    known, words = getattr(mask, "_qkv_words", (None, {}))
    if known == (version, queries) and version is not None:
        return words
    hidden = mask <= torch.finfo(mask.dtype).min
    only_hides = not bool(torch.where(hidden, 0, mask).any()) and not bool(hidden.all(3).any())
    words = padding(~hidden[:, 0, 0], queries) if only_hides else {"bias": mask.detach()}
    mask._qkv_words = ((version, queries), words)  # type: ignore[attr-defined]
    return words


def words_without_mask(module: torch.nn.Module, n: int, s: int, is_causal: bool | None, sliding_window: int | None) -> Words:
    if n == 1:
        return {} if sliding_window is None or s <= sliding_window else {"window": (sliding_window - 1, 0), "q_offset": s - 1}
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    name = type(module).__name__
    if is_causal is None:
        raise ValueError(f"{name} gives no mask and does not say whether it is causal; set {name}.is_causal")
    if not is_causal:
        if sliding_window is not None and sliding_window < s:
            raise ValueError(f"{name} gives a sliding_window without a mask and is not causal; pass a mask")
        return {}
    if n != s:
        raise ValueError(
            f"{name} is causal and gives no mask for {n} queries and {s} keys; pass a mask, which says who sees whom"
        )
    words: Words = {"causal": True, "align": "top_left"}
    return words if sliding_window is None else words | {"window": (sliding_window - 1, 0)}
