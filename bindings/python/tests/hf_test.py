"""attn_implementation="qkv" gives what "eager" gives, for every family of transformers that uses one of our options."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import qkv.hf
from hf_families import FAMILIES, inputs_for

qkv.hf.register()
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:.output_attentions=True. is not supported")

CASES = pytest.mark.parametrize("name", FAMILIES)
GENERATING = pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.kind in ("decoder", "seq2seq", "audio")])


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each attention, so that a test can say that it was called, and how."""
    seen: list[dict[str, Any]] = []
    inner, compute = qkv.hf.fill, qkv.hf.run

    def fill(problem: Any, options: Any) -> None:
        seen.append(dict(options))
        inner(problem, options)

    def run(problem: Any, wanted: Any, top: int) -> Any:
        seen[-1]["makes_weights"] = "weights" in wanted
        return compute(problem, wanted, top)

    monkeypatch.setattr(qkv.hf, "fill", fill)
    monkeypatch.setattr(qkv.hf, "run", run)
    return seen


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2", ""])
def test_a_name_that_stands_for_another_attention_is_refused(name: str) -> None:
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    before = functions.get(name)
    with pytest.raises(ValueError, match=f"^name is '{name}', which stands for another attention"):
        qkv.hf.register(name)
    assert functions.get(name) is before
    with pytest.raises(TypeError, match="^name is 5, expected a text"):
        qkv.hf.register(5)  # type: ignore[arg-type]


def pair(name: str, **more: Any) -> tuple[Any, Any]:
    """The same model with eager and with qkv."""
    family = FAMILIES[name]
    theirs, ours = family.make("eager", **more), family.make("qkv", **more)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def close(ours: Any, theirs: Any, what: str) -> None:
    """Equal within the rounding of float32."""
    ours, theirs = ours.detach(), theirs.detach()
    assert ours.shape == theirs.shape, what
    assert torch.isfinite(ours).all(), what
    bound = 1e-5 * max(float(theirs.abs().max()), 1e-30)
    assert float((ours - theirs).abs().max()) <= bound, f"{what}: {float((ours - theirs).abs().max())} > {bound}"


def main_output(result: Any) -> Any:
    """{B, L, ...} or {B, ...}"""
    return result.logits if "logits" in result else result.last_hidden_state


@CASES
def test_logits_weights_and_gradients(name: str, calls: list[Any]) -> None:
    family = FAMILIES[name]
    given, real = inputs_for(family)
    results, gradients = [], []
    for model in pair(name):
        result = model(**given, output_attentions=True)
        found = main_output(result)
        found = found if real is None else found[real.bool()]
        (found.float() * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
        results.append((found.detach(), result))
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    (theirs, all_theirs), (ours, all_ours) = results
    close(ours, theirs, "logits")
    looked = 0
    for kind in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        a, b = getattr(all_theirs, kind, None), getattr(all_ours, kind, None)
        assert (a is None) == (b is None), kind
        for n, (x, y) in enumerate(zip(a or (), b or (), strict=True)):
            if real is not None and x.shape[2] == real.shape[1]:
                x, y = (w.transpose(1, 2)[real.bool()] for w in (x, y))
            close(y, x, f"{kind}[{n}]")
            looked += 1
    assert looked >= 2 and len(calls) >= looked
    largest = max(float(g.abs().max()) for g in gradients[0].values() if g is not None)
    for n, theirs in gradients[0].items():
        ours = gradients[1][n]
        assert (ours is None) == (theirs is None), n
        if theirs is not None:
            assert float((ours - theirs).abs().max()) <= 2e-5 * float(theirs.abs().max()) + 2e-6 * largest, n


@GENERATING
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generates_the_same_tokens(name: str, cache: str, calls: list[Any]) -> None:
    family = FAMILIES[name]
    given, _ = inputs_for(family)
    texts = []
    for model in pair(name):
        if cache == "static" and not model._can_compile_fullgraph:
            pytest.skip("transformers has no static cache for it")
        new = {
            "max_new_tokens": 50,
            "min_new_tokens": 50,
            "do_sample": False,
            "cache_implementation": cache if cache == "static" else None,
        }
        texts.append(model.generate(**given, **new))
    assert texts[0].shape[1] >= 50 and len(calls) >= 100
    assert torch.equal(*texts)


# ---- who sees whom: words where there are words, never a wrong mask ----


def test_words_say_what_transformers_masks_say() -> None:
    """Random masks with caches, windows, chunks, packed documents and padding of every kind, against their dense masks."""
    from transformers import masking_utils as m

    draw = torch.Generator().manual_seed(7)

    def chance(n: int) -> int:
        return int(torch.randint(n, (1,), generator=draw))

    said = 0
    for _ in range(300):
        b, n, past, dropped = 1 + chance(3), 1 + chance(6), chance(6), 0
        function: Any = m.causal_mask_function
        total = past + n + 1 + chance(3)
        exists: Any = None
        if chance(2):
            exists = torch.ones(b, total - chance(2), dtype=torch.bool)
            for row in exists:
                kind = chance(4)
                row[: chance(4) if kind == 1 else 0] = False
                row[len(row) - (chance(4) if kind == 2 else 0) :] = False
                row[chance(len(row))] &= kind != 3
        if chance(2):
            function = m.and_masks(m.sliding_window_overlay(1 + chance(5)), function)
        if chance(3) == 0:
            left = torch.zeros(b, dtype=torch.int64) if exists is None else (exists.cumsum(1) == 0).sum(1)
            function = m.and_masks(m.chunked_overlay(1 + chance(4), left), function)
        elif chance(3) == 0 and exists is None:
            ids = torch.randint(2, (b, total), generator=draw).cumsum(1)
            function = m.and_masks(function, m.packed_sequence_mask_function(ids))
        if chance(2):
            dropped = chance(past + 1)
        given = {
            "batch_size": b,
            "cache_position": torch.arange(past, past + n),
            "kv_length": total - dropped,
            "kv_offset": dropped,
            "mask_function": function,
            "attention_mask": exists,
        }
        mask = qkv.hf.make_mask(**given)
        theirs = m.sdpa_mask(**given, allow_is_causal_skip=False)
        assert torch.equal(mask.dense, theirs)
        if mask.words is not None:
            q, k = torch.zeros(b, 2, n, 4), torch.zeros(b, 1, total - dropped, 4)
            ours = qkv.visible(q, k, k, **mask.words)
            assert torch.equal(ours, theirs.expand_as(ours)), mask.words
            said += 1
    assert said >= 250


@pytest.mark.parametrize(
    ("name", "padded", "words"),
    [
        ("llama", None, {"causal"}),
        ("llama", "left", {"causal", "document_ids"}),
        ("llama", "right", {"causal", "kv_lengths"}),
        ("mistral", None, {"causal", "window"}),
        ("bert", None, set()),
        ("bert", "right", {"kv_lengths"}),
        ("bert", "middle", {"keep_mask"}),
        ("vit", None, set()),
    ],
)
def test_as_little_as_possible_is_said(name: str, padded: str | None, words: set[str], calls: list[dict[str, Any]]) -> None:
    family = FAMILIES[name]
    given, _ = inputs_for(family)
    if "attention_mask" in given:
        given["attention_mask"][:] = 1
        given["attention_mask"][
            1, {None: slice(0), "left": slice(3), "right": slice(9, None), "middle": slice(4, 6)}[padded]
        ] = 0
    family.make("qkv")(**given)
    said = {n for n, x in calls[0].items() if x is not None} - {"q_offset", "key_start", "scale", "makes_weights"}
    assert said == words


def test_masks_of_the_callers_own_are_kept() -> None:
    theirs, ours = pair("llama")
    ids = torch.randint(3, 64, (2, 9))
    keep = torch.rand(2, 1, 9, 9) < 0.6
    keep |= torch.eye(9, dtype=torch.bool)
    added = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = theirs(ids, attention_mask=added).logits
        close(ours(ids, attention_mask=added).logits, want, "added")
        close(ours(ids, attention_mask=keep).logits, want, "bool")


def test_a_function_that_is_not_known_gives_its_dense_mask(calls: list[dict[str, Any]]) -> None:
    from transformers.masking_utils import create_causal_mask

    theirs, ours = pair("llama")
    ids = torch.randint(3, 64, (1, 8))
    image = torch.tensor([[0, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)

    def also(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return image[batch, query] & image[batch, key]

    want = []
    for model in (theirs, ours):
        x = model.get_input_embeddings()(ids)
        mask = create_causal_mask(model.config, x, None, torch.arange(8), past_key_values=None, or_mask_function=also)
        want.append(model(ids, attention_mask=mask).logits)
    close(want[1], want[0], "logits")
    assert "keep_mask" in calls[0] and "causal" not in calls[0]


def test_adding_a_mask_to_scores_is_refused() -> None:
    mask = qkv.hf.make_mask(2, torch.arange(3), 3)
    scores = torch.zeros(2, 4, 3, 3)
    for added in (
        lambda: scores + mask,
        lambda: scores + mask[:, :, :, :2].expand(2, 1, 3, 2)[..., :1],
        lambda: mask + scores,
    ):
        with pytest.raises(ValueError, match='attn_implementation="eager"'):
            added()
    assert torch.where(mask, 0.0, -1.0).shape == (2, 1, 3, 3)
    assert type(mask[:, :, :2] & mask[:, :, :2]) is torch.Tensor


class Layer(torch.nn.Module):
    def __init__(self, is_causal: bool | None = None) -> None:
        super().__init__()
        if is_causal is not None:
            self.is_causal = is_causal


def test_what_is_unclear_is_refused() -> None:
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8)

    def run(layer: Layer, mask: Any = None, keys: Any = k, **more: Any) -> None:
        qkv.hf.attention_forward(layer, q, keys, keys, mask, **more)

    with pytest.raises(ValueError, match="does not say whether it is causal"):
        run(Layer())
    with pytest.raises(ValueError, match="5 queries and 7 keys"):
        run(Layer(True))
    with pytest.raises(ValueError, match="sliding_window without a mask"):
        run(Layer(False), sliding_window=3)
    with pytest.raises(ValueError, match="0 and 1"):
        run(Layer(False), torch.full((2, 7), 2))
    with pytest.raises(TypeError, match="int64"):
        run(Layer(False), torch.ones(2, 1, 5, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match="there are 7 keys"):
        run(Layer(False), torch.ones(2, 1, 5, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match="one number a head"):
        run(Layer(False), head_mask=torch.ones(2, 4, 5, 7))


@pytest.mark.parametrize(
    ("model", "config", "options"),
    [
        (
            "T5Model",
            "T5Config",
            {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 64},
        ),
        ("BloomModel", "BloomConfig", {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 64}),
        (
            "ElectraModel",
            "ElectraConfig",
            {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64},
        ),
    ],
)
def test_models_without_a_choice_refuse_it(model: str, config: str, options: dict[str, Any]) -> None:
    made = getattr(transformers, config)(**options)
    made._attn_implementation = "qkv"
    with pytest.raises(ValueError, match='use attn_implementation="eager"'):
        getattr(transformers, model)(made)


# ---- around it ----


def test_it_is_set_on_a_model_that_is_there() -> None:
    theirs, _ = pair("gemma2")
    given, real = inputs_for(FAMILIES["gemma2"])
    want = theirs(**given).logits[real.bool()]
    theirs.set_attn_implementation("qkv")
    close(theirs(**given).logits[real.bool()], want, "logits")


def test_weights_are_made_only_if_asked_for(calls: list[dict[str, Any]]) -> None:
    for name in ("llama", "gpt2", "vit", "bert", "whisper", "modernbert"):
        family = FAMILIES[name]
        given, _ = inputs_for(family)
        with torch.no_grad():
            model = family.make("qkv")
            model(**given)
            assert not any(options["makes_weights"] for options in calls)
            calls.clear()
            model(**given, output_attentions=True)
            assert all(options["makes_weights"] for options in calls)
            calls.clear()


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "bert"])
def test_weights_have_gradients(name: str) -> None:
    given, real = inputs_for(FAMILIES[name])
    found = []
    for model in pair(name):
        weights = model(**given, output_attentions=True).attentions[1].transpose(1, 2)[real.bool()]
        (weights**2).sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    largest = max(float(g.abs().max()) for g in found[0].values())
    for n, g in found[0].items():
        assert float((found[1][n] - g).abs().max()) <= 2e-5 * float(g.abs().max()) + 2e-6 * largest, n


@pytest.mark.parametrize("name", ["gpt2", "bart", "vit", "bert", "distilbert"])
def test_head_masks(name: str) -> None:
    family = FAMILIES[name]
    given, real = inputs_for(family)
    factors = torch.tensor([[1.0, 0.0, 0.5, 2.0], [0.0, 1.0, 1.0, 1.0]])
    with torch.no_grad():
        theirs, ours = (model(**given, head_mask=factors, output_attentions=True) for model in pair(name))
    kind = "encoder_attentions" if name == "bart" else "attentions"
    for what, x, y in (("logits", theirs.logits, ours.logits), ("weights", theirs[kind][0], ours[kind][0])):
        if real is not None and name != "bart":
            x, y = (w[real.bool()] if what == "logits" else w.transpose(1, 2)[real.bool()] for w in (x, y))
        close(y[:1], x[:1], what)


def test_packed_sequences_do_not_see_each_other(calls: list[dict[str, Any]]) -> None:
    for name in ("llama", "mistral"):
        _, ours = pair(name)
        a, b = torch.randint(3, 64, (1, 8)), torch.randint(3, 64, (1, 5))
        ids, positions = torch.cat([a, b], 1), torch.cat([torch.arange(8), torch.arange(5)])[None]
        ends = torch.tensor([0, 8, 13], dtype=torch.int32)
        with torch.no_grad():
            want = torch.cat([ours(x).logits for x in (a, b)], 1)
            calls.clear()
            close(ours(ids, position_ids=positions, use_cache=False).logits, want, "by position_ids")
            assert all("keep_mask" not in options and "document_ids" in options for options in calls)
            by_ends = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 8, "max_length_k": 8}
            close(ours(ids, position_ids=positions, **by_ends).logits, want, "by cu_seq_lens")
            close(ours(ids, position_ids=positions, use_cache=False, **by_ends).logits, want, "by both")


def test_dropout_is_drawn_from_torch_and_drawn_again_backward() -> None:
    family = FAMILIES["llama"]
    model = family.make("qkv", attention_dropout=0.4).train()
    ids = torch.randint(3, 64, (2, 9))

    def step(seed: int, checkpoint: bool = False) -> tuple[Any, list[Any]]:
        model.zero_grad()
        if checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(seed)
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        model.gradient_checkpointing_disable()
        return loss.detach(), [p.grad.clone() for p in model.parameters()]

    (loss, gradients), (again, gradients_again), (other, _) = step(1), step(1), step(2)
    assert loss == again and all(map(torch.equal, gradients, gradients_again)) and loss != other
    again, gradients_again = step(1, checkpoint=True)
    assert loss == again and all(map(torch.equal, gradients, gradients_again))
    model.eval()
    assert model(ids, labels=ids).loss not in (loss, other)


def test_a_mask_by_words_goes_through_checkpoints_of_both_kinds() -> None:
    model = FAMILIES["mistral"].make("qkv").train()
    given, _ = inputs_for(FAMILIES["mistral"])
    found = []
    for reentrant in (None, False, True):
        model.zero_grad()
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(**given, labels=given["input_ids"], use_cache=False).loss.backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for gradients in found[1:]:
        assert all(map(torch.equal, found[0], gradients))


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "bert"])
def test_bfloat16(name: str) -> None:
    """At most twice eager's distance from the float32 model."""
    family = FAMILIES[name]
    given, real = inputs_for(family)
    with torch.no_grad():
        exact = main_output(family.make("eager")(**given))[real.bool()]
        theirs, ours = (main_output(m.bfloat16()(**given))[real.bool()] for m in pair(name))
    assert ours.dtype == torch.bfloat16
    assert float((ours - exact).abs().max()) <= 2 * float((theirs - exact).abs().max())


@pytest.mark.parametrize("name", ["mistral", "bert"])
def test_compiles(name: str) -> None:
    """Whole forward passes, and generation over a static cache whose masks are made outside."""
    given, real = inputs_for(FAMILIES[name])
    theirs, ours = pair(name)
    compiled = torch.compile(ours, backend="aot_eager")
    with torch.no_grad():
        close(compiled(**given).logits[real.bool()], theirs(**given).logits[real.bool()], "logits")
    if name == "mistral":
        new = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static"}
        want = theirs.generate(**given, **new)
        ours.forward = torch.compile(ours.forward, backend="aot_eager")
        assert torch.equal(ours.generate(**given, **new), want)
