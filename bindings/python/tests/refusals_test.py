"""What is refused, with which error, and what it says to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import qkv
from qkv import _prepare

Q = np.zeros((2, 4, 3, 8), np.float32)
K = np.zeros((2, 2, 5, 8), np.float32)
MASK = np.ones((3, 5), bool)


class Elsewhere:
    """An array that lies in the memory of another device, or of another kind."""

    def __init__(self, device: int) -> None:
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


#: Options, the error, and what its text has.
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # types
    "list": (dict(q=[[1.0]]), TypeError, r"q is a list, expected an array; pass np.asarray\(q, dtype=np.float32\)"),
    "number": (dict(k=3.0), TypeError, "k is a float, expected an array"),
    "nothing": (dict(v=None), TypeError, "v is a NoneType, expected an array of NumPy or PyTorch$"),
    "text": (dict(q="q"), TypeError, "q is a str, expected an array"),
    "numpy_number": (dict(q=np.float32(1)), TypeError, "q is a float32, expected an array"),
    "integers": (
        dict(q=Q.astype(int)),
        TypeError,
        r"q has type int64, expected one of float32.*q.astype\(np.float32\)",
    ),
    "bool": (dict(k=K > 0), TypeError, "k has type bool"),
    "complex": (dict(v=K.astype(complex)), TypeError, "v has type complex128, expected one of [a-z0-9, ]*$"),
    "objects": (dict(q=Q.astype(object)), TypeError, "q has type object"),
    "long_double": (
        dict(q=Q.astype(np.longdouble)),
        TypeError,
        r"q has type (float128|longdouble).*pass q.astype\(np.float64\)",
    ),
    "swapped": (dict(q=Q.astype(">f8")), TypeError, r"q has type >f8.*pass q.astype\(np.float64\)"),
    "fields": (dict(q=np.zeros(3, [("a", "f4"), ("b", "i4")])), TypeError, r"pass one of its fields, q\['a'\]"),
    "two_types": (dict(k=K.astype(np.float64)), TypeError, "q has type float32 but k has type float64"),
    "device": (dict(q=Elsewhere(2)), TypeError, "q is on another device.*CPU"),
    "unreadable": (dict(q=Elsewhere(1)), TypeError, r"q is a Elsewhere, expected an array.*\(not here\)"),
    # shapes
    "two_axes": (dict(q=Q[0, 0]), ValueError, "q, k and v have 2, 4 and 4 axes, expected four each, bhld"),
    "mixed_axes": (dict(q=Q[0]), ValueError, "q, k and v have 3, 4 and 4 axes"),
    "batch": (
        dict(q=Q[:1]),
        ValueError,
        r"^batch sizes differ: q is \(1, 4, 3, 8\), k is .* v is .*; broadcast \(np.broadcast_to",
    ),
    "heads": (dict(q=Q[:, :3]), ValueError, "query heads must be a multiple of key heads"),
    "width": (dict(q=Q[..., :7]), ValueError, "k has head size 8 but q has 7"),
    "lengths": (dict(v=K[:, :, :4]), ValueError, "v has 4 rows but k has 5"),
    "layout": (dict(layout="bshd"), ValueError, "layout is 'bshd', expected 'bhld' or 'blhd'"),
    "swapped_layout": (dict(layout="blhd"), ValueError, "multiple of key heads"),
    # masks and bias
    "int_mask": (
        dict(keep_mask=MASK.astype(int)),
        TypeError,
        "keep_mask has type int64, expected bool; pass keep_mask != 0",
    ),
    "uint8_mask": (dict(ignore_mask=MASK.astype(np.uint8)), TypeError, "ignore_mask has type uint8.*true: is hidden"),
    "float_mask": (dict(keep_mask=MASK.astype(float)), TypeError, "keep_mask has type float64.*called bias"),
    "list_mask": (
        dict(keep_mask=MASK.tolist()),
        TypeError,
        r"keep_mask is a list.*np.asarray\(keep_mask, dtype=bool\)",
    ),
    "mask_shape": (dict(keep_mask=MASK[:2]), ValueError, r"^keep_mask has shape \(2, 5\), expected.* \(2, 4, 3, 5\)"),
    "object_mask": (dict(keep_mask=MASK.astype(object)), TypeError, r"type object, .*pass keep_mask.astype\(bool\)"),
    "swapped_mask": (dict(keep_mask=MASK.astype(">i4")), TypeError, "keep_mask has type >i4, .*pass keep_mask != 0"),
    "mask_axes": (dict(keep_mask=MASK[None, None, None]), ValueError, "keep_mask has 5 axes, expected at most four"),
    "bool_bias": (dict(bias=MASK), TypeError, "bias is bool, and it is unclear what true means; pass it as keep_mask"),
    "int_bias": (dict(bias=MASK.astype(int)), TypeError, "bias has type int64; if it is a mask of 0 and 1"),
    "bias_shape": (dict(bias=Q), ValueError, "bias has shape"),
    "swapped_bias": (dict(bias=np.zeros((3, 5), ">f4")), TypeError, r"^bias has type >f4.*bias.astype\(np.float32\)$"),
    "object_bias": (dict(bias=np.zeros((3, 5), object)), TypeError, "^bias has type object, expected one of float32"),
    "bias_type": (
        dict(bias=np.zeros((3, 5), np.float16)),
        TypeError,
        "bias has type float16, expected float32 or float64",
    ),
    # names of elsewhere
    "mask": (
        dict(mask=MASK),
        TypeError,
        r"no parameter 'mask'; here it is keep_mask \(true: may attend\) or ignore_mask",
    ),
    "attn_mask": (dict(attn_mask=MASK), TypeError, "no parameter 'attn_mask'; here it is keep_mask.*or bias"),
    "attention_mask": (dict(attention_mask=MASK), TypeError, "keep_mask.*or bias"),
    "key_padding_mask": (dict(key_padding_mask=MASK), TypeError, "ignore_mask.*kv_lengths"),
    "is_causal": (dict(is_causal=True), TypeError, "here it is causal"),
    "dropout_p": (dict(dropout_p=0.1), TypeError, "here it is dropout, with training=True"),
    "enable_gqa": (dict(enable_gqa=True), TypeError, "key heads are shared where there are fewer"),
    "sliding_window": (dict(sliding_window=4), TypeError, r"window=\(W - 1, 0\)"),
    "softmax_scale": (dict(softmax_scale=1.0), TypeError, "here it is scale"),
    "window_size": (dict(window_size=(1, 1)), TypeError, r"here it is window=\(left, right\)"),
    "return_logsumexp": (dict(return_logsumexp=True), TypeError, "here it is return_lse$"),
    "need_weights": (dict(need_weights=True), TypeError, "here it is return_weights$"),
    "seqlen": (dict(seqlen=[1]), TypeError, "here it is kv_lengths"),
    "cu_seqlens": (dict(cu_seqlens=[0, 1]), TypeError, "cu_seqlens_q and cu_seqlens_k of attention_varlen"),
    "max_seqlen_q": (dict(max_seqlen_q=7), TypeError, "nothing: cu_seqlens_q of attention_varlen says it"),
    "unknown": (dict(colour="red"), TypeError, r"attention\(\) has no parameter 'colour'$"),
    # windows and positions
    "window_number": (dict(window=4), ValueError, r"window is 4, expected \(left, right\).* is \(W - 1, 0\)"),
    "window_numpy_number": (dict(window=np.int64(4)), ValueError, r"window is 4, expected \(left, right\)"),
    "window_none": (dict(window=None), ValueError, r"window is None, expected \(left, right\)"),
    "window_three": (dict(window=(1, 2, 3)), ValueError, r"window is \(1, 2, 3\), expected \(left, right\)"),
    "window_part": (dict(window=(2.5, 0)), ValueError, r"window is \(2.5, 0\), expected \(left, right\)"),
    "window_less": (dict(window=(-2, 0)), ValueError, r"^window is \(-2, 0\), expected \(left, right\) of 0 to"),
    "window_more": (dict(window=(0, 2**31)), ValueError, r"^window is \(0, 2147483648\), expected"),
    "no_align": (
        dict(causal=True),
        ValueError,
        '3 queries and 5 keys .*Say align="top_left" or align="bottom_right", or give q_offset',
    ),
    "align": (dict(causal=True, align="left"), ValueError, "align is 'left', expected 'top_left', 'bottom_right'"),
    "heads_word": (dict(heads="mixed"), ValueError, "^heads is 'mixed', expected 'grouped' or 'tiled'$"),
    "heads_words": (dict(heads="tiled causal"), ValueError, "^heads is 'tiled causal', expected"),
    "heads_none": (dict(heads=None), ValueError, "^heads is None, expected"),
    "offset_shape": (dict(q_offset=[1, 2, 3]), ValueError, r"^q_offset has shape \(3,\), expected \(2,\) or \(1,\)"),
    "no_tensor": (dict(attention="softcaps"), ValueError, "^the attention names the tensor 'softcap'.*pass it"),
    "lengths_beyond": (dict(kv_lengths=[6, 1]), ValueError, r"^kv_lengths\[0\] is 6, expected 0 to 5"),
    "lengths_below": (dict(kv_lengths=[-1, 1]), ValueError, "is -1, expected 0 to 5"),
    "lengths_float": (dict(kv_lengths=[1.0, 2.0]), TypeError, "kv_lengths has type float64, expected whole numbers"),
    "lengths_bool": (dict(kv_lengths=[True, False]), TypeError, "kv_lengths has type bool, expected whole numbers"),
    "lengths_huge": (dict(kv_lengths=[2**31, 1]), ValueError, "kv_lengths holds numbers beyond int32"),
    "offset_huge": (dict(q_offset=10**30), ValueError, "q_offset holds numbers beyond int32"),
    "lengths_ragged": (dict(kv_lengths=[[1], [2, 3]]), TypeError, "kv_lengths has rows of different lengths"),
    "lengths_many": (dict(kv_lengths=[1, 2, 3]), ValueError, r"kv_lengths has shape \(3,\), expected \(2,\)"),
    "lengths_text": (dict(kv_lengths="5"), TypeError, "kv_lengths has type <U1, expected whole numbers"),
    "ids_float": (dict(document_ids=np.zeros((2, 5))), TypeError, "document_ids has type float64"),
    "ids_rows": (dict(document_ids=((0, 0, 1), (0, 0, 0))), TypeError, r"tuple, which means \(of q, of k\).*np.asarray"),
    "ids_one": (dict(document_ids=(MASK * 1,)), ValueError, r"document_ids is a tuple of 1, .*\(of q, of k\)"),
    "ids_three": (dict(document_ids=(1, 2, 3)), ValueError, "document_ids is a tuple of 3, expected one array"),
    "ids_shape": (dict(document_ids=np.zeros((2, 5), int)), ValueError, "document_ids of queries has shape"),
    "key_start": (dict(key_start=-1), ValueError, "key_start.* is -1, expected 0 or more"),
    # numbers
    "scale_nan": (dict(scale=float("nan")), ValueError, "^scale is nan, expected a finite number"),
    "scale_huge": (dict(scale=10**400), ValueError, "^scale is an int, expected a finite number"),
    "scale_text": (dict(scale="0.5"), TypeError, "^scale is '0.5', expected a number, or an array of one a head"),
    "scale_bool": (dict(scale=True), TypeError, "^scale is True, expected a number"),
    "scale_shape": (dict(scale=np.ones(3, np.float32)), ValueError, r"^scale: the tensor has shape \(3,\)"),
    "softcap_zero": (dict(softcap=0.0), ValueError, "^softcap is 0.0, expected a number above 0"),
    "softcap_text": (dict(softcap="30"), TypeError, "^softcap is '30', expected a number"),
    "softcap_tiny": (dict(softcap=1e-50), ValueError, "^softcap is 1e-50, expected a number above 0, within float32"),
    "softcap_below": (dict(softcap=np.full(4, -1.0)), ValueError, "softcap"),
    "slopes_shape": (dict(alibi_slopes=np.ones(2), align="top_left"), ValueError, "alibi_slopes has shape"),
    "sinks_list": (dict(sinks=[0.0] * 4), TypeError, "sinks is a list"),
    "sinks_shape": (dict(sinks=np.ones((1, 4))), ValueError, "sinks has shape"),
    "top": (dict(top=-1), ValueError, "top is -1, expected 0 or more"),
    "top_text": (dict(top="3"), TypeError, "^top is '3', expected a whole number"),
    "top_none": (dict(top=None), TypeError, "^top is None, expected a whole number"),
    "top_true": (dict(top=True), TypeError, "^top is True, expected a whole number"),
    "top_many": (dict(top=2000), ValueError, "1024"),
    # dropout
    "dropout_beyond": (dict(dropout=1.5), ValueError, "^dropout is 1.5, expected 0 to 1"),
    "keep_not_training": (dict(dropout=0.5, dropout_keep=MASK), ValueError, "dropout acts in training only"),
    "keep_without_dropout": (dict(dropout_keep=MASK, training=True), ValueError, "no dropout; pass dropout=p"),
    "keep_and_seed": (
        dict(dropout=0.5, dropout_keep=MASK, seed=1, training=True),
        ValueError,
        "dropout_keep and seed are both given",
    ),
    "dropout_text": (dict(dropout="0.5"), TypeError, "^dropout is '0.5', expected 0 to 1"),
    "dropout_none": (dict(dropout=None), TypeError, "^dropout is None, expected 0 to 1"),
    "dropout_nan": (dict(dropout=float("nan")), ValueError, "^dropout is nan, expected 0 to 1"),
    "keep_int": (dict(dropout=0.5, dropout_keep=MASK * 1, training=True), TypeError, "dropout_keep has type int64"),
    "seed_below": (dict(dropout=0.5, seed=-1, training=True), ValueError, r"seed is -1, expected 0 to 2\*\*64 - 1"),
    "seed_float": (dict(dropout=0.5, seed=1.5, training=True), TypeError, "seed is 1.5, expected a whole number"),
    "seed_text": (dict(seed="abc"), TypeError, "^seed is 'abc', expected a whole number"),
    # true or false
    "causal_text": (dict(causal="False"), TypeError, "^causal is 'False', expected True or False"),
    "causal_none": (dict(causal=None), TypeError, "^causal is None, expected True or False"),
    "causal_array": (dict(causal=MASK), TypeError, "^causal is a ndarray, expected True or False"),
    "zero_key_text": (dict(zero_key="no"), TypeError, "^zero_key is 'no', expected True or False"),
    "training_text": (dict(training="no"), TypeError, "^training is 'no', expected True or False"),
    "lse_text": (dict(return_lse="no"), TypeError, "^return_lse is 'no', expected True or False"),
    "weights_number": (dict(return_weights=2), TypeError, "^return_weights is 2, expected True or False"),
    "stats_none": (dict(return_stats=None), TypeError, "^return_stats is None, expected True or False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_and_says_why(case: str) -> None:
    options, error, text = REFUSED[case]
    given = dict(q=Q, k=K, v=K) | options
    with pytest.raises(error, match=text):
        qkv.attention(**given)


@pytest.mark.parametrize("function", [qkv.visible, qkv.observe, qkv.explain_path])
def test_other_functions_refuse_the_same(function: Any) -> None:
    with pytest.raises(TypeError, match="no parameter 'attn_mask'; here it is"):
        function(Q, K, K, attn_mask=MASK)
    with pytest.raises(ValueError, match="Say align="):
        function(Q, K, K, causal=True)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(head=None), TypeError, "^head is None, expected a whole number"),
        (dict(head="0"), TypeError, "^head is '0', expected a whole number"),
        (dict(query=1.0), TypeError, "^query is 1.0, expected a whole number"),
        (dict(head=2**70), ValueError, f"^head {2**70}: expected 0 to 3"),
        (dict(batch=2), ValueError, "^batch 2: expected 0 to 1"),
        (dict(top="3"), TypeError, "^top is '3', expected a whole number"),
    ],
)
def test_explain_refuses_what_is_no_place(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        qkv.explain(Q, K, K, causal=True, align="top_left", **options)
    assert qkv.explain(Q, K, K, head=np.int64(1), top=2**40).data["head"] == 1


def test_flags_of_numpy_and_numbers_are_flags() -> None:
    expected = qkv.attention(Q, K, K, causal=True, align="top_left")
    for flag in (np.bool_(True), 1):
        np.testing.assert_array_equal(qkv.attention(Q, K, K, causal=flag, align="top_left"), expected)
    assert qkv.attention(Q, K, K, return_lse=np.bool_(False)).shape == Q.shape


def test_packed_batches_have_neither_layout_nor_lengths() -> None:
    q = np.zeros((4, 2, 8), np.float32)
    for options in (dict(layout="bhld"), dict(kv_lengths=[4])):
        with pytest.raises(TypeError, match=f"a packed batch has no {next(iter(options))}"):
            qkv.attention_varlen(q, q, q, [0, 4], [0, 4], **options)
    with pytest.raises(ValueError, match=r"q has 4 axes, expected three: \(total length, heads, width\)"):
        qkv.attention_varlen(q[None], q[None], q[None], [0, 4], [0, 4])
    with pytest.raises(ValueError, match="pass sums of the lengths, not the lengths"):
        qkv.attention_varlen(q, q, q, [0, 3, 1], [0, 3, 4])
    with pytest.raises(TypeError, match="cu_seqlens_q has type float64"):
        qkv.attention_varlen(q, q, q, [0.0, 4.0], [0, 4])
    with pytest.raises(TypeError, match="a packed batch has no return_weights.*call attention for each"):
        qkv.attention_varlen(q, q, q, [0, 4], [0, 4], return_weights=True)
    with pytest.raises(ValueError, match=r"^cu_seqlens_k ends with 5, expected 4"):
        qkv.attention_varlen(q, q, q, [0, 4], [0, 5])


# ---- a bias that looks like a mask ----


@pytest.fixture
def not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prepare, "_warned", False)


@pytest.mark.usefixtures("not_warned")
def test_a_bias_of_0_and_1_warns_once() -> None:
    bias = MASK.astype(np.float32)
    bias[1, 2] = 0
    with pytest.warns(UserWarning, match="nothing but 0 and 1.*which hides nothing; a mask is keep_mask") as seen:
        qkv.attention(Q, K, K, bias=bias)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qkv.attention(Q, K, K, bias=bias)


@pytest.mark.usefixtures("not_warned")
@pytest.mark.parametrize("bias", [np.zeros((3, 5)), np.ones((3, 5)), np.eye(3, 5) * -1e9, np.eye(3, 5) / 2])
def test_another_bias_does_not_warn(bias: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qkv.attention(Q, K, K, bias=bias)


@pytest.mark.usefixtures("not_warned")
@pytest.mark.parametrize("hidden", [slice(2900, None), slice(0, 1500), slice(1, None, 2)])
def test_a_mask_of_long_rows_is_seen_too(hidden: slice) -> None:
    bias = np.zeros((2, 1, 3, 3000), np.float32)
    bias[1, :, :, hidden] = 1
    q, k = np.zeros((2, 4, 3, 8), np.float32), np.zeros((2, 2, 3000, 8), np.float32)
    with pytest.warns(UserWarning, match="nothing but 0 and 1"):
        qkv.attention(q, k, k, bias=bias)


@pytest.mark.usefixtures("not_warned")
@pytest.mark.parametrize("function", [qkv.visible, qkv.observe, qkv.explain_path])
def test_the_warning_names_the_callers_line(function: Any) -> None:
    with pytest.warns(UserWarning, match="nothing but 0 and 1") as seen:
        function(Q, K, K, bias=np.eye(3, 5))
    assert seen[0].filename == __file__
