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

class Paper:
    """What a text is for. columns, lines of 0: as the environment says, or 100 and 50."""

    def __init__(self, terminal: bool, unicode: bool, columns: int, lines: int, color: str) -> None: ...

class Picture:
    def __init__(
        self,
        title: str,
        head: int,
        query: int,
        batch: int | None,
        top: int,
        colors: str,
        query_tokens: list[list[str]],
        key_tokens: list[list[str]],
    ) -> None: ...
    def add(self, formula: Formula, inputs: dict[str, Any], layer: int) -> None: ...
    def add_weights(self, weights: Any, at_the_end: bool, layer: int) -> None: ...
    def text(self, paper: Paper, plain: bool) -> str: ...
    def json(self) -> str: ...
    def page(self) -> str: ...
    def png(self) -> bytes: ...

class Explanation:
    def __init__(
        self,
        formula: Formula,
        inputs: dict[str, Any],
        dout: Any,
        batch: int,
        head: int,
        query: int,
        query_tokens: list[list[str]],
        key_tokens: list[list[str]],
    ) -> None: ...
    def text(self, paper: Paper, top: int) -> str: ...
    def json(self) -> str: ...
    @property
    def agrees(self) -> bool: ...

def dump_name(name: str) -> tuple[str, bool] | None:
    """The name of the format for a tensor that is called so, and whether it is that already."""
