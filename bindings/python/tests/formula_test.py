"""qkv.Attention: a value with a text."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import qkv

TEXTS = [
    "softmax",
    "causal | softmax",
    "causal window:255,0 align:bottom_right | softcap:30 bias | sink_softmax zero_key dropout:0.1",
    "keep_mask ignore_mask documents heads:tiled | scale:0.125 scales softcaps alibi | softmax",
]


@pytest.mark.parametrize("text", TEXTS)
def test_its_text_reads_as_an_equal_one(text: str) -> None:
    a = qkv.Attention(text)
    assert qkv.Attention(a.text) == a and str(a) == a.text
    assert eval(repr(a), {"Attention": qkv.Attention}) == a
    assert hash(qkv.Attention(a.text)) == hash(a)


@pytest.mark.parametrize("text", TEXTS)
def test_it_survives_pickling_and_copying(text: str) -> None:
    a = qkv.Attention(text)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(a, protocol)) == a
    assert copy.copy(a) == a and copy.deepcopy(a) == a


def test_equal_formulas_are_equal_however_they_are_written() -> None:
    assert qkv.Attention("softcap:30") == qkv.Attention("softcap:30.0 | softmax")
    assert qkv.Attention("causal") != qkv.Attention("softmax")
    assert qkv.Attention("causal") != "causal"
    assert len({qkv.Attention("causal"), qkv.Attention("causal | softmax")}) == 1


def test_it_does_not_change() -> None:
    a = qkv.Attention("causal")
    with pytest.raises(AttributeError, match="make another one"):
        a.text = "softmax"
    assert qkv.Attention("dropout:0.25").dropout == 0.25


@pytest.mark.parametrize(
    "text, message",
    [
        ("windw:1,0", 'unknown word "windw"; did you mean "window"'),
        ("", "empty"),
        ("causal  window:1,0", "column 8"),
        ("softcap:30 | causal", "causal"),
        ("softcap", "number"),
        ("causal\n", "column"),
        ("caus\ud800", r"^'caus\\ud800' is no formula: it holds half a character"),
        ("rope", "known are causal, .*, dropout$"),
    ],
)
def test_what_is_no_formula_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qkv.Attention(text)
    q = np.zeros((1, 1, 2, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        qkv.attention(q, q, q, attention=text)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a formula is a text, got int"):
        qkv.Attention(3)  # type: ignore[arg-type]
    q = np.zeros((1, 1, 2, 2), np.float32)
    with pytest.raises(TypeError, match="a formula is a text, got list"):
        qkv.attention(q, q, q, attention=["causal"])


@pytest.mark.parametrize("value", [1e-7, 1e30, 0.1, 3, np.float32(0.1), np.int64(2), 1 / 3])
def test_numbers_reach_the_formula_as_they_are(value: float) -> None:
    q = np.full((1, 1, 1, 1), 2.0)
    got = qkv.attention(q, q, q, scale=value, return_lse=True)
    assert got.lse == 4 * float(value)


def test_a_keyword_beside_a_formula_brings_tensors_alone() -> None:
    q = np.zeros((1, 1, 2, 2), np.float32)
    with pytest.raises(ValueError, match="a keyword adds 'causal' to it; write it into the text"):
        qkv.attention(q, q, q, attention="softmax", causal=True)
    with pytest.raises(ValueError, match=r"'softcap:3\.0'"):
        qkv.attention(q, q, q, attention="softcap:30", softcap=3.0)
    with pytest.raises(ValueError, match=r"'scale:2\.0'"):
        qkv.attention(q, q, q, attention="scale:2", scale=2)
    with pytest.raises(ValueError, match="'bias'"):
        qkv.attention(q, q, q, attention="softmax", bias=np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="names the tensor 'bias'"):
        qkv.attention(q, q, q, attention="bias")


def test_explain_path_says_what_runs() -> None:
    q = np.zeros((1, 8, 300, 64), np.float32)
    text = qkv.explain_path(q, q, q, causal=True)
    assert "prefill" in text and "key" in text
    assert "decode" in qkv.explain_path(q[:, :, :1], q, q)


def test_alibi_slopes() -> None:
    np.testing.assert_array_equal(qkv.alibi_slopes(8), np.float32(2.0) ** -np.arange(1, 9))
    np.testing.assert_allclose(qkv.alibi_slopes(3), [2**-4, 2**-8, 2**-2])
    for heads in (0, 10**12):
        with pytest.raises(ValueError, match=f"^heads is {heads}, expected 1 to"):
            qkv.alibi_slopes(heads)
    with pytest.raises(TypeError, match="^heads is 1.5, expected a whole number"):
        qkv.alibi_slopes(1.5)
