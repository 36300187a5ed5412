"""Checks of single arguments, before the extension module would speak of its own types."""

from __future__ import annotations

from typing import Any

from ._prepare import whole


def whole_number(name: str, x: Any, least: int = 0, most: int = 2**31 - 1) -> int:
    """Raises TypeError for what is no whole number, ValueError for one beyond."""
    number = whole(name, x)
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, expected {least} {'or more' if number < least else f'to {most}'}")
    return number


def text(name: str, x: Any) -> str:
    """Half a surrogate pair is no UTF-8, and is written with a backslash."""
    if not isinstance(x, str):
        raise TypeError(f"{name} is a {type(x).__name__}, expected a text")
    return x.encode("utf-8", "backslashreplace").decode()


def flag(name: str, x: Any) -> bool:
    if not isinstance(x, bool):
        raise TypeError(f"{name} is {x!r}, expected True or False")
    return x
