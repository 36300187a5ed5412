"""Pictures of attention: who looks at whom."""

from __future__ import annotations

import html
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from . import _core
from ._arrays import Array, accept_floats, is_torch, lend
from ._formula import parsed
from ._given import flag, text, whole_number
from ._prepare import Problem, prepare
from ._screen import Color, paper, sheet, whole
from ._tokens import Tokens, of_both_axes


@dataclass(frozen=True)
class Made:
    """What a picture is made from."""

    options: tuple[str, int, int, int | None, int, str, list[list[str]], list[list[str]]]  #: of _core.Picture
    problems: list[tuple[int, str, dict[str, Array]]]  #: number of the layer, formula, tensors
    weights: list[tuple[int, Array]]
    at_the_end: bool  #: the last query of weights stands at the last key


class Picture:
    """Who looks at whom: a page in a notebook, text in a terminal, a file of either.

    `qkv.see` makes it. It keeps a copy of the arrays, so that it stays what it was when they change, and can be pickled.

    >>> picture = see(weights=np.tril(np.full((2, 4, 4), 0.25)))
    >>> "head" in picture.text(columns=60), picture.png()[1:4]
    (True, b'PNG')
    """

    def __init__(self, made: Made) -> None:
        self._made = made
        self._core = core = _core.Picture(*made.options)
        for number, formula, tensors in made.problems:
            core.add(parsed(formula), {name: lend(x) for name, x in tensors.items()}, number)
        for number, weights in made.weights:
            core.add_weights(lend(weights), made.at_the_end, number)

    def __reduce__(self) -> tuple[type[Picture], tuple[Made]]:
        return Picture, (self._made,)

    def text(self, *, color: Color = "auto", columns: int | None = None, plain: bool = False) -> str:
        """What `qkv see` prints: a heat map of one head, a table of many, the keys of one query.

        color: "auto": where sys.stdout is a terminal that has them (NO_COLOR is respected), "always", "never".
        columns: how wide, 20 at least; no line is wider. Absent: as the terminal; where there is none, pictures are 100
            wide, and tables and sentences as they are. plain: sentences, for screen readers.
        """
        return self._core.text(paper(color, columns), flag("plain", plain))

    def html(self) -> str:
        """A page of all heads, or of those chosen, that needs no network. Raises ValueError where it would pass 20 MB."""
        return self._core.page()

    def png(self) -> bytes:
        """The head, or all of them, as small heat maps in the bytes of a .png; rows are queries, from the top."""
        return self._core.png()

    @property
    def data(self) -> Any:
        """What each head does, and its strongest links, as `qkv see --json` prints it."""
        return json.loads(self._core.json())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes html() into a path that ends in .html, png() into one that ends in .png.

        The file appears complete or not at all. Raises ValueError for other endings, OSError where it cannot be written.
        """
        name = os.fsdecode(path)
        if name.endswith(".html"):
            content = self.html().encode()
        elif name.endswith(".png"):
            content = self.png()
        else:
            raise ValueError(f"save: {name!r} ends in neither .html nor .png")
        with whole(name) as (temporary,), open(temporary, "wb") as file:
            file.write(content)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        try:
            page = self.html()
        except ValueError as error:
            table = html.escape(self._core.text(sheet(), False))
            return f"<p>{html.escape(str(error))}</p><pre>{table}</pre>"
        return (
            f'<iframe title="{html.escape(self._made.options[0])}" sandbox="allow-scripts allow-forms" '
            f'style="width: 100%; height: 720px; border: 0" srcdoc="{html.escape(page)}"></iframe>'
        )


def see(
    q: Array | Sequence[Array] | None = None,
    k: Array | Sequence[Array] | None = None,
    v: Array | Sequence[Array] | None = None,
    *,
    weights: Array | Sequence[Array] | None = None,
    tokens: Tokens | None = None,
    query_tokens: Tokens | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: int | None = None,
    batch: int | None = None,
    top: int = 8,
    colors: Literal["linear", "log", "lift"] = "linear",
    title: str = "attention",
    **options: Any,
) -> Picture:
    """A picture of who looks at whom, of q and k, or of weights that somebody computed.

    q: (B, Hq, L, D), k: (B, Hkv, S, D), with the options of `attention`; v may be given as there, and changes nothing. Or
        weights: (B, H, L, S), rows of which sum to at most 1; they may lack B, and of options take align alone. Lists of any
        of these are layers.
    tokens: S texts, or a list of them for each batch entry; queries have the same where L = S, and the last of them with
        align="bottom_right". query_tokens: L texts, where they are others.
    layer: which of a list; of single arrays the number that is shown. head: that one instead of all. query: of that head
        the keys of one query. batch: which entry; absent: all on a page, entry 0 elsewhere.
    top: how many links or keys are listed. colors: by the weight, its logarithm, or lift, the weight times the number of
        keys that the query sees (1: an equal share). title: of the page.

    In a notebook a `Picture` is a page with the heads, the map and its numbers; print(picture) is text.
    Raises ValueError for shapes, options and what is no attention; TypeError for types.

    >>> q = k = np.array([[[[1.0, 0.0], [0.0, 3.0]]]])
    >>> picture = see(q, k, tokens=["the", "cat"])
    >>> picture.data["layers"][0]["heads"][0]["strongest"]["query_token"]
    'cat'
    """
    problems, given = _layers_of(q, k, v, weights, layer, options)
    align = _align(options)
    return picture(
        problems,
        given,
        at_the_end=align == "bottom_right",
        tokens=tokens,
        query_tokens=query_tokens,
        head=head,
        query=query,
        batch=batch,
        top=top,
        colors=colors,
        title=title,
    )


Layers = list[tuple[int, Any]]


def picture(
    problems: Sequence[tuple[int, Problem]],
    given: Sequence[tuple[int, Array]] = (),
    *,
    at_the_end: bool = False,
    tokens: Tokens | None = None,
    query_tokens: Tokens | None = None,
    head: int | None = None,
    query: int | None = None,
    batch: int | None = None,
    top: int = 8,
    colors: Literal["linear", "log", "lift"] = "linear",
    title: str = "attention",
) -> Picture:
    """`see` of numbered problems, or of weights; at_the_end: the last query of weights stands at the last key."""
    several = len(problems) + len(given) > 1
    if head is not None and several:
        raise ValueError(f"head is {head}, but there are {len(problems) + len(given)} layers; say which, with layer")
    b, h, n, s = _sizes(problems, given)
    if query is not None and head is None:
        if several or h != 1:
            raise ValueError(f"query is {query}, but there are many heads; say of which, with {'layer and ' * several}head")
        head = 0
    top = min(whole_number("top", top, 1, 2**63 - 1), 2**31 - 1)
    last = at_the_end or any("align:bottom_right" in p.formula.split() for _, p in problems[:1])
    texts = of_both_axes(tokens, query_tokens, b, n, s, last)
    options = (
        text("title", title),
        _index("head", head),
        _index("query", query, -1, 2**62),
        _index("batch", batch, None, 2**62),
        top,
        text("colors", colors),
        *texts,
    )
    drawn = [(number, p.formula, {name: _copy(x) for name, x in p.tensors.items()}) for number, p in problems]
    return Picture(Made(options, drawn, [(number, _copy(w)) for number, w in given], at_the_end))


def _layers_of(q: Any, k: Any, v: Any, weights: Any, layer: int | None, options: dict[str, Any]) -> tuple[Layers, Layers]:
    """Numbered problems, or numbered weights."""
    if weights is not None:
        if q is not None or k is not None or v is not None:
            raise ValueError("see: give q and k, or weights, not both")
        said = [name for name in options if name != "align"]
        if said:
            raise ValueError(
                f"see: weights are finished, and {said[0]} acts on q and k; leave it out (align is used: it says where the "
                "queries stand)"
            )
        return [], [(n, accept_floats("weights", w)) for n, w in _numbered("weights", weights, layer)]
    _refuse_records(q)
    if q is None or k is None:
        raise ValueError(f"see: {'q' if q is None else 'k'} is missing; give q and k, or weights")
    if options.get("training"):
        raise ValueError("see: weights are drawn as they are before dropout; leave training out")
    queries, keys = _numbered("q", q, layer), _numbered("k", k, layer)
    values = keys if v is None else _numbered("v", v, layer)
    if not len(queries) == len(keys) == len(values):
        raise ValueError(f"see: q, k and v have {len(queries)}, {len(keys)} and {len(values)} layers")
    problems: Layers = []
    for (number, a), (_, b), (_, c) in zip(queries, keys, values):
        p = prepare(a, b, c, options)
        if v is None:
            del p.tensors["value"]
        problems.append((number, p))
    return problems, []


def _refuse_records(q: Any) -> None:
    tap = sys.modules.get("qkv._tap")
    if tap is not None and isinstance(q, tap.Record):
        raise TypeError("see: q is a record of qkv.tap, which draws itself; call record.see(tokens=..., layer=..., head=...)")
    if tap is not None and isinstance(q, tap.Layer):
        raise TypeError("see: q is a layer of a record of qkv.tap; call see(layer.q, layer.k, **layer.options)")


def _numbered(name: str, x: Any, layer: int | None) -> Layers:
    """Arrays with the numbers of their layers, -1 where there is one without."""
    if not isinstance(x, (list, tuple)):
        return [(-1 if layer is None else _index("layer", layer), x)]
    if layer is None:
        if not x:
            raise ValueError(f"see: {name} is an empty list")
        return list(enumerate(x))
    if not 0 <= _index("layer", layer) < len(x):
        raise ValueError(f"layer is {layer}, expected 0 to {len(x) - 1}, the layers of {name}")
    return [(layer, x[layer])]


def _sizes(problems: Sequence[tuple[int, Problem]], given: Sequence[tuple[int, Array]]) -> tuple[int, int, int, int]:
    """(B, H, L, S) of the first layer."""
    if problems:
        p = problems[0][1]
        b, h, n = p.rows()
        return b, h, n, p.tensors["key"].shape[2]
    shape = tuple(given[0][1].shape)
    if len(shape) not in (2, 3, 4):
        raise ValueError(f"weights has {len(shape)} axes, expected four, (B, H, L, S), or three or two without B and H")
    b, h, n, s = (1,) * (4 - len(shape)) + shape
    return b, h, n, s


def _align(options: dict[str, Any]) -> str | None:
    align: str | None = options.get("align")
    if align not in (None, "top_left", "bottom_right"):
        raise ValueError(f"align is {align!r}, expected 'top_left', 'bottom_right' or None")
    return align


def _index(name: str, number: int | None, absent: Any = -1, most: int = 2**31 - 1) -> Any:
    return absent if number is None else whole_number(name, number, 0, most)


def _copy(x: Array) -> Array:
    if is_torch(x):
        return x.detach().clone()
    made = np.empty(x.shape, x.dtype)
    for at in np.ndindex(x.shape[:-2]):  # piece by piece, between which Ctrl-C is heard
        made[at] = x[at]
    return made
