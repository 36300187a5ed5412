"""Tensors of a case file: nested lists of numbers, booleans, and the strings "nan", "inf", "-inf"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Holds every 64-bit integer exactly, on x86-64 and AArch64 under Linux.
Number = np.longdouble

DEEPEST = 16
SPECIAL = {"nan": Number("nan"), "inf": Number("inf"), "-inf": Number("-inf")}


class Malformed(Exception):
    """The file is not of the schema."""


class NotSupported(Exception):
    """Something that this program does not run: an operation, an option, an expected name."""


class Refused(Exception):
    """What was refused, as the schema expects it of wrong arguments."""


@dataclass
class Values:
    """Row by row. An absent number (null) is not checked."""

    shape: tuple[int, ...]
    numbers: list[Number | None]

    def array(self, dtype: Any) -> np.ndarray[Any, Any]:
        """Raises Malformed where a number is null or does not fit."""
        if any(x is None for x in self.numbers):
            raise Malformed("null among the inputs")
        x = np.array(self.numbers, Number).reshape(self.shape)
        if dtype == np.int32 and not (np.abs(x) < 2**31).all():
            raise Malformed("a number is no 32-bit integer")
        with np.errstate(over="ignore"):
            return x != 0 if dtype is bool else x.astype(dtype)


def values_of(x: Any) -> Values:
    x = np.asarray(x)
    return Values(x.shape, list(x.astype(Number).ravel()))


def read_number(x: Any) -> Number | None:
    if x is None:
        return None
    if isinstance(x, str) and x in SPECIAL:
        return SPECIAL[x]
    if isinstance(x, (bool, int, float)):
        return Number(float(x)) if abs(x) >= 2**64 or isinstance(x, float) else Number(str(int(x)))
    raise Malformed(f'expected a number, true, false, "nan", "inf" or "-inf", got {x}')


def read_values(json: Any, shape: tuple[int, ...] | None = None) -> Values:
    """Reads nested lists; with a shape only their flat order counts, so that empty tensors can be told.

    Raises Malformed where their lengths differ or something else stands in them.
    """
    sizes: list[int] = []
    numbers: list[Number | None] = []
    depths: set[int] = set()

    def append(x: Any, depth: int) -> None:
        if not isinstance(x, list):
            depths.add(depth)
            numbers.append(read_number(x))
            return
        if depth == DEEPEST:
            raise Malformed(f"more than {DEEPEST} lists around a number")
        if depth == len(sizes):
            sizes.append(len(x))
        if sizes[depth] != len(x):
            raise Malformed("lists beside each other differ in length")
        for element in x:
            append(element, depth + 1)

    append(json, 0)
    if depths and depths != {len(sizes)}:
        raise Malformed("a list holds numbers and lists side by side")
    if shape is not None and math.prod(shape) != len(numbers):
        raise Malformed(f"{len(numbers)} numbers cannot have the shape {shape_text(shape)}")
    return Values(tuple(sizes) if shape is None else shape, numbers)


def read_shape(json: Any) -> tuple[int, ...]:
    if not isinstance(json, list):
        raise Malformed(f"expected a list of sizes, got {json}")
    for size in json:
        if isinstance(size, bool) or not isinstance(size, int):
            raise Malformed(f"expected a size, got {size}")
    return tuple(json)


def shape_text(shape: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, shape)) + "}"


def number_text(x: Number) -> str:
    return str(int(x)) if abs(x) < 1e18 and x == np.trunc(x) else f"{float(x):.9g}"


@dataclass
class Tolerance:
    absolute: float
    relative: float

    def agree(self, got: Number, expected: Number) -> bool:
        """abs(got - expected) <= absolute + relative * abs(expected); infinities are equal, NaN stands for NaN."""
        if np.isnan(expected):
            return bool(np.isnan(got))
        if np.isinf(expected) or np.isinf(got):
            return bool(got == expected)
        return bool(abs(got - expected) <= Number(self.absolute) + Number(self.relative) * abs(expected))


def first_difference(got: Values, expected: Values, tolerance: Tolerance) -> str | None:
    """'[0,1]: got 2 expected 3'; None where they agree. Both have as many numbers."""
    for i, (x, y) in enumerate(zip(got.numbers, expected.numbers)):
        if x is None or y is None or tolerance.agree(x, y):
            continue
        at = ",".join(str(n) for n in np.unravel_index(i, got.shape)) if got.shape else ""
        return f"{f'[{at}]' if at else ''}: got {number_text(x)} expected {number_text(y)}"
    return None
