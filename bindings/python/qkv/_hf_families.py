"""Models of transformers that choose their attention by a table of classes, such as BERT, and those without a choice."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ._hf_masks import visible_words

Attend = Callable[..., tuple[Tensor, "Tensor | None"]]
TABLE = re.compile(r"[A-Z0-9_]*ATTENTION_(CLASSES|FUNCTION)$")


def prepare_families(name: str, attend: Attend) -> None:
    """From now on, a model that is made with attn_implementation=name finds itself in its family's table.

    PreTrainedModel asks get_correct_attn_implementation() before its layers are made; that is the moment.
    """
    original = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if original is None:  # another version, without such tables
        return
    names: dict[str, Attend] | None = getattr(original, "qkv_names", None)
    if names is not None:
        names[name] = attend
        return
    names = {name: attend}

    @functools.wraps(original)
    def asked(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        if requested_attention in names:
            prepare_family(type(self), requested_attention, names[requested_attention])
        return original(self, requested_attention, *args, **kwargs)  # type: ignore[no-any-return]

    asked.qkv_names = names  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = asked  # type: ignore[method-assign]


def prepare_family(model: type, name: str, attend: Attend) -> None:
    """Adds the entry `name` to the tables of the model's module. Raises ValueError where the model has no choice."""
    module = sys.modules[model.__module__]
    tables = [x for n, x in vars(module).items() if TABLE.match(n) and isinstance(x, dict)]
    for table in tables:
        fused = table.get("sdpa")
        if name not in table and fused is not None and fused is not table.get("eager"):
            table[name] = adapted(fused, attend)
    if (tables and not all(name in table for table in tables)) or (not tables and computes_itself(module)):
        raise ValueError(
            f"{model.__name__} computes its attention itself and takes no attn_implementation={name!r}; "
            'use attn_implementation="eager"'
        )


def computes_itself(module: ModuleType) -> bool:
    """Whether a modeling file of transformers has attention layers, but does not look up the function for them."""
    if not module.__name__.startswith("transformers.models.") or hasattr(module, "ALL_ATTENTION_FUNCTIONS"):
        return False
    layers = (x for n, x in vars(module).items() if "Attention" in n and isinstance(x, type))
    return any(issubclass(x, torch.nn.Module) and x.__module__ == module.__name__ for x in layers)


def adapted(fused: Any, attend: Attend) -> Any:
    """A layer (or a function) that calls F.scaled_dot_product_attention, with `attend` in its place."""
    run = fused.forward if isinstance(fused, type) else fused  # type: ignore[attr-defined]
    parameters = list(inspect.signature(run).parameters)
    at = parameters.index("output_attentions") if "output_attentions" in parameters else len(parameters)

    @functools.wraps(run)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = bool(kwargs.get("output_attentions", args[at - 1] if len(args) >= at else False))
        fuses = kwargs.get("head_mask") is None and getattr(self, "position_embedding_type", "absolute") == "absolute"
        if wanted and fuses:  # otherwise the layer would go another way than its fused one
            if len(args) >= at:
                args = (*args[: at - 1], False, *args[at:])
            else:
                kwargs["output_attentions"] = False
        with Replaced(attend, wanted, self) as replaced:
            result = run(self, *args, **kwargs)
        if replaced.weights is None:
            return result
        return (result[0], replaced.weights, *result[2:])  # the fused ones give None there, or nothing

    if not isinstance(fused, type):
        return forward
    return type("Qkv" + fused.__name__, (fused,), {"forward": forward, "__module__": fused.__module__})


class Replaced(TorchFunctionMode):
    """While it is entered, F.scaled_dot_product_attention is `attend`; `weights` are those of the last call."""

    def __init__(self, attend: Attend, wanted: bool, layer: Any) -> None:
        super().__init__()
        self.attend, self.wanted, self.layer = attend, wanted, layer
        self.weights: Tensor | None = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        return self.sdpa(*args, **(kwargs or {}))

    def sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        words = visible_words(self.layer, query, key, attn_mask, is_causal, None)
        out, self.weights = self.attend(query, key, value, words, dropout=dropout_p, scale=scale, weights=self.wanted)
        return out.transpose(1, 2)
