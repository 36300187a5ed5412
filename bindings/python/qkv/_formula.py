"""The formula of an attention: a value with a text."""

from __future__ import annotations

import functools
from typing import Any

from . import _core


@functools.lru_cache(maxsize=512)
def parsed(text: str) -> _core.Formula:
    """The formula that a text says. Raises ValueError, which names the word and its place."""
    try:
        return _core.Formula(text)
    except TypeError:  # half a surrogate pair is no UTF-8
        raise ValueError(f"{text!a} is no formula: it holds half a character") from None


class Attention:
    """The formula of an attention: masks, score modifiers, softmax; numbers and names, no tensors.

    >>> a = qkv.Attention("causal window:255,0 align:bottom_right | softcap:30 | softmax")
    >>> a == qkv.Attention(a.text)
    True

    Raises ValueError for a text that is no formula; docs/semantics.md, section 9, has the words.
    """

    __slots__ = ("_formula", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a formula is a text, got {type(text).__name__}")
        object.__setattr__(self, "_formula", parsed(text))
        object.__setattr__(self, "text", self._formula.text)

    _formula: _core.Formula
    text: str  #: reads as an equal formula

    @property
    def dropout(self) -> float:
        """The probability that a weight is dropped in training."""
        return self._formula.dropout

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an Attention does not change; make another one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attention) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Attention({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[Attention], tuple[str]]:
        return Attention, (self.text,)


def facts(formula: Attention | str) -> tuple[str, float]:
    """The text of a formula, and its dropout."""
    a = formula if isinstance(formula, Attention) else Attention(formula)
    return a.text, a.dropout


# torch.compile calls it instead of looking into it, as for torch.compiler.assume_constant_result, which imports a compiler.
facts._dynamo_marked_constant = True  # type: ignore[attr-defined]
