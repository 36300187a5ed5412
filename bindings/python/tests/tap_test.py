"""qkv.tap records what attentions compute: computed again, the record gives the model's own outputs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch

torch.set_num_threads(1)


def command() -> str:
    """The built command, from QKV_COMMAND, the build folder or the path."""
    built = Path(__file__).parents[3] / "build" / "release" / "qkv"
    found = os.environ.get("QKV_COMMAND") or (str(built) if built.exists() else shutil.which("qkv"))
    if found is None:
        pytest.skip("the command qkv is not built")
    return found


def agree(record: Any) -> None:
    """Every recorded output is what `qkv.attention` makes of the rest."""
    assert len(record) > 0
    for layer in record:
        assert layer.out is not None and layer.out.shape == (*layer.q.shape[:3], layer.v.shape[3])
        difference = float((layer.attend() - layer.out).abs().max())
        assert difference <= 2e-5 * float(layer.out.abs().max()), f"{layer}: {difference}"


def encoder() -> Any:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 2).eval()


# ---- PyTorch ----


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both"])
def test_transformer_encoder(masks: str, grad: bool) -> None:
    model, x = encoder(), torch.randn(2, 7, 16)
    given: dict[str, Any] = {}
    if masks in ("padding", "both"):
        given["src_key_padding_mask"] = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    if masks in ("causal", "both"):
        given |= {"mask": torch.ones(7, 7, dtype=torch.bool).triu(1), "is_causal": True}
    with torch.set_grad_enabled(grad):
        want = model(x, **given)
        with qkv.tap(model) as record:
            found = model(x, **given)
    real = ~given.get("src_key_padding_mask", torch.zeros(2, 7, dtype=torch.bool))
    torch.testing.assert_close(found[real], want[real], rtol=1e-5, atol=1e-6)
    assert record.names() == ["layers.0.self_attn", "layers.1.self_attn"]
    assert record[1].q.shape == (2, 4, 7, 4)
    agree(record)
    seen = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    if "mask" in given:
        seen &= ~given["mask"]
    if "src_key_padding_mask" in given:
        seen &= ~given["src_key_padding_mask"][:, None, None]
    assert torch.equal(record[0].mask, seen.expand(2, 4, 7, 7))


def test_multihead_attention_with_weights_and_its_gradients() -> None:
    model, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 7, 16, requires_grad=True)
    out, weights = model(x, x, x)
    out.sum().backward()
    want = x.grad.clone()
    x.grad = None
    with qkv.tap(model) as record:
        again, _weights_again = model(x, x, x)
    again.sum().backward()
    assert torch.equal(again, out) and torch.equal(x.grad, want)
    agree(record)
    torch.testing.assert_close(record[0].weights.mean(1), weights)
    assert record[0].q.shape == (2, 4, 7, 4) and not record[0].q.requires_grad


class Fused(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def test_fused_calls() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
    keep = torch.rand(2, 1, 5, 7) < 0.6
    keep[..., 0] = True
    lowest = torch.finfo(torch.float32).min
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, set()),
        ({"is_causal": True}, {"causal", "align"}),
        ({"attn_mask": keep}, {"keep_mask"}),
        ({"attn_mask": torch.where(keep, 0.0, lowest)}, {"keep_mask"}),
        ({"attn_mask": torch.where(keep, 0.0, -torch.inf)}, {"keep_mask"}),
        ({"attn_mask": torch.zeros(5, 7)}, set()),
        ({"attn_mask": torch.randn(4, 5, 7), "scale": 0.3}, {"bias", "scale"}),
    ]
    model = Fused()
    with qkv.tap(model) as record:
        for options, _ in cases:
            model(q, k, v, enable_gqa=True, **options)
    assert [set(layer.options) for layer in record] == [said for _, said in cases]
    agree(record)


class Written(torch.nn.Module):
    """Attention as people write it out."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.num_heads = how, 4

    def forward(self, q: Any, k: Any, v: Any, keep: Any) -> Any:
        if self.how == "einsum":
            scores = torch.einsum("blhd,bshd->bhls", q.transpose(1, 2), k.transpose(1, 2)) * 0.3
            weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
            return torch.einsum("bhls,bhsd->blhd", weights, v)
        if self.how == "flat":
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)).view(2, 4, 5, 7) / 2.0
            scores = scores + torch.where(keep, 0.0, torch.finfo(torch.float32).min)
            weights = torch.softmax(scores.view(8, 5, 7), dim=2)
            return torch.bmm(weights, v)
        if self.how == "added":
            scores = torch.baddbmm(
                (keep / 2).expand(2, 4, 5, 7).reshape(8, 5, 7), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=0.3
            )
            return scores.softmax(2) @ v.flatten(0, 1)
        scores = q @ k.transpose(-1, -2)
        scores *= 0.3
        if self.how == "capped":
            scores = 2 * torch.tanh(scores / 2)
        if self.how == "odd":
            scores = scores.clamp(-1, 0.5) + 1
        scores = torch.where(keep, scores, -torch.inf)
        return torch.nn.functional.dropout(scores.softmax(dim=-1), 0.0) @ v


@pytest.mark.parametrize("how", ["plain", "capped", "einsum", "flat", "added", "odd"])
def test_attention_that_is_written_out(how: str) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
    keep = torch.rand(2, 1, 5, 7) < 0.6
    keep[..., 0] = True
    model = Written(how)
    want = model(q, k, v, keep)
    with qkv.tap(model) as record:
        assert torch.equal(model(q, k, v, keep), want)
    assert len(record) == 1 and record[0].q.shape == q.shape
    agree(record)
    if how in ("plain", "capped", "einsum"):
        assert set(record[0].options) == {"scale", "ignore_mask"} | ({"softcap"} if how == "capped" else set())


def test_products_without_a_softmax_are_no_attention() -> None:
    class Linear(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return torch.softmax(q, -1) @ (k.transpose(1, 2) @ v), torch.softmax(q @ k.transpose(1, 2), 1) @ v

    model = Linear()
    with qkv.tap(model) as record:
        model(*torch.randn(3, 2, 5, 8))
    assert len(record) == 0


def test_calls_of_qkv_and_compiled_code() -> None:
    class Ours(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return qkv.attention(q, k, v, layout="blhd", causal=True, window=(2, 0), softcap=3.0)

    model = torch.nn.ModuleDict({"ours": Ours(), "fused": Fused()})
    q = torch.randn(2, 5, 4, 8)
    compiled = torch.compile(lambda x: model["ours"](x, x, x) + model["fused"](x, x, x), backend="eager")
    with qkv.tap(model) as record:
        compiled(q)
    assert record.names() == ["ours", "fused"]
    assert record["ours"].q.shape == (2, 4, 5, 8)
    assert record["ours"].options == {"causal": True, "window": (2, 0), "softcap": 3.0}
    agree(record)


class Own(torch.nn.Module):
    """One of qkv's own ways to attention, in a module."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.inner = qkv.torch.MultiheadAttention(16, 4, batch_first=True) if way.startswith("multihead") else None

    def forward(self, x: Any) -> Any:
        if self.inner is not None:
            padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
            return self.inner(x, x, x, key_padding_mask=padding, need_weights="weights" in self.way)[0]
        q = x.unflatten(-1, (4, 4)).transpose(1, 2)
        if self.way == "sdpa":
            return qkv.torch.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3)
        if self.way == "sdpa of five axes":
            return qkv.torch.scaled_dot_product_attention(q[None], q[None], q[None], torch.randn(4, 7, 7))
        if self.way == "a formula":
            return qkv.attention(q, q, q, attention="causal | softcap:3", return_lse=True).out
        return qkv.attention(q, q, q, attention="window:2,1 window:1,2 | bias softcap:3", bias=torch.randn(7, 7))


OWN = ("multihead", "multihead with weights", "sdpa", "sdpa of five axes", "a formula", "a formula without keywords")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", OWN)
def test_own_entry_points(way: str, grad: bool, tmp_path: Path) -> None:
    model = Own(way)
    with torch.set_grad_enabled(grad), qkv.tap(model) as record:
        model(torch.randn(2, 7, 16))
    assert len(record) == 1 and record[0].q.shape == (2, 4, 7, 4)
    assert record[0].name == ("inner" if way.startswith("multihead") else "")
    agree(record)
    record.save(tmp_path / "own.npz")
    assert "out" in read(tmp_path / "own.npz", "compare")


def test_dropout_of_own_entry_points_is_said() -> None:
    x = torch.randn(2, 7, 16)
    layer = qkv.torch.MultiheadAttention(16, 4, dropout=0.25, batch_first=True)
    for need_weights in (False, True):
        with qkv.tap(layer) as record:
            layer(x, x, x, need_weights=need_weights)
        assert [(one.name, one.dropout) for one in record] == [("", 0.25)]


def test_packed_sequences_are_runs() -> None:
    class Packed(torch.nn.Module):
        def forward(self, q: Any, k: Any, cu_q: Any, cu_k: Any, **options: Any) -> Any:
            return qkv.attention_varlen(q, k, k, cu_q, cu_k, **options)

    q, k = torch.randn(9, 4, 8), torch.randn(12, 2, 8)
    cu_q, cu_k = torch.tensor([0, 4, 4, 9]), torch.tensor([0, 6, 7, 12])
    ids, keep = torch.arange(5).expand(3, 5) // 2, torch.rand(3, 1, 5, 6) < 0.7
    keep[..., 0] = True
    model = Packed()
    given: dict[str, Any]
    for given in (
        {"causal": True, "align": "bottom_right"},
        {"keep_mask": keep, "q_offset": torch.tensor([3, 0, 1]), "alibi_slopes": torch.rand(4)},
        {"document_ids": (ids, torch.arange(6).expand(3, 6) // 2), "sinks": torch.rand(4), "softcap": torch.ones(4)},
    ):
        with qkv.tap(model) as record:
            out = model(q, k, cu_q, cu_k, **given)
        assert [layer.run for layer in record] == [0, 1]  # the second sequence has no queries
        assert [tuple(layer.q.shape) for layer in record] == [(1, 4, 4, 8), (1, 4, 5, 8)]
        assert torch.equal(torch.cat([layer.out[0].transpose(0, 1) for layer in record]), out)
        agree(record)
        assert record.see(run=1).data["layers"][0]["heads"]


@pytest.mark.parametrize("outside", ["tap", "replace_sdpa"])
@pytest.mark.parametrize("weights", [False, True])
def test_replaced_attention_in_any_order(outside: str, weights: bool) -> None:
    layer, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 7, 16)
    model = torch.nn.ModuleDict({"layer": layer, "fused": Fused()})
    hidden = torch.tensor([[False] * 7, [True] * 7])  # where PyTorch's weights are NaN, and qkv's 0

    def work() -> Any:
        model["fused"](*torch.randn(3, 1, 2, 5, 4))
        return model["layer"](x, x, x, key_padding_mask=hidden, need_weights=weights)[0]

    if outside == "tap":
        with qkv.tap(model) as record, qkv.torch.replace_sdpa():
            out = work()
    else:
        with qkv.torch.replace_sdpa(), qkv.tap(model) as record:
            out = work()
    assert not out.isnan().any()
    assert [layer.name for layer in record] == ["fused", "layer"]
    agree(record)


def test_what_qkv_leaves_to_pytorch_is_recorded_too() -> None:
    layer, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 7, 16)
    for outside in ("tap", "replace_sdpa"):
        with contextlib.ExitStack() as stack, pytest.warns(UserWarning, match="left to PyTorch"):
            stack.enter_context(torch.autograd.forward_ad.dual_level())
            if outside == "replace_sdpa":
                stack.enter_context(qkv.torch.replace_sdpa())
            record = stack.enter_context(qkv.tap(layer))
            if outside == "tap":
                stack.enter_context(qkv.torch.replace_sdpa())
            dual = torch.autograd.forward_ad.make_dual(x, x)
            layer(dual, dual, dual)
        assert [one.name for one in record] == [""]


def test_axes_before_the_heads_are_folded() -> None:
    model = Fused()
    q, k = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 3, 2, 7, 8)
    with qkv.tap(model) as record:
        model(q, k, k, attn_mask=torch.randn(3, 1, 5, 7), enable_gqa=True)
        model(q[0, 0, 0], k[0, 0, 0], k[0, 0, 0])
    assert [tuple(layer.q.shape) for layer in record] == [(6, 4, 5, 8), (1, 1, 5, 8)]
    agree(record)


def test_masks_that_are_formulas() -> None:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    model, q, k = Fused(), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    with qkv.tap(model) as record:
        model(q, k, k, attn_mask=causal_lower_right(3, 5))
        model(q, k, k, attn_mask=causal_upper_left(3, 5), scale=0.3)
    assert [layer.options.get("align") for layer in record] == ["bottom_right", "top_left"]
    agree(record)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_told() -> None:
    x = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 5, 4)])
    model = Fused()
    with pytest.warns(UserWarning, match="does not record attention of nested tensors"), qkv.tap(model) as record:
        model(x, x, x)
    assert len(record) == 0


def test_other_threads_are_not_recorded() -> None:
    class Threaded(torch.nn.Module):
        def forward(self, x: Any) -> None:
            thread = threading.Thread(target=lambda: (qkv.attention(x, x, x), inner(x, x, x)))
            thread.start()
            thread.join()

    inner = Fused()
    model = torch.nn.ModuleDict({"threaded": Threaded(), "inner": inner})
    with qkv.tap(model) as record:
        model["threaded"](torch.randn(1, 2, 5, 4))
    assert len(record) == 0


def test_what_is_kept_is_a_choice() -> None:
    model, x = encoder(), torch.randn(2, 7, 16)

    def names(**options: Any) -> list[str]:
        with qkv.tap(model, **options) as record:
            model(x)
            model(x)
        return [f"{layer.name}:{layer.run}" for layer in record]

    first, second = "layers.0.self_attn", "layers.1.self_attn"
    assert names() == [f"{first}:0", f"{second}:0", f"{first}:1", f"{second}:1"]
    assert names(layers=[1], runs=1) == [f"{second}:0"]
    assert names(layers=["*.0.*"]) == [f"{first}:0", f"{first}:1"]
    assert names(layers=lambda name: name == second, runs=1) == [f"{second}:0"]
    assert names(layers=first, runs=1) == names(layers=0, runs=1) == [f"{first}:0"]
    assert names(layers="layers.*.self_attn", runs=1) == [f"{first}:0", f"{second}:0"]
    with qkv.tap(model, detach=False, clone=False) as record:
        model(x)
    assert record[0].q.requires_grad and record[0].q._base is not None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(KeyError, match="layers.0.self_attn"):
        record["attention"]


def test_a_choice_of_nothing_is_told() -> None:
    model, x = encoder(), torch.randn(2, 7, 16)
    ran = "of the attentions that ran: 0 'layers.0.self_attn', 1 'layers.1.self_attn'"
    unused: list[tuple[Any, str]] = [
        ([9, 0], "layers=9 chose none"),
        ("layers.0", "layers='layers.0' chose none"),
        (lambda name: False, "the function of layers chose none"),
    ]
    for layers, text in unused:
        with pytest.warns(UserWarning) as warned, qkv.tap(model, layers):
            model(x)
        assert [f"qkv.tap: {text} {ran}"] == [str(w.message) for w in warned if "qkv.tap" in str(w.message)]
        assert warned[0].filename == __file__
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([-1], ValueError, "layers holds -1, expected 0 or more"),
        ("layers.7.self_attn", ValueError, r"no module of the model is called so; near are layers\.\d\.self_attn"),
        ([1.0], TypeError, "layers holds a float, expected indices"),
        (True, TypeError, "layers holds a bool, expected indices"),
    ]
    for layers, error, text in wrong:
        with pytest.raises(error, match=text), qkv.tap(model, layers):
            pass
    with pytest.raises(TypeError, match="model is a function, expected a torch.nn.Module"), qkv.tap(encoder):  # type: ignore[arg-type]
        pass


def test_a_model_that_fails_leaves_nothing_behind() -> None:
    model = encoder()
    with pytest.raises((AssertionError, RuntimeError)), qkv.tap(model) as record:
        model(torch.randn(2, 7, 3))
    assert len(record) == 0 and not any(m._forward_hooks for m in model.modules())
    model(torch.randn(2, 7, 16))
    assert len(record) == 0


def test_the_backward_pass_is_not_recorded() -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = Fused(), torch.randn(1, 2, 5, 4, requires_grad=True)
    with qkv.tap(model) as record:
        checkpoint(model, x, x, x, use_reentrant=False).sum().backward()
    assert len(record) == 1


# ---- transformers ----

FLEXIBLE = ("llama", "gemma2", "whisper")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention", "qkv"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss", "whisper", "modernbert", "beit"])
def test_models_of_transformers(name: str, implementation: str) -> None:
    transformers = pytest.importorskip("transformers")
    import qkv.hf
    from hf_families import FAMILIES, inputs_for

    if (implementation == "sdpa" and name == "gpt_oss") or (implementation == "flex_attention" and name not in FLEXIBLE):
        pytest.skip("transformers has no such attention for it")
    transformers.logging.set_verbosity_error()
    qkv.hf.register()
    family = FAMILIES[name]
    model = family.make(implementation)
    given, real = inputs_for(family)
    with torch.no_grad():
        # FlexAttention itself would be compiled first
        want = (family.make("eager") if implementation == "flex_attention" else model)(**given).logits
        with qkv.tap(model) as record:
            found = model(**given).logits
    if real is not None:
        want, found = want[real.bool()], found[real.bool()]
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert all(layer.name for layer in record) and len(record) == len(record.names())
    agree(record)
    if name in ("bert", "gpt2", "llama", "gemma2"):
        assert len(record) == 2
        seen = record[0].mask.transpose(1, 2)[real.bool()]  # {queries, H, S}
        causal = torch.ones(2, 13, 13, dtype=torch.bool).tril() if name != "bert" else torch.ones(2, 13, 13, dtype=torch.bool)
        if name == "gemma2":
            causal = causal.triu(-4)
        assert torch.equal(seen, (causal & real.bool()[:, None])[real.bool()][:, None].expand_as(seen))


def test_every_step_of_a_generation() -> None:
    pytest.importorskip("transformers")
    from hf_families import FAMILIES, inputs_for

    for cache in (None, "static"):
        model = FAMILIES["mistral"].make("sdpa")
        given, _ = inputs_for(FAMILIES["mistral"])
        with qkv.tap(model, runs=4) as record:
            model.generate(**given, max_new_tokens=6, do_sample=False, cache_implementation=cache)
        assert [layer.run for layer in record] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert record[6].q.shape[2] == 1
        for layer in record.layers[2:]:  # rows of padding see nothing, or everything
            torch.testing.assert_close(layer.attend(), layer.out, rtol=2e-5, atol=2e-6)


# ---- files ----


def read(path: Path, *arguments: str) -> str:
    return subprocess.run([command(), *arguments, str(path)], check=True, capture_output=True, text=True).stdout


def test_a_saved_record_is_read_by_the_command(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import qkv.hf
    from hf_families import FAMILIES, inputs_for

    qkv.hf.register()
    for name in ("bert", "gpt2", "gemma2", "gpt_oss", "whisper"):
        family = FAMILIES[name]
        given, _ = inputs_for(family)
        for implementation in ("eager", "qkv"):
            model, path = family.make(implementation), tmp_path / f"{name}-{implementation}.npz"
            with torch.no_grad(), qkv.tap(model) as record:
                model(**given)
            record.save(path, tokens=[f"t{n}" for n in range(13)] if name != "whisper" else None)
            assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(path.stem)) == [
                f"{path.stem}.json",
                path.name,
            ]
            checked = read(path, "compare")
            rows = [line.split() for line in checked.splitlines() if line.split()[1:2] == ["out"]]
            assert len(rows) == len(record) and all(float(x) < 1e-4 for row in rows for x in row[2:]), checked
            if name != "whisper":
                assert "t12" in read(path, "see", "--layer", "1", "--head", "2")


def test_layers_with_different_masks_are_saved_with_one_formula(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, q: Any) -> Any:
            a = qkv.attention(q, q, q, causal=True, scale=0.3)
            return qkv.attention(a, a, a, window=(1, 1), bias=torch.randn(4, 5, 5))

    model = torch.nn.Sequential(Two(), Two())
    with qkv.tap(model) as record:
        model(torch.randn(2, 4, 5, 8))
    with pytest.raises(ValueError, match="run=0 to run=1"):
        record.save(tmp_path / "two.npz")
    record.layers = [layer for layer in record if layer.name == "0"]
    for n, layer in enumerate(record):
        layer.name, layer.run = str(n), 0
    record.save(tmp_path / "two.npz")
    saved = np.load(tmp_path / "two.npz")
    said = json.loads((tmp_path / "two.json").read_text())
    assert said["attention"] == "keep_mask | bias | softmax"
    assert sorted(n for n in saved if n.startswith("layer0")) == [
        "layer0.bias", "layer0.k", "layer0.keep_mask", "layer0.out", "layer0.q", "layer0.scale", "layer0.v"
    ]  # fmt: skip
    for n, layer in enumerate(record):
        assert np.array_equal(saved[f"layer{n}.out"], layer.out.numpy())
    read(tmp_path / "two.npz", "compare")


def test_a_record_is_seen(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = qkv.attention(x, x, x, causal=True)
            return qkv.attention(x, x, x, softcap=3.0)

    model = torch.nn.Sequential(Two())
    with qkv.tap(model) as record:
        model(torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0)))
    for n, layer in enumerate(record):
        layer.name, layer.run = str(n), 0
    tokens = ["the", "cat", "sat", "on", "it"]
    both = record.see(tokens=tokens)
    assert [layer["layer"] for layer in both.data["layers"]] == [0, 1]
    one = record.see(tokens=tokens, layer=1, head=0)
    assert "cat" in one.text(color="never")
    mine = qkv.see(record[1].q, record[1].k, softcap=3.0, layer=1, head=0, tokens=tokens)
    assert one.data == mine.data
    both.save(tmp_path / "page.html")
    assert repr(record) == "<record of 2 attentions in 2 modules: '0', '1'>"
    assert record[1:].see(tokens=tokens, head=0).data == record.see(tokens=tokens, layer=1, head=0).data | {"layer": 0}
    assert [layer.name for layer in record[::-1]] == ["1", "0"]
    with pytest.raises(TypeError, match=r"call record\.see\("):
        qkv.see(record)
    with pytest.raises(TypeError, match=r"call see\(layer\.q, layer\.k, "):
        qkv.see(record[0])
    with pytest.raises(TypeError, match="layer is '1'"):
        record.see(layer="1")
    with pytest.raises(TypeError, match="tokens.split"):
        record[:1].save(tmp_path / "x.npz", tokens="abcde")
    with pytest.raises(ValueError, match="tokens has 4 texts, and there are 5 queries and 5 keys"):
        record[:1].save(tmp_path / "x.npz", tokens=tokens[:4])
    assert not (tmp_path / "x.npz").exists()
    with pytest.raises(ValueError, match="layer is 2, expected 0 to 1"):
        record.see(layer=2)
    with pytest.raises(ValueError, match="no attention was recorded for run 7"):
        record.see(run=7)


def test_bfloat16_is_marked(tmp_path: Path) -> None:
    model, x = Fused(), torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    with qkv.tap(model) as record:
        model(x, x, x)
    record.save(tmp_path / "narrow.npz")
    assert json.loads((tmp_path / "narrow.json").read_text())["bfloat16"] == [
        "layer0.q",
        "layer0.k",
        "layer0.v",
        "layer0.out",
    ]
    assert np.load(tmp_path / "narrow.npz")["layer0.q"].dtype == np.float32
    read(tmp_path / "narrow.npz", "compare")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    model, x = Fused(), torch.randn(1, 2, 5, 8)
    with qkv.tap(model) as record:
        model(x, x, x)
    with pytest.raises(ValueError, match="does not end in .npz"):
        record.save(tmp_path / "dump.bin")
    with pytest.raises(TypeError):
        record.save(tmp_path / "dump.npz", tokens=[object()])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no attention was recorded"):
        record.save(tmp_path / "dump.npz", run=3)
