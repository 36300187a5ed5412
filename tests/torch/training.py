"""PyTorch's side of training beside qkv: a decoder-only Transformer in the sizes of nanoGPT's configuration for CPUs, with the
names of qkv::nn::LanguageModel. As a program it trains on the batches of a file:
    training.py IN.safetensors OUT.safetensors        as tests/torch/train_as_torch.cc"""
import math
import sys
import time

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

SETTINGS = {"vocabulary": 65, "context": 64, "width": 128, "layers": 4, "heads": 4, "batch": 12,
            "learning_rate": 1e-3, "last_learning_rate": 1e-4, "warmup": 100, "steps": 2000,
            "beta2": 0.99, "weight_decay": 0.1, "clip_norm": 1.0}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        entries, rows, width = x.shape
        q, k, v = (part.view(entries, rows, self.heads, width // self.heads).transpose(1, 2)
                   for part in F.linear(x, self.in_proj_weight).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(entries, rows, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.linear1 = nn.Linear(width, 4 * width, bias=False)
        self.linear2 = nn.Linear(4 * width, width, bias=False)
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)

    def forward(self, x):
        x = x + self.self_attn(self.norm1(x))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class Model(nn.Module):
    """Tied weights; first weights as GPT-2's."""

    def __init__(self, s, seed=1):
        super().__init__()
        self.token_embedding = nn.Embedding(s["vocabulary"], s["width"])
        self.position_embedding = nn.Embedding(s["context"], s["width"])
        self.layers = nn.ModuleList(Layer(s["width"], s["heads"]) for _ in range(s["layers"]))
        self.norm = nn.LayerNorm(s["width"], bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                writes_residual = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * s["layers"]) if writes_residual else 0.02, generator=generator)

    def forward(self, ids, targets):
        x = self.token_embedding(ids) + self.position_embedding.weight[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.token_embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def state_of(model):
    return {f"state.{name}": p.detach() for name, p in model.state_dict().items()}


def batches(s, steps, seed=2):
    """Text that can be learned: each token follows from the one before by a rule that now and then is broken."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, s["batch"], s["context"] + 1)
    text = torch.randint(s["vocabulary"], shape, generator=generator)
    kept = torch.rand(shape, generator=generator) < 0.9
    for n in range(1, shape[2]):
        text[..., n] = torch.where(kept[..., n], (7 * text[..., n - 1] + 3) % s["vocabulary"], text[..., n])
    text = text.to(torch.int32)
    return {"ids": text[..., :-1].contiguous(), "targets": text[..., 1:].contiguous()}


def learning_rate(s, step):
    if step < s["warmup"]:
        return s["learning_rate"] * (step + 1) / s["warmup"]
    done = min(1.0, (step - s["warmup"]) / (s["steps"] - s["warmup"]))
    return s["last_learning_rate"] + (s["learning_rate"] - s["last_learning_rate"]) * (1 + math.cos(math.pi * done)) / 2


def train(model, s, data):
    """Losses and seconds of each step."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": s["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=s["learning_rate"], betas=(0.9, s["beta2"]), eps=1e-8, fused=True)
    losses, seconds = [], []
    ids, targets = data["ids"].long(), data["targets"].long()
    for n in range(ids.shape[0]):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(s, n)
        loss = model(ids[n], targets[n])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), s["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return {"losses": losses, "seconds": seconds}


def main(source, target):
    with safe_open(source, "pt") as file:
        texts = file.metadata()
    settings = {k: type(v)(texts[k]) for k, v in SETTINGS.items()}
    torch.set_num_threads(int(texts["threads"]))
    tensors = load_file(source)
    model = Model(settings)
    model.load_state_dict({k[6:]: t for k, t in tensors.items() if k.startswith("state.")})
    result = train(model, settings, tensors)
    save_file({k: torch.tensor(v, dtype=torch.float64) for k, v in result.items()}, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
