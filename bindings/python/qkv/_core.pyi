"""The extension module: the library's functions on arrays that are there already."""

from typing import Any

__version__: str

class Formula:
    def __init__(self, text: str) -> None: ...
    @property
    def text(self) -> str: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def dropout(self) -> float: ...

def forward(formula: Formula, inputs: dict[str, Any], outputs: dict[str, Any], seed: int | None = None) -> None: ...
def backward(
    formula: Formula,
    inputs: dict[str, Any],
    upstream: dict[str, Any],
    gradients: dict[str, Any],
    seed: int | None = None,
    add: bool = False,
) -> None: ...
def observe(
    formula: Formula, inputs: dict[str, Any], sums: dict[str, Any], received: Any, largest: Any, mean: Any, cell: int
) -> None: ...
def merge(outs: list[Any], lses: list[Any], sinks: Any, out: Any, lse: Any) -> None: ...
def merge_backward(
    outs: list[Any],
    lses: list[Any],
    sinks: Any,
    dout: Any,
    dlse: Any,
    douts: list[Any],
    dlses: list[Any],
    dsinks: Any,
) -> None: ...
def explain_path(formula: Formula, inputs: dict[str, Any], seed: int | None = None) -> str: ...
def keep_mask(formula: Formula, inputs: dict[str, Any], keep: Any) -> None: ...
def alibi_slopes(heads: int) -> list[float]: ...
def set_num_threads(threads: int) -> None:
    """How many threads calls use from now on, the caller's included: 1 to 4096."""

def num_threads() -> int:
    """How many threads a call may use."""
