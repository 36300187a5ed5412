"""Where text is shown, and files that appear whole."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from typing import Literal

from . import _core
from ._given import whole_number

Color = Literal["auto", "always", "never"]


def paper(color: Color = "auto", columns: int | None = None) -> _core.Paper:
    """What sys.stdout is: colours and its width where it is a terminal, else none and 100 columns, or COLUMNS.

    Text is made to fit on a terminal, and where columns are said; into a pipe sentences and tables go as they are.
    """
    out = sys.stdout
    terminal = bool(out is not None and out.isatty())
    lines = 0
    color = _color(color, terminal)
    fits = terminal or columns is not None
    if columns is not None:
        columns = whole_number("columns", columns, 1)
    elif terminal:
        columns, lines = shutil.get_terminal_size((100, 50))
    encoding = (getattr(out, "encoding", None) or "utf-8").lower().replace("-", "")
    return _core.Paper(fits, encoding == "utf8", _width(columns), lines, color)


def _color(color: Color, terminal: bool) -> Color:
    if color not in ("auto", "always", "never"):
        raise ValueError(f"color is {color!r}, expected 'auto', 'always' or 'never'")
    return "never" if color == "auto" and not terminal else color


def sheet(columns: int = 100) -> _core.Paper:
    """Text without colours that is part of a page."""
    return _core.Paper(False, True, columns, 0, "never")


def _width(columns: int | None) -> int:
    return 0 if columns is None else min(max(columns, 20), 1000)


@contextlib.contextmanager
def whole(*paths: str) -> Iterator[list[str]]:
    """Names to write to; the files get their own names when all are complete, or none stays."""
    made: list[str] = []
    try:
        for path in paths:
            made.append(_temporary(path))
        yield made
        for temporary, path in zip(made, paths):
            with _named(path):
                os.replace(temporary, os.path.realpath(path))
    finally:
        for temporary in made:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _temporary(path: str) -> str:
    """A new file in the folder of path; a link is followed."""
    folder, name = os.path.split(os.path.realpath(path))
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    with _named(path):
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors name the file that was asked for, not the temporary one."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None
