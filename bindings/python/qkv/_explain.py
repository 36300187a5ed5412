"""Every step of one query, with its numbers."""

from __future__ import annotations

import functools
import html
import json
from typing import Any

import numpy as np

from . import _core
from ._arrays import Array, accept_floats, leave_out_of_graphs, lend
from ._formula import parsed
from ._prepare import is_number, prepare_in_memory, whole
from ._screen import Color, paper, sheet
from ._tokens import Tokens, of_both_axes


class Explanation:
    """Every step of one query of one head, as a page of a textbook. `qkv.explain` makes it; it can be pickled.

    >>> q = k = v = np.eye(3)[None, None]
    >>> steps = explain(q, k, v, query=2)
    >>> steps.data["out"] == [key["weight"] for key in steps.data["keys"]], steps.agrees
    (True, True)
    """

    def __init__(self, made: tuple[Any, ...], top: int) -> None:
        formula, tensors, *rest = made
        self._made = made  # a formula, tensors, and what else _core.Explanation takes
        self._core = _core.Explanation(parsed(formula), {name: lend(x) for name, x in tensors.items()}, *rest)
        self._top = top

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """All numbers, as `qkv explain --json` prints them."""
        # A hook in Python, and so an object at a time, lets Ctrl-C end what takes long.
        data: dict[str, Any] = json.loads(self._core.json(), object_hook=lambda x: x)
        return data

    def __reduce__(self) -> tuple[type[Explanation], tuple[Any, ...]]:
        return Explanation, (self._made, self._top)

    @property
    def agrees(self) -> bool:
        """Whether the library's results are as close to these steps as docs/semantics.md, section 6, says."""
        return self._core.agrees

    def text(self, *, color: Color = "auto", columns: int | None = None) -> str:
        """The page. color: "auto": where sys.stdout is a terminal that has them, "always", "never". columns: how wide."""
        return self._core.text(paper(color, columns), self._top)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._core.text(sheet(), self._top))}</pre>"


def explain(
    q: Array,
    k: Array,
    v: Array | None = None,
    *,
    head: int = 0,
    query: int = 0,
    batch: int = 0,
    tokens: Tokens | None = None,
    query_tokens: Tokens | None = None,
    dout: Array | float | None = None,
    top: int = 16,
    **options: Any,
) -> Explanation:
    """Shows how one query of one head gets its weights and its output, step by step, in float64.

    q: (B, Hq, L, D), k: (B, Hkv, S, D), v: (B, Hkv, S, Dv) and options as in `attention`; without v there is no out.
    head, query, batch: which one. tokens: S texts, query_tokens: L texts, as in `see`.
    dout: d loss / d out, like out, each axis 1 or full; 1 is that of the sum of out: also shows the steps back to q, k and v.
    top: how many keys are shown one by one; of more, the strongest.

    Ends with how far the library's own results are from these steps. Raises ValueError, TypeError as `attention` does.

    >>> one = np.array([[[[1.0, 2.0], [2.0, 1.0]]]])
    >>> explain(one, one, one, query=1).data["keys"][0]["dot"]
    4.0
    """
    if whole("top", top) < 1:
        raise ValueError(f"top is {top}, expected 1 or more")
    if options.get("training"):
        raise ValueError("explain: dropout is not among the steps; leave training out")
    p = prepare_in_memory("explain", q, k, k if v is None else v, options)
    if v is None:
        del p.tensors["value"]
    b, h, n = p.rows()
    batch, head, query = (
        below(count, name, x) for name, x, count in (("batch", batch, b), ("head", head, h), ("query", query, n))
    )
    texts = of_both_axes(tokens, query_tokens, b, n, p.tensors["key"].shape[2], "align:bottom_right" in p.formula.split())
    made = (p.formula, p.tensors, _loss(dout, p.layout, p.batched), batch, head, query, *texts)
    return Explanation(made, min(top, 2**31 - 1))


def below(count: int, name: str, x: Any) -> int:
    """x as an index of so many things. Raises TypeError and ValueError."""
    number = whole(name, x)
    if not 0 <= number < count:
        raise ValueError(f"{name} {number}: " + (f"expected 0 to {count - 1}" if count else "there is none"))
    return number


def _loss(dout: Any, layout: str, batched: bool) -> Any:
    """dout as {B, H, L, Dv}, each axis 1 or full."""
    if dout is None:
        return None
    if is_number(dout):
        return np.full((1,), dout, dtype=np.float64)
    dout = accept_floats("dout", dout)
    if dout.ndim == (4 if batched else 3):
        dout = dout if batched else dout[None]
        dout = dout.swapaxes(1, 2) if layout == "blhd" else dout
    return lend(dout)


leave_out_of_graphs(explain)
