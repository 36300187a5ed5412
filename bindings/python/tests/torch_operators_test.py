"""qkv.attention on tensors: derivatives, and what compiles, exports, maps and watches."""

from __future__ import annotations

import io
import itertools
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import qkv
from torch import Tensor
from torch.autograd import forward_ad, gradcheck
from torch_cases import BATCH, CASES, HEADS, KEYS, QUERIES, VALUES, WIDTH, numbers
from torch_oracle import random


def outputs_of(case: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """out and lse, which is finite in the place of empty rows."""
    attend = CASES[case].function(return_lse=True)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = attend(*tensors)
        return out, lse.where(lse > -torch.inf, 0.0)

    return function


def test_tensors_of_numpy_and_torch_do_not_mix() -> None:
    q, k, v = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4, requires_grad=True), torch.zeros(1, 2, 5, 4)
    a, bias = torch.zeros(1, 2, 3, 4).numpy(), torch.zeros(3, 3)
    with pytest.raises(TypeError, match="q is no tensor of torch and k is one; pass k.numpy"):
        qkv.attention(a, k, v)
    with pytest.raises(TypeError, match=r"q is a tensor of torch and v is not one; pass torch.from_numpy\(v\)"):
        qkv.attention(q, k, v.numpy())
    with pytest.raises(TypeError, match=r"q is no tensor of torch and bias is one; pass bias.numpy\(\), or q as one"):
        qkv.attention(a, a, a, bias=bias)
    with pytest.raises(TypeError, match=r"outs\[0\] is a tensor of torch and lses\[0\] is not one; pass torch.from_numpy"):
        qkv.merge([q], [q[..., 0].numpy()])
    with pytest.raises(TypeError, match="dout is one"):
        qkv.attention_backward(q, a, a, a, a, a[..., 0])
    lengths = torch.tensor([4])  # whole numbers are taken from anywhere
    assert torch.equal(qkv.attention(q, k, v, kv_lengths=lengths.numpy()), qkv.attention(q, k, v, kv_lengths=lengths))


def constants() -> dict[str, dict[str, Any]]:
    """Options of NumPy that may stand beside tensors."""
    generator = np.random.default_rng(0)
    some = generator.random((HEADS, QUERIES, KEYS)) < 0.7
    locked = generator.standard_normal((QUERIES, KEYS))
    locked.flags.writeable = False
    return {
        "keep_mask": {"keep_mask": some},
        "ignore_mask": {"ignore_mask": some[0, :, ::-1]},
        "bias": {"bias": locked},
        "bias of all": {"bias": np.broadcast_to(np.float32(0.5), (QUERIES, KEYS))},
        "slopes": {"alibi_slopes": qkv.alibi_slopes(HEADS), "align": "top_left"},
        "sinks": {"sinks": np.ones(1, np.float16)},
        "scale and cap": {"scale": generator.random(HEADS), "softcap": np.array(3.0)},
        "dropout": {"dropout_keep": some, "dropout": 0.5, "training": True},
    }


@pytest.mark.parametrize("case", constants())
@pytest.mark.parametrize("grad", [True, False])
def test_constants_of_numpy_are_taken_beside_tensors(case: str, grad: bool) -> None:
    options = constants()[case]
    q, k, v = (x.detach().requires_grad_(grad) for x in CASES["plain"].tensors())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = qkv.attention(q, k, v, **options)
    assert out.requires_grad == grad
    np.testing.assert_array_equal(out.detach().numpy(), qkv.attention(*(x.detach().numpy() for x in (q, k, v)), **options))


def test_constants_of_numpy_are_not_copied() -> None:
    q = torch.zeros(1, 1, 1, 4)
    k = torch.zeros(1, 1, 1, 4).expand(1, 1, 2_000_000, 4)
    mask, bias = np.ones((1, 2_000_000), bool), np.broadcast_to(np.float32(1), (1, 2_000_000))
    tracemalloc.start()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        qkv.attention(q, k, k, keep_mask=mask, bias=bias)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    allocated = sum(max(event.cpu_memory_usage, 0) for event in profile.function_events if event.cpu_parent is None)
    assert allocated < 1_000_000 and traced < 5_000_000


@pytest.mark.parametrize("name", ["k", "v", "keep_mask", "bias", "kv_lengths", "sinks", "scale"])
def test_some_tensors_without_memory_are_refused(name: str) -> None:
    q, k, v = plain()
    options = {
        "keep_mask": torch.ones(QUERIES, KEYS, dtype=torch.bool),
        "bias": torch.zeros(QUERIES, KEYS),
        "kv_lengths": torch.tensor([1, 2]),
        "sinks": torch.zeros(HEADS),
        "scale": torch.ones(HEADS),
    }
    given: dict[str, Any] = dict(q=q, k=k, v=v)
    given[name] = given.get(name, options.get(name)).to("meta")
    with pytest.raises(TypeError, match=f"^{name} is on meta and q is not"):
        qkv.attention(**given)
    given = {"q": q.to("meta"), "k": k, "v": v}
    with pytest.raises(TypeError, match="^q is on meta and k is not"):
        qkv.attention(**given, return_lse=True)


def test_parts_without_memory_are_refused() -> None:
    _, out, lse = of_rows()
    with pytest.raises(TypeError, match=r"^lses\[1\] is on meta and outs\[0\] is not"):
        qkv.merge([out, out], [lse, lse.to("meta")])


def test_tensors_that_are_not_plain_are_refused() -> None:
    q, k, v = (x.float() for x in plain())
    made = [x.to_sparse() for x in (q, k, v)], [x.to_mkldnn() for x in (q, k, v)]
    nested = [torch.nested.nested_tensor([q[0], q[1]], layout=layout) for layout in (torch.strided, torch.jagged)]
    for tensors in (*made, *([x] * 3 for x in nested)):
        with pytest.raises(
            TypeError, match="^q is nested or sparse; qkv takes plain tensors, and attention_varlen packed ones"
        ):
            qkv.attention(*tensors)
    with pytest.raises(TypeError, match="^keep_mask is nested or sparse"):
        qkv.attention(q, k, v, keep_mask=torch.ones(QUERIES, KEYS, dtype=torch.bool).to_sparse())
    with pytest.raises(TypeError, match="^q has type complex64, expected one of [a-z0-9, ]*$"):
        qkv.attention(q.cfloat(), k, v)
    with pytest.raises(TypeError, match=r"^q is a list, expected an array; pass torch.stack\(q\)"):
        qkv.attention(list(q), k, v)


@pytest.mark.parametrize(
    "lengths",
    [torch.tensor([-(2**63), 3]), torch.tensor([2**64 - 1, 3], dtype=torch.uint64), torch.tensor([2**31, 3]), [2**80, 3]],
    ids=str,
)
def test_whole_numbers_that_do_not_fit_are_refused(lengths: Any) -> None:
    with pytest.raises(ValueError, match="kv_lengths holds numbers beyond int32"):
        qkv.attention(*plain(), kv_lengths=lengths)


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int64], ids=str)
def test_whole_numbers_of_any_type_are_taken(kind: torch.dtype) -> None:
    got = qkv.attention(*plain(), kv_lengths=torch.tensor([2, 3], dtype=kind))
    assert got.equal(qkv.attention(*plain(), kv_lengths=[2, 3]))


def test_what_are_no_whole_numbers_is_refused() -> None:
    for lengths, told in (("ab", "is a str"), ([[1], [2, 3]], "is a list"), ([1.0, 2.0], "has type float32")):
        with pytest.raises(TypeError, match=f"^kv_lengths {told}, expected whole numbers"):
            qkv.attention(*plain(), kv_lengths=lengths)


# ---- gradients ----


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_differences(case: str) -> None:
    assert gradcheck(outputs_of(case), CASES[case].tensors())


@pytest.mark.parametrize("case", CASES)
def test_gradients_by_weights_before_dropout_are_the_differences(case: str) -> None:
    attend = CASES[case].function(return_weights=True)
    q, k, v, *learned = CASES[case].tensors()
    assert gradcheck(lambda q, k, *learned: attend(q, k, v, *learned).weights, (q, k, *learned))


@pytest.mark.parametrize("packed", ["sinks", "bias", "dropout"])
def test_gradients_of_packed_batches_are_the_differences(packed: str) -> None:
    q, k, v = numbers(5, HEADS, WIDTH), numbers(7, 2, WIDTH, seed=1), numbers(7, 2, VALUES, seed=2)
    more = {"sinks": numbers(HEADS), "bias": numbers(HEADS, 1, 4), "dropout": torch.tensor(0.0)}[packed]
    options = {"dropout": 0.3, "training": True, "seed": 5} if packed == "dropout" else {}
    starts = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 7])

    def attend(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Any:
        learned = {} if packed == "dropout" else {packed: x}
        return tuple(qkv.attention_varlen(q, k, v, *starts, return_lse=True, **learned, **options))

    inputs = [x.requires_grad_() for x in (q, k, v, *([] if packed == "dropout" else [more]))]
    assert gradcheck(lambda *x: attend(*x) if len(x) == 4 else attend(*x, more), inputs)


#: Where the keys are cut, and which of them exist for each query, {QUERIES, KEYS} or for all.
MERGES: dict[str, tuple[list[int], Tensor]] = {
    "one part": ([0, KEYS], torch.ones(1, KEYS, dtype=torch.bool)),
    "two parts": ([0, 2, KEYS], torch.ones(1, KEYS, dtype=torch.bool)),
    "a part for each key": ([*range(KEYS + 1)], torch.ones(1, KEYS, dtype=torch.bool)),
    "a part that nobody sees": ([0, 2, 3, KEYS], torch.tensor([[True, True, False, True, True]])),
    "a part that one query sees": ([0, 2, KEYS], torch.arange(KEYS) >= torch.tensor([[0], [2], [4]])),
    "a query that sees nothing": ([0, 2, KEYS], torch.tensor([[True] * KEYS, [False] * KEYS, [True] * KEYS])),
}


@pytest.mark.parametrize("with_sinks", [True, False])
@pytest.mark.parametrize("case", MERGES)
def test_gradients_through_a_merge_are_the_differences(case: str, with_sinks: bool) -> None:
    q, k, v, sinks = CASES["sinks"].tensors()
    cuts, keep = MERGES[case]

    def in_parts(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Any:
        parts = [
            qkv.attention(q, k[:, :, a:b], v[:, :, a:b], keep_mask=keep[:, a:b], return_lse=True)
            for a, b in itertools.pairwise(cuts)
        ]
        out, lse = qkv.merge([p.out for p in parts], [p.lse for p in parts], sinks=sinks if with_sinks else None)
        return out, lse.where(lse > -torch.inf, 0.0)

    inputs = (q, k, v, sinks if with_sinks else sinks.detach())
    assert gradcheck(in_parts, inputs)
    out, lse = qkv.attention(q, k, v, keep_mask=keep, sinks=sinks if with_sinks else None, return_lse=True)
    for part, expected in zip(in_parts(*inputs), (out, lse.where(lse > -torch.inf, 0.0))):
        torch.testing.assert_close(part, expected)


@pytest.mark.parametrize("needing", range(5))
def test_only_what_needs_a_gradient_gets_one(needing: int) -> None:
    case = CASES["everything"]
    everything = case.tensors()
    expected = torch.autograd.grad(case.function()(*everything).sum(), everything)[needing]
    some = [x.detach().requires_grad_(n == needing) for n, x in enumerate(everything)]
    case.function()(*some).sum().backward()
    assert some[needing].grad is not None and some[needing].grad.equal(expected)
    assert all(x.grad is None for n, x in enumerate(some) if n != needing)


def test_gradients_of_one_output_alone() -> None:
    q, k, v = CASES["plain"].tensors()
    _, lse, weights = qkv.attention(q, k, v, return_lse=True, return_weights=True)
    scores = (q @ k.repeat_interleave(2, 1).mT) / WIDTH**0.5
    for got, expected in ((lse, scores.logsumexp(-1)), (weights, scores.softmax(-1))):
        upstream = numbers(*got.shape)
        ours = torch.autograd.grad(got, (q, k), upstream, retain_graph=True)
        theirs = torch.autograd.grad(expected, (q, k), upstream, retain_graph=True)
        for x, y in zip(ours, theirs):
            torch.testing.assert_close(x, y)
    assert not torch.autograd.grad(lse.sum(), v)[0].any()


def test_statistics_have_no_gradient() -> None:
    q, k, v = CASES["plain"].tensors()
    got = qkv.attention(q, k, v, return_stats=True, top=2)
    assert got.out.requires_grad
    assert not any(x.requires_grad for x in (*got.stats, *got.top))


def test_parameters_learn() -> None:
    sinks = torch.nn.Parameter(torch.zeros(HEADS))
    q, k, v = (torch.nn.Parameter(x.detach().float()) for x in CASES["plain"].tensors())
    step = torch.optim.SGD([q, k, v, sinks], lr=0.1)
    losses = []
    for _ in range(5):
        step.zero_grad()
        loss = (qkv.attention(q, k, v, sinks=sinks) - 1).square().mean()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and sinks.abs().min() > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Callable[[], Any]) -> None:
    case = CASES["everything"]
    tensors = case.tensors()
    expected = case.function(return_weights=True)(*tensors)
    with mode():
        got = case.function(return_weights=True)(*tensors)
    for x, y in zip(got, expected):
        assert not x.requires_grad and x.equal(y.detach())


def test_there_is_no_second_derivative() -> None:
    case = CASES["everything"]
    tensors = case.tensors()
    for function in (case.function(), case.function(return_weights=True)):
        made = function(*tensors)
        made = made if isinstance(made, Tensor) else made.weights
        (gradient,) = torch.autograd.grad(made.square().sum(), tensors[0], create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            gradient.sum().backward()
    outs, lses = [numbers(1, 2, 3, 4).requires_grad_()], [numbers(1, 2, 3)]
    (gradient,) = torch.autograd.grad(qkv.merge(outs, lses).out.square().sum(), outs, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_derivatives_in_forward_mode_are_refused() -> None:
    q, k, v = (x.detach() for x in CASES["plain"].tensors())
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        qkv.attention(q, k, forward_ad.make_dual(v, v))
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jacfwd(lambda q: qkv.attention(q, k, v).sum())(q)
    with pytest.raises(RuntimeError, match="forward mode AD"):
        torch.func.hessian(lambda q: qkv.attention(q, k, v).sum())(q)
    with forward_ad.dual_level():
        qkv.attention(q, k, v)
    lse = numbers(1, 2, 3)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda out: qkv.merge([out], [lse]).out, (numbers(1, 2, 3, 4),), (numbers(1, 2, 3, 4),))


# ---- dropout ----


def test_the_generator_of_pytorch_repeats_dropout() -> None:
    q, k, v = CASES["plain"].tensors()
    options = {"dropout": 0.5, "training": True}
    torch.manual_seed(6)
    out, other = (qkv.attention(q, k, v, **options) for _ in range(2))
    torch.manual_seed(6)
    assert qkv.attention(q, k, v, **options).equal(out)
    assert not out.equal(other)


# ---- operators ----

ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "forward": lambda: (CASES["plain"].tensors(), "query,key,value", "softmax", None, False),
    "forward with dropout": lambda: (CASES["sinks"].tensors(), "query,key,value,sinks", SINKS, torch.tensor([3]), True),
    "backward": lambda: (
        plain(),
        [*of_rows()],
        "query,key,value",
        "dout,out,lse",
        "softmax",
        None,
        "key,query",
    ),
    "weigh": lambda: (CASES["sinks"].tensors(), "query,key,value,sinks", "sink_softmax"),
    "look": lambda: (
        plain(),
        "query,key,value",
        "softmax",
        "entropy,top_indices",
        2,
    ),
    "merge": lambda: ([numbers(1, 2, 3, 4).requires_grad_()] * 2, [numbers(1, 2, 3).requires_grad_()] * 2, numbers(2)),
    "merge_backward": lambda: (
        [numbers(1, 2, 3, 4)],
        [numbers(1, 2, 3)],
        numbers(2),
        numbers(1, 2, 3, 4),
        numbers(1, 2, 3),
    ),
}
SINKS = "sink_softmax dropout:0.5"


def plain() -> list[Tensor]:
    return [x.detach() for x in CASES["plain"].tensors()]


def of_rows() -> tuple[Tensor, Tensor, Tensor]:
    """dout, out, lse."""
    made = qkv.attention(*CASES["plain"].tensors(), return_lse=True)
    return numbers(*made.out.shape), made.out.detach(), made.lse.detach()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_operators_keep_the_rules_of_pytorch(name: str) -> None:
    operator = getattr(torch.ops.qkv, name.split(" ", maxsplit=1)[0]).default
    torch.library.opcheck(operator, ARGUMENTS[name]())


# ---- compilers ----


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, backend="aot_eager", **options)
    return made


def assert_same(got: Any, expected: Any) -> None:
    for x, y in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert x.equal(y) and x.stride() == y.stride()


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("bias")] + ["bias 1 4 3 1"])
def test_it_compiles(case: str) -> None:
    function, tensors = outputs_of(case), CASES[case].tensors()
    got, expected = compiled(function)(*tensors), function(*tensors)
    assert_same(got, expected)
    upstream = [numbers(*x.shape, seed=3) for x in expected]
    assert_same(torch.autograd.grad(got, tensors, upstream), torch.autograd.grad(expected, tensors, upstream))


def test_everything_that_may_be_asked_for_compiles() -> None:
    tensors = CASES["sinks"].tensors()
    function = CASES["sinks"].function(return_lse=True, return_weights=True, return_stats=True, top=2)
    got, expected = compiled(function)(*tensors), function(*tensors)
    assert_same(got, expected)
    upstream = numbers(*expected.weights.shape)
    inputs = [tensors[0], tensors[1], tensors[3]]
    assert_same(torch.autograd.grad(got.weights, inputs, upstream), torch.autograd.grad(expected.weights, inputs, upstream))


def test_a_compiled_function_draws_anew_and_repeats_with_the_seed() -> None:
    tensors = CASES["plain"].tensors()
    function = compiled(CASES["plain"].function(dropout=0.5, training=True))
    torch.manual_seed(6)
    out, other = function(*tensors), function(*tensors)
    torch.manual_seed(6)
    assert function(*tensors).equal(out)
    assert not out.equal(other)


NUMBERS: dict[str, tuple[Callable[[Any], dict[str, Any]], list[Any]]] = {
    "offset": (lambda n: {"causal": True, "q_offset": n}, [0, 1, 2, 5]),
    "offsets": (lambda n: {"causal": True, "q_offset": [n, 1]}, [0, 1, 2, 5]),
    "lengths": (
        lambda n: {"kv_lengths": n},
        [torch.tensor([1, 5]), torch.tensor([3, 2]), torch.tensor([0, 0], dtype=torch.int32)],
    ),
    "window": (lambda n: {"window": (n, 0), "align": "top_left"}, [-1, 0, 1, 2]),
    "scale": (lambda n: {"scale": n}, [0.25, 0.5, 0.75, 2]),
    "cap": (lambda n: {"softcap": n}, [1, 2, 3, 0.5]),
    "formula": (
        lambda n: {"attention": n},
        ["softcap:2", "zero_key", qkv.Attention("causal align:top_left | scale:2")],
    ),
}


@pytest.mark.parametrize("option", NUMBERS)
def test_a_compiled_function_takes_other_numbers(option: str) -> None:
    options, values = NUMBERS[option]
    q, k, v = CASES["plain"].tensors()
    function = compiled(lambda q, k, v, n: qkv.attention(q, k, v, **options(n)))
    for n in values:
        assert_same(function(q, k, v, n), qkv.attention(q, k, v, **options(n)))


def test_a_compiled_function_takes_other_sizes() -> None:
    function = compiled(lambda q, k: qkv.attention(q, k, k, causal=True, align="bottom_right", return_lse=True), dynamic=True)
    for b, h, n, s, d in ((1, 2, 3, 4, 5), (2, 2, 5, 9, 6), (3, 4, 1, 17, 2)):
        q, k = random(b, h, n, d), random(b, h, s, d)
        assert_same(function(q, k), qkv.attention(q, k, k, causal=True, align="bottom_right", return_lse=True))


def test_packed_batches_and_merges_compile() -> None:
    q, k = random(7, 4, 8), random(9, 2, 8)
    cu_q, cu_k = torch.tensor([0, 3, 7]), torch.tensor([0, 4, 9])

    def packed(*x: Tensor) -> Any:
        return qkv.attention_varlen(*x, causal=True, align="bottom_right", return_lse=True)

    assert_same(compiled(packed)(q, k, k, cu_q, cu_k), packed(q, k, k, cu_q, cu_k))

    def merged(q: Tensor, k: Tensor) -> Any:
        parts = [qkv.attention(q, part, part, return_lse=True) for part in k.split(2, -2)]
        return qkv.merge([p.out for p in parts], [p.lse for p in parts])

    q, k = random(1, 4, 3, 8), random(1, 4, 6, 8)
    assert_same(compiled(merged)(q, k), merged(q, k))


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sinks = torch.nn.Parameter(torch.ones(HEADS, dtype=torch.float64))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        made: Tensor = qkv.attention(q, k, v, kv_lengths=lengths, sinks=self.sinks, softcap=3.0)
        return made


@pytest.mark.parametrize("strict", [True, False])
def test_it_exports(strict: bool) -> None:
    q, k, v = (x.detach() for x in CASES["plain"].tensors())
    arguments = (q, k, v, torch.tensor([3, 5]))
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(Module(), arguments, strict=strict, dynamic_shapes=[{0: batch}] * 4)
    assert "qkv.forward" in str(program.graph)
    for n in (1, 2):
        some = [x[:n] for x in arguments]
        assert program.module()(*some).equal(Module()(*some))


def test_an_exported_program_with_everything_is_saved_and_read_again() -> None:
    class Everything(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return qkv.attention(q, k, v, return_lse=True, return_weights=True, return_stats=True, top=2)

    tensors, file = tuple(plain()), io.BytesIO()
    torch.export.save(torch.export.export(Everything(), tensors), file)
    file.seek(0)
    got, expected = torch.export.load(file).module()(*tensors), Everything()(*tensors)
    assert type(got) is type(expected)
    assert_same(got, expected)


#: Functions that are no operators.
OF_MEMORY: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "visible": lambda q, k, v: qkv.visible(q, k, v),
    "observe": lambda q, k, v: qkv.observe(q, k, v).received,
    "explain_path": lambda q, k, v: qkv.explain_path(q, k, v),
    "attention_backward": lambda q, k, v: qkv.attention_backward(v, q, k, v, v, v[..., 0]).q,
    "explain": lambda q, k, v: qkv.explain(q, k, v).agrees,
}


@pytest.mark.parametrize("name", OF_MEMORY)
def test_functions_of_memory_say_that_nobody_sees_through_them(name: str) -> None:
    function, (q, k, v) = OF_MEMORY[name], (numbers(BATCH, HEADS, 3, 4, seed=n) for n in range(3))
    with pytest.raises(NotImplementedError, match=f"^{name} looks at numbers in memory, and there are none inside torch.func"):
        torch.vmap(function)(*(x[None] for x in (q, k, v)))
    with pytest.raises(NotImplementedError, match=f"^{name} looks at numbers in memory"):
        function(*(x.to("meta") for x in (q, k, v)))
    with pytest.raises(Exception, match=f"qkv.{name} looks at memory; call it outside"):
        compiled(function)(q, k, v)
    torch.compiler.reset()
    got, expected = torch.compile(function, backend="aot_eager")(q, k, v), function(q, k, v)
    assert got.equal(expected) if isinstance(got, Tensor) else got == expected


def test_a_compiled_function_takes_constants_of_numpy() -> None:
    q, k, v = plain()
    bias = np.broadcast_to(np.float32(0.5), (QUERIES, KEYS))

    def attend(q: Tensor) -> Any:
        return qkv.attention(q, k, v, alibi_slopes=qkv.alibi_slopes(HEADS), bias=bias, align="top_left")

    assert compiled(attend)(q).equal(attend(q))


def test_a_program_keeps_constants_of_numpy() -> None:
    class Biased(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return qkv.attention(q, k, v, alibi_slopes=qkv.alibi_slopes(HEADS), align="top_left")

    program = torch.export.export(Biased(), tuple(plain()), strict=False)
    assert program.module()(*plain()).equal(Biased()(*plain()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_is_no_picture_of_its_example() -> None:
    q, k, v = (x.detach() for x in CASES["plain"].tensors())
    traced = torch.jit.trace(CASES["plain"].function(), (q, k, v))
    assert traced(2 * q, k, v).equal(qkv.attention(2 * q, k, v))


# ---- transformations and modes ----


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 2, 1), (3, 0, None)], ids=str)
def test_it_maps(in_dims: tuple[int | None, ...]) -> None:
    sizes = [(BATCH, HEADS, QUERIES, WIDTH), (BATCH, 2, KEYS, WIDTH), (BATCH, 2, KEYS, VALUES)]
    tensors = [
        numbers(6, *s, seed=n).movedim(0, d or 0) if d is not None else numbers(*s)
        for n, (s, d) in enumerate(zip(sizes, in_dims))
    ]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return tuple(qkv.attention(q, k, v, causal=True, align="top_left", return_lse=True, return_weights=True))

    got = torch.vmap(attend, in_dims)(*tensors)
    for n in range(6):
        one = attend(*(x if d is None else x.select(d, n) for x, d in zip(tensors, in_dims)))
        assert_same([x[n] for x in got], list(one))


def test_it_maps_over_options() -> None:
    q, k, v = plain()
    lengths, bias = torch.tensor([[3, 5], [0, 1], [4, 4]]), numbers(3, QUERIES, KEYS)
    got = torch.vmap(lambda n, b: qkv.attention(q, k, v, kv_lengths=n, bias=b))(lengths, bias)
    for x, n, b in zip(got, lengths, bias):
        assert x.equal(qkv.attention(q, k, v, kv_lengths=n, bias=b))


def test_it_maps_over_gradients_and_the_other_way() -> None:
    q, k, v = (x.detach() for x in CASES["plain"].tensors())
    expected = torch.autograd.functional.jacobian(lambda q: qkv.attention(q, k, v), q)
    torch.testing.assert_close(torch.func.jacrev(lambda q: qkv.attention(q, k, v))(q), expected)
    each = torch.func.vmap(torch.func.grad(lambda q, k, v: qkv.attention(q, k, v).square().sum()))(q, k, v)
    q.requires_grad_()
    (whole,) = torch.autograd.grad(qkv.attention(q, k, v).square().sum(), q)
    torch.testing.assert_close(each, whole)
    (other,) = torch.func.vjp(lambda q: torch.vmap(qkv.attention)(q, k, v), q)[1](2 * qkv.attention(q, k, v).detach())
    torch.testing.assert_close(other, whole)
    with pytest.raises(NotImplementedError, match="is_grads_batched"):
        torch.autograd.functional.jacobian(lambda q: qkv.attention(q, k, v), q, vectorize=True)


def test_functions_of_torch_see_weights_statistics_and_merges() -> None:
    q, k, v = plain()

    def everything(q: Tensor) -> tuple[Tensor, Any]:
        made = qkv.attention(q, k, v, return_lse=True, return_weights=True, return_stats=True, top=2)
        whole = qkv.merge([made.out, made.out], [made.lse, made.lse])
        return made.weights.square().sum() + whole.out.sum() + whole.lse.sum(), (made.stats, made.top)

    (gradient, seen) = torch.func.grad(everything, has_aux=True)(q)
    leaf = q.clone().requires_grad_()
    loss, expected = everything(leaf)
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, leaf)[0])
    assert_same(seen, expected)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(lambda q: everything(q)[0])(q).sum())(q)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_in_a_map(randomness: str) -> None:
    q = torch.ones(2, 1, 1, 64, 4)
    function = torch.vmap(lambda q: qkv.attention(q, q, q, dropout=0.5, training=True), randomness=randomness)
    first, second = function(q)
    assert first.equal(second) == (randomness == "same")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_takes_its_type(kind: torch.dtype) -> None:
    q, k, v = (x.detach().float().requires_grad_() for x in CASES["plain"].tensors())
    bias = torch.zeros(QUERIES, KEYS, requires_grad=True)
    with torch.autocast("cpu", dtype=kind):
        out = qkv.attention(q, k.to(kind), v, bias=bias)
    assert out.dtype == kind
    assert out.equal(qkv.attention(q.to(kind), k.to(kind), v.to(kind), bias=bias))
    assert {x.dtype for x in torch.autograd.grad(out.sum(), (q, v, bias))} == {torch.float32}
    wide = CASES["plain"].tensors()
    with torch.autocast("cpu", dtype=kind):
        assert qkv.attention(*wide).dtype == torch.float64


def test_autocast_takes_its_type_backward_too() -> None:
    tensors = [x.detach().float().requires_grad_() for x in CASES["plain"].tensors()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = qkv.attention(*tensors, return_lse=True)
        dout = torch.ones_like(out, dtype=torch.float32)
        got = qkv.attention_backward(dout, *(x.detach() for x in tensors), out.detach(), lse.detach())
    expected = torch.autograd.grad(out, tensors, dout.bfloat16())
    for x, y in zip(got[:3], expected):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-2)


def test_a_default_device_or_a_mode_of_fake_tensors_changes_nothing() -> None:
    from torch._subclasses import FakeTensorMode

    q, k, v = plain()
    options = {"dropout": 0.5, "training": True, "seed": 3, "q_offset": 2, "causal": True, "kv_lengths": [3, 4]}
    with torch.device("meta"):
        out = qkv.attention(q, k, v, **options)
    assert out.equal(qkv.attention(q, k, v, **options))
    with FakeTensorMode() as mode:
        q, k, v, bias, lengths = (mode.from_tensor(x) for x in (q, k, v, torch.ones(1, KEYS), torch.tensor([3, 4])))
        assert qkv.attention(q, k, v, bias=bias, kv_lengths=lengths).shape == (BATCH, HEADS, QUERIES, VALUES)
    assert qkv.attention(*(x.to("meta") for x in plain()), **options).is_meta


def test_a_mode_sees_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    tensors = plain()
    with Spy():
        qkv.attention(*tensors)
    assert seen == ["qkv.forward.default"]


class Tagged(torch.Tensor):
    """A subclass that adds nothing."""


def test_subclasses_stay_what_they_are() -> None:
    q, k, v = (x.detach().as_subclass(Tagged) for x in CASES["plain"].tensors())
    assert type(qkv.attention(q, k, v)) is Tagged
