"""Records what the attentions of a model compute while it runs, for pictures and comparisons."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from . import _attention
from ._attention import attention, visible
from ._dump import save_dump
from ._given import whole_number
from ._prepare import Problem, prepare
from ._see import Picture, picture
from ._tap_problems import dropout_of, keywords_of, sequences
from ._tap_trace import Watch

Choice = int | str | Sequence["int | str"] | Callable[[str], bool] | None

Chosen = list["int | str"] | Callable[[str], bool] | None


@dataclass
class Layer:
    """One attention that ran: attention(q, k, v, **options) computes it again.

    >>> module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> with tap(module) as record:
    ...     _ = module(*[torch.ones(1, 5, 8)] * 3)
    >>> record[0].weights.shape, record[0].mask.all().item()
    (torch.Size([1, 2, 5, 5]), True)
    """

    name: str  #: of the module, as in model.named_modules()
    run: int  #: how many attentions this module had recorded before
    q: Tensor  #: {B, Hq, L, D}, as it met the keys: after rotary positions
    k: Tensor  #: {B, Hkv, S, D}, with the keys of a cache
    v: Tensor  #: {B, Hkv, S, Dv}
    options: dict[str, Any]  #: keywords of `qkv.attention`: masks, causal, window, bias, scale, softcap, sinks, ...
    out: Tensor | None  #: {B, Hq, L, Dv}; None where the model changed the weights by other means than dropout
    dropout: float = 0.0  #: the probability that acted on out

    def attend(self, **more: Any) -> Any:
        """`qkv.attention` of this layer, without dropout; more: return_weights, return_stats, top, ..."""
        return attention(self.q, self.k, self.v, **self.options, **more)

    @property
    def weights(self) -> Tensor:
        """{B, Hq, L, S}"""
        weights: Tensor = self.attend(return_weights=True).weights
        return weights

    @property
    def mask(self) -> Tensor:
        """{B, Hq, L, S}, bool: which keys each query sees. A bias of the lowest number hides as -inf does."""
        seen: Tensor = visible(self.q, self.k, self.v, **self.options)
        bias = self.options.get("bias")
        return seen if bias is None else seen & (bias > torch.finfo(bias.dtype).min / 2)

    def __repr__(self) -> str:
        said = ", ".join(f"{n}={tuple(x.shape) if isinstance(x, Tensor) else x}" for n, x in self.options.items())
        return f"Layer({self.name!r}, run={self.run}, q={tuple(self.q.shape)}, k={tuple(self.k.shape)}, {said})"


class Record:
    """The attentions that ran inside `qkv.tap`, in their order: a sequence of `Layer`.

    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2), 3, enable_nested_tensor=False)
    >>> with tap(model) as record:
    ...     _ = model(torch.ones(5, 1, 8))
    >>> len(record), record.names()[0]
    (3, 'layers.0.self_attn')
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __repr__(self) -> str:
        names = self.names()
        some = ", ".join(repr(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")
        return f"<record of {len(self)} attentions in {len(names)} modules{': ' if some else ''}{some}>"

    @overload
    def __getitem__(self, at: int | str) -> Layer: ...
    @overload
    def __getitem__(self, at: slice) -> Record: ...
    def __getitem__(self, at: int | str | slice) -> Layer | Record:
        """The attention of this index, or the first of the module of this name; of a slice a record of these."""
        if isinstance(at, slice):
            some = Record()
            some.layers = self.layers[at]
            return some
        if not isinstance(at, str):
            return self.layers[at]
        for layer in self.layers:
            if layer.name == at:
                return layer
        raise KeyError(f"no attention of {at!r} was recorded; there are {', '.join(self.names()) or 'none'}")

    def names(self) -> list[str]:
        """The modules whose attentions were recorded, in the order of their first."""
        return list(dict.fromkeys(layer.name for layer in self.layers))

    def save(self, path: str | os.PathLike[str], *, tokens: Sequence[Any] | None = None, run: int | None = None) -> None:
        """Writes an .npz with layer0.q, ... and the .json beside it: `qkv see PATH` shows it, docs/dumps.md describes it.

        tokens: a list of texts, or one for each batch entry. run: of modules that ran more than once, which of their runs.
        Raises ValueError where nothing was recorded, or modules ran more than once and run is not said.
        """
        tensors, formula = said_by_tensors(self.of_run(run))
        save_dump(path, tensors, tokens=tokens, attention=formula)

    def see(self, *, run: int | None = None, layer: int | None = None, **options: Any) -> Picture:
        """A picture of who looks at whom, as `qkv.see` makes it: print it, show it in a notebook, save it.

        run: of modules that ran more than once, which of their runs. layer: one of them instead of all.
        options: tokens, head, query, batch, top, colors, title of `qkv.see`.
        """
        layers = self.of_run(run)
        if layer is not None and not 0 <= whole_number("layer", layer) < len(layers):
            raise ValueError(f"layer is {layer}, expected 0 to {len(layers) - 1}")
        chosen = [(n, x) for n, x in enumerate(layers) if layer in (None, n)]
        return picture([(n, prepare(x.q, x.k, x.v, x.options)) for n, x in chosen], **options)

    def of_run(self, run: int | None) -> list[Layer]:
        """The attentions of one run of each module. Raises ValueError where there are none, or several and run is not said."""
        layers = self.layers if run is None else [layer for layer in self.layers if layer.run == run]
        if not layers:
            raise ValueError(f"no attention was recorded{'' if run is None else f' for run {run}'}")
        if any(layer.run != layers[0].run for layer in layers):
            again = max(self.layers, key=lambda layer: layer.run)
            raise ValueError(f"{again.name} ran {again.run + 1} times; say which with run=0 to run={again.run}")
        return layers


@contextlib.contextmanager
def tap(
    model: torch.nn.Module,
    layers: Choice = None,
    *,
    runs: int | None = None,
    detach: bool = True,
    clone: bool = True,
) -> Iterator[Record]:
    """Records q, k, v, masks and outputs of every attention of a PyTorch or transformers model that runs inside.

    Seen are F.scaled_dot_product_attention, nn.MultiheadAttention and what is made of it, any attn_implementation of
    transformers, attention written out as products around a softmax, and all of qkv's own: `attention`,
    `attention_varlen`, whose sequences count as runs one after the other, and what `qkv.torch` has. What torch.compile
    compiled runs uncompiled meanwhile. Not looked at are the backward pass and other threads than this one.

    layers: only these: an index in the order in which they first run, a name, a pattern such as "encoder.*.3.*", several of
        these in a list, or a function of the name. runs: only so many of each. Everything that is recorded stays in memory.
    detach: without the graph of gradients. clone: copies, so that what the model later writes in place is not seen.

    Raises ValueError for a name or pattern that no module has; warns in the end where an index or name chose nothing.

    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> with tap(layer) as record:
    ...     _ = layer(torch.ones(1, 5, 8))
    >>> record[0].name, tuple(record[0].q.shape)
    ('self_attn', (1, 2, 5, 4))
    """
    record = Record()
    recorder = Recorder(record, choices(model, layers), runs, detach, clone)
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorder.names_of(model))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        _attention.watchers.append(recorder.heard)
        stack.callback(_attention.watchers.remove, recorder.heard)
        stack.enter_context(recorder.watch)
        yield record
    recorder.warn_of_unused()


def choices(model: torch.nn.Module, layers: Choice) -> Chosen:
    """The layers as a list. Raises TypeError for what chooses none, ValueError for names that the model does not have."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, expected a torch.nn.Module")
    if layers is None or callable(layers):
        return layers
    chosen = [layers] if isinstance(layers, (int, str)) else list(layers)
    names = [name for name, _ in model.named_modules()]
    for x in chosen:
        if isinstance(x, bool) or not isinstance(x, (int, str)):
            raise TypeError(f"layers holds a {type(x).__name__}, expected indices, names, patterns, or a function of the name")
        if isinstance(x, int) and x < 0:
            raise ValueError(f"layers holds {x}, expected 0 or more: which run last is known only in the end")
        if isinstance(x, str) and not any(fnmatch.fnmatchcase(name, x) for name in names):
            near = difflib.get_close_matches(x, names, 3, 0) or ["none"]
            raise ValueError(f"layers holds {x!r}, and no module of the model is called so; near are {', '.join(near)}")
    return chosen


class Recorder:
    """Chooses, names and keeps what is seen."""

    def __init__(self, record: Record, layers: Chosen, runs: int | None, detach: bool, clone: bool) -> None:
        self.record, self.layers, self.runs = record, layers, runs
        self.detach, self.clone = detach, clone
        self.inside: list[tuple[str, torch.nn.Module]] = []  # modules that run now, the innermost last
        self.counts: dict[str, int] = {}
        self.used: set[int | str] = set()  # of layers: those that chose something
        self.thread = threading.get_ident()
        self.watch = Watch(self.seen)

    @contextlib.contextmanager
    def names_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Knows which module of the model runs."""

        def enter(name: str) -> Callable[..., None]:
            def entered(module: torch.nn.Module, *_: Any) -> None:
                if threading.get_ident() == self.thread:
                    self.inside.append((name, module))

            return entered

        def leave(*_: Any) -> None:
            if threading.get_ident() == self.thread:
                self.inside.pop()

        handles = []
        try:
            for name, module in model.named_modules():
                handles.append(module.register_forward_pre_hook(enter(name)))
                handles.append(module.register_forward_hook(leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def heard(self, p: Problem, out: Tensor) -> None:
        """An attention that an entry point of qkv computed."""
        if not isinstance(out, Tensor) or not self.looks_on():
            return
        self.watch.told += 1
        if p.packed:
            for sequence in sequences(p, out):
                self.heard(*sequence)
            return
        tensors = [p.tensors["query"], p.tensors["key"], p.tensors["value"], out]
        q, k, v, out = tensors if p.batched else [x[0] for x in tensors]
        self.seen(q, k, v, keywords_of(p), out, dropout_of(p))

    def looks_on(self) -> bool:
        """Not in the backward pass, which computes a checkpoint again, and not in other threads."""
        return bool(self.inside) and threading.get_ident() == self.thread and torch._C._current_graph_task_id() == -1

    def seen(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], out: Tensor | None, dropout: float) -> None:
        if not self.looks_on():
            return
        name, module = self.inside[-1]
        run = self.counts.get(name, 0)
        self.counts[name] = run + 1
        if not self.chosen(name) or (self.runs is not None and run >= self.runs):
            return
        q, k, v, out, options = with_four_axes(q, k, v, out, options, getattr(module, "num_heads", None))
        kept = {n: self.kept(x) for n, x in options.items()}
        q, k, v = self.kept(q), self.kept(k), self.kept(v)
        self.record.layers.append(Layer(name, run, q, k, v, kept, self.kept(out), dropout))

    def chosen(self, name: str) -> bool:
        if self.layers is None:
            return True
        if callable(self.layers):
            return bool(self.layers(name))
        at = list(self.counts).index(name)
        fits = [x for x in self.layers if (x == at if isinstance(x, int) else fnmatch.fnmatchcase(name, x))]
        self.used.update(fits)
        return bool(fits)

    def warn_of_unused(self) -> None:
        """Of attentions that were asked for and did not run."""
        ran = ", ".join(f"{n} {name!r}" for n, name in enumerate(self.counts)) or "none"
        if self.layers is None or callable(self.layers):
            unused = "" if self.record.layers or not self.counts else "the function of layers chose none"
        else:
            unused = ", ".join(repr(x) for x in self.layers if x not in self.used)
            unused = unused and f"layers={unused} chose none"
        if unused:
            warnings.warn(f"qkv.tap: {unused} of the attentions that ran: {ran}", stacklevel=4)

    def kept(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(self.kept(y) for y in x)
        if not isinstance(x, Tensor):
            return x
        x = x.detach() if self.detach else x
        return x.clone() if self.clone else x


def with_four_axes(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, options: dict[str, Any], heads: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]]:
    """{B * H, L, D} as {B, H, L, D} where the module says how many heads it has, otherwise with a batch axis of 1."""
    if q.ndim == 4:
        return q, k, v, out, options
    n = q.shape[0]
    front = (n // heads, heads) if isinstance(heads, int) and heads > 0 and n % heads == 0 else (1, n)

    def split(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim != 3:
            return x
        return x.reshape(*front, *x.shape[1:]) if x.shape[0] == n else x[None]

    return split(q), split(k), split(v), split(out), {name: split(x) for name, x in options.items()}


# ---- files ----

NAMES = {"query": "q", "key": "k", "value": "v", "query_offset": "q_offset"}


def said_by_tensors(layers: list[Layer]) -> tuple[dict[str, Tensor], str]:
    """The tensors of all layers by the names of dumps, and the formula that they share."""
    problems = [prepare(layer.q, layer.k, layer.v, without_scale(layer.options)) for layer in layers]
    if any(p.formula != problems[0].formula for p in problems):
        problems = [prepare(layer.q, layer.k, layer.v, alike(layer, layers)) for layer in layers]
    formula = problems[0].formula
    if any(p.formula != formula for p in problems):
        raise ValueError(
            "save: some layers have sinks or another soft-cap than others; choose some with tap(model, layers=...)"
        )
    tensors: dict[str, Tensor] = {}
    for n, (layer, problem) in enumerate(zip(layers, problems)):
        for name, x in problem.tensors.items():
            tensors[f"layer{n}.{NAMES.get(name, name)}"] = x
        scale = layer.options.get("scale")
        if isinstance(scale, (int, float)):
            tensors[f"layer{n}.scale"] = torch.tensor([float(scale)], dtype=torch.float64)
        if layer.out is not None and layer.dropout == 0:
            tensors[f"layer{n}.out"] = layer.out
    return tensors, formula


def without_scale(options: dict[str, Any]) -> dict[str, Any]:
    """Layers may differ in a scale that is one number: it is a tensor of the file."""
    return {n: x for n, x in options.items() if n != "scale" or isinstance(x, Tensor)}


def alike(layer: Layer, layers: list[Layer]) -> dict[str, Any]:
    """The options of a layer with all patterns as one mask, so that layers with other patterns have the same formula."""
    if "attention" in layer.options:
        raise ValueError(
            f"save: {layer.name} has {layer.options['attention']!r} and other layers another formula; choose some with "
            "tap(model, layers=...)"
        )
    scores = {
        n: x for n, x in without_scale(layer.options).items() if n in ("softcap", "sinks", "zero_key", "scale", "alibi_slopes")
    }
    of_heads = any(isinstance(x, Tensor) and x.ndim > 2 and x.shape[-3] > 1 for x in layer.options.values())
    heads = slice(None) if of_heads else slice(1)
    patterns = {n: x for n, x in layer.options.items() if n not in scores and n != "scale"}
    keep = visible(layer.q[:, heads], layer.k[:, heads], layer.v[:, heads], **patterns)
    more: dict[str, Any] = {n: layer.options[n] for n in ("heads",) if n in layer.options}
    if any("alibi_slopes" in other.options for other in layers):  # positions matter beyond who sees whom
        more |= {n: layer.options[n] for n in ("align", "q_offset", "key_start") if n in layer.options}
    if any("bias" in other.options for other in layers):
        more["bias"] = layer.options.get("bias", torch.zeros(1, 1, 1, 1))
    return scores | more | {"keep_mask": keep}
