"""Pictures, explanations and files for the command. QKV_COMMAND names the command that they are compared with."""

import copy
import doctest
import html
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import qkv

COMMAND = os.environ.get("QKV_COMMAND", "")
needs_command = pytest.mark.skipif(not os.path.exists(COMMAND), reason="QKV_COMMAND does not name the command")
WORDS = ["the", "cat", "sat", "down", "."]


def arrays(b=1, heads=4, key_heads=2, n=5, s=5, d=8, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = ((b, heads, n, d), (b, key_heads, s, d), (b, key_heads, s, d))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def facts(page):
    return json.loads(re.search('id="facts">(.*?)</script>', page, re.DOTALL).group(1))


def command(*arguments, **environment):
    """Standard output of the command into a pipe."""
    surroundings = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], **environment}
    return subprocess.run([COMMAND, *arguments], check=True, capture_output=True, text=True, env=surroundings).stdout


# ---- the same as the command ----


@pytest.fixture
def dump(tmp_path):
    """Two layers in memory and in a file."""
    layers = [arrays(seed=n) for n in range(2)]
    tensors = {f"layer{n}.{name}": x for n, qkv_ in enumerate(layers) for name, x in zip("qkv", qkv_)}
    qkv.save_dump(tmp_path / "x.npz", tensors, tokens=WORDS, attention="causal | softmax")
    return str(tmp_path / "x.npz"), [list(x) for x in zip(*layers)]


@needs_command
@pytest.mark.parametrize(
    ("chosen", "typed"),
    [
        ({}, []),
        ({"top": 3}, ["--top", "3"]),
        ({"layer": 1}, ["--layer", "1"]),
        ({"layer": 1, "head": 2}, ["--layer", "1", "--head", "2"]),
        ({"layer": 0, "head": 3, "colors": "lift"}, ["--layer", "0", "--head", "3", "--scale", "lift"]),
        ({"layer": 0, "head": 3, "query": 4}, ["--layer", "0", "--head", "3", "--row", "4"]),
    ],
)
def test_text_is_what_the_command_prints(dump, chosen, typed):
    path, (q, k, v) = dump
    picture = qkv.see(q, k, v, causal=True, tokens=WORDS, **chosen)
    assert picture.text() == command("see", path, *typed)
    assert picture.text(plain=True) == command("see", path, "--plain", *typed)
    assert picture.data == json.loads(command("see", path, "--json", *typed))


@needs_command
def test_files_are_what_the_command_writes(dump, tmp_path):
    path, (q, k, v) = dump
    picture = qkv.see(q, k, v, causal=True, tokens=WORDS, title="x.npz")
    command("see", path, "--html", str(tmp_path / "theirs.html"))
    command("see", path, "--png", str(tmp_path / "theirs.png"))
    picture.save(tmp_path / "ours.html")
    picture.save(str(tmp_path / "ours.png"))
    for ending in ("html", "png"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()


@needs_command
def test_an_explanation_is_what_the_command_prints(tmp_path):
    q, k, v = arrays()
    qkv.save_dump(tmp_path / "x.npz", {"q": q, "k": k, "v": v, "dout": np.ones_like(q)}, tokens=WORDS)
    typed = [
        "explain",
        str(tmp_path / "x.npz"),
        "--head",
        "3",
        "--query",
        "2",
        "--softcap",
        "2",
        "--causal",
        "--backward",
    ]
    explained = qkv.explain(q, k, v, head=3, query=2, softcap=2.0, causal=True, dout=1, tokens=WORDS)
    assert str(explained) == command(*typed)
    assert explained.data == json.loads(command(*typed, "--json"))


# ---- pictures ----


def test_weights_and_what_they_come_from_look_alike():
    q, k, v = arrays(b=2, dtype=np.float64)
    weights = qkv.attention(q, k, v, return_weights=True).weights
    computed, given = qkv.see(q, k, tokens=WORDS, batch=1), qkv.see(weights=weights, tokens=WORDS, batch=1)
    np.testing.assert_allclose(
        [head["entropy"] for head in computed.data["layers"][0]["heads"]],
        [head["entropy"] for head in given.data["layers"][0]["heads"]],
        atol=1e-6,
    )
    assert computed.png() == given.png()


def test_other_layouts_and_missing_axes_give_the_same():
    q, k, v = arrays()
    text = qkv.see(q, k, head=1, causal=True).text()
    turned = (x.swapaxes(1, 2) for x in (q, k, v))
    assert qkv.see(*turned, head=1, causal=True, layout="blhd").text() == text
    assert qkv.see(q[0], k[0], head=1, causal=True).text() == text
    assert qkv.see(q, k, head=1, attention="causal | softmax").text() == text


def test_numbers_a_head_may_be_arrays():
    q, k, v = arrays()
    caps, scales = np.array([1.0, 2, 3, 4]), np.array([0.5, 1, 2, 4])
    arrays_ = qkv.see(q, k, head=2, softcap=caps, scale=scales)
    assert arrays_.text() == qkv.see(q, k, head=2, softcap=3.0, scale=2.0).text()
    assert qkv.explain(q, k, v, head=2, softcap=caps, scale=scales).agrees


def test_queries_at_the_end_have_the_last_tokens():
    q, k, _ = arrays(n=2)
    picture = qkv.see(q, k, head=0, tokens=WORDS, causal=True, align="bottom_right")
    assert "down(0)" in picture.text() and ".(1)" in picture.text()
    sequence = facts(picture.html())["layers"][0]["sequences"][0]
    assert facts(picture.html())["tokens"][sequence["query_tokens"]] == WORDS[-2:]
    without = qkv.see(q, k, head=0, tokens=WORDS, causal=True, align="top_left")
    assert facts(without.html())["layers"][0]["sequences"][0]["query_tokens"] is None
    others = qkv.see(q, k, head=0, tokens=WORDS, query_tokens=["le", "chat"], causal=True, align="top_left")
    assert facts(others.html())["tokens"] == [["le", "chat"], WORDS]


def test_tokens_may_differ_between_batch_entries():
    q, k, _ = arrays(b=2)
    lists = [WORDS, [word.upper() for word in WORDS]]
    assert "CAT" in qkv.see(q, k, head=0, batch=1, tokens=lists).text()
    assert facts(qkv.see(q, k, tokens=lists).html())["tokens"] == lists


def test_any_token_is_text():
    q, k, _ = arrays(n=4, s=4)
    page = qkv.see(q, k, tokens=["</script>", '"', "\ud83d", "\x1b[31m"])._repr_html_()
    assert page.count("<") == 2  # <iframe> and </iframe>
    assert "\x1b" not in qkv.see(q, k, tokens=["</script>", '"', "\ud83d", "\x1b[31m"]).text(color="never")


def test_a_notebook_gets_the_page():
    q, k, _ = arrays()
    picture = qkv.see(q, k, tokens=WORDS, title="A & B")
    frame = picture._repr_html_()
    assert html.unescape(re.search('srcdoc="(.*)"', frame, re.DOTALL).group(1)) == picture.html()
    assert 'title="A &amp; B"' in frame
    assert facts(picture.html())["file"] == "A & B"


def test_a_page_begins_with_the_query_and_the_scale():
    q, k, _ = arrays()
    view = facts(qkv.see(q, k, head=1, query=3, colors="log").html())["view"]
    keys = qkv.attention(q, k, k, return_stats=True).stats.max_index
    assert view == f"scale=log&batch=0&pin=3,{keys[0, 1, 3]}"


def test_a_page_that_would_be_too_large_becomes_text_that_says_so():
    q, k, _ = arrays(heads=16, n=1200, s=1200)
    picture = qkv.see(q, k, bias=np.zeros((1, 1, 1, 1200), np.float32))
    with pytest.raises(ValueError, match="may have 20 .*choose one head with head"):
        picture.html()
    shown = picture._repr_html_()
    assert "choose one head" in shown and "<pre>Heads: mean entropy" in shown


def test_a_picture_stays_when_arrays_change():
    q, k, _ = arrays()
    picture = qkv.see(q, k, head=1)
    before = picture.text()
    q[:] = 0
    k[:] = 1
    assert picture.text() == before


class Terminal:
    """A terminal that knows colours."""

    def __init__(self, encoding="utf-8"):
        self.encoding = encoding

    def isatty(self):
        return True

    def write(self, text):
        pass

    def flush(self):
        pass


def test_colours_are_for_terminals(monkeypatch):
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    q, k, v = arrays()
    for thing in (qkv.see(q, k, head=1), qkv.explain(q, k, v)):
        assert "\x1b" not in str(thing)
        assert "\x1b[" in thing.text(color="always")
        with monkeypatch.context() as inside:
            inside.setattr(sys, "stdout", Terminal())
            assert "\x1b[" in str(thing) and repr(thing) == str(thing)
            assert max(len(line) for line in re.sub("\x1b.*?m", "", str(thing)).splitlines()) <= 60
            inside.setenv("NO_COLOR", "1")
            assert "\x1b" not in str(thing)
            inside.setattr(sys, "stdout", Terminal("ascii"))
            assert str(thing).isascii()


# ---- explanations ----


@pytest.mark.parametrize("columns", [30, 40, 80, 100])
@pytest.mark.parametrize(("head", "query"), [(None, None), (1, None), (1, 0)])
def test_no_line_is_wider_than_the_columns(columns, head, query):
    q, k, v = arrays()
    tokens = ["x" * 200, "a b c " * 30, "the", "机器学习" * 20, "."]
    picture = qkv.see(q, k, causal=True, tokens=tokens, head=head, query=query)
    texts = [picture.text(columns=columns, plain=plain) for plain in (False, True)]
    texts.append(qkv.explain(q, k, v, tokens=tokens, query=2).text(columns=max(columns, 60)))
    for text in texts:
        wide = [sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) for line in text.splitlines()]
        assert max(wide) <= (columns if text is not texts[-1] else max(columns, 60)), text
    assert "\x1b" not in "".join(texts)


def test_given_weights_are_called_so_and_sentences_end_once():
    weights = np.full((1, 1, 3, 4), 0.25)
    assert "(weights as given)" in qkv.see(weights=weights).text()
    assert ".." not in qkv.see(weights=weights[:, :, :0, :0]).text()


def test_pictures_and_explanations_can_be_kept():
    q, k, v = arrays(b=2)
    made = [
        qkv.see([q, v], [k, k], causal=True, tokens=WORDS, title="t", batch=1),
        qkv.see(weights=qkv.attention(q, k, v, return_weights=True).weights, head=2),
        qkv.explain(q, k, v, head=3, query=2, causal=True, tokens=WORDS, dout=1.0),
    ]
    for one in made:
        for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
            assert again.data == one.data and str(again) == str(one) and again._repr_html_() == one._repr_html_()


def test_any_number_of_links_may_be_asked_for():
    q, k, _ = arrays()
    assert str(qkv.see(q, k, head=0, top=2**40)) == str(qkv.see(q, k, head=0, top=1000))
    assert qkv.see(q, k, title="\ud800").html()


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "x.html").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        qkv.see(*arrays()[:2]).save(os.fsencode(tmp_path / "x.html"))
    assert error.value.filename == str(tmp_path / "x.html") and ".tmp" not in str(error.value)
    assert os.listdir(tmp_path) == ["x.html"]


def test_an_explanation_has_the_numbers_of_the_call():
    q, k, v = arrays(dtype=np.float64)
    steps = qkv.explain(q, k, v, head=3, query=2, causal=True, dout=np.ones_like(q))
    out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
    back = qkv.attention_backward(np.ones_like(q), q, k, v, out, lse, causal=True)
    np.testing.assert_allclose(steps.data["out"], out[0, 3, 2], atol=1e-12)
    np.testing.assert_allclose(steps.data["dq"], back.q[0, 3, 2], atol=1e-12)
    assert steps.data["keys"][4]["hidden_by"] == "causal"
    assert steps.agrees
    assert steps._repr_html_().startswith("<pre>tensor") and "&lt;" not in steps._repr_html_()


def test_a_loss_may_lack_axes_or_lie_in_another_layout():
    q, k, v = arrays()
    dout = np.random.default_rng(5).standard_normal(q.shape).astype(np.float32)
    expected = qkv.explain(q, k, v, head=1, query=2, dout=dout).data["dq"]
    turned = (x.swapaxes(1, 2) for x in (q, k, v))
    assert qkv.explain(*turned, head=1, query=2, dout=dout.swapaxes(1, 2), layout="blhd").data["dq"] == expected
    assert qkv.explain(q[0], k[0], v[0], head=1, query=2, dout=dout[0]).data["dq"] == expected


def test_without_values_there_is_no_out():
    q, k, _ = arrays()
    assert qkv.explain(q, k).data["out"] == []


# ---- files for the command ----


def test_a_dump_has_tensors_and_what_they_cannot_say(tmp_path):
    q, k, v = arrays()
    formula = qkv.Attention("causal | softcap:30 | softmax")
    tensors = {"layer0.q": q, "layer0.k": k, "layer0.v": v, "scale": 0.5, "layer0.keep_mask": np.ones((5, 5), bool)}
    qkv.save_dump(tmp_path / "x.npz", tensors, tokens=[WORDS], attention=formula, scale=0.25)
    with np.load(tmp_path / "x.npz") as file:
        assert sorted(file.files) == sorted(tensors)
        np.testing.assert_array_equal(file["layer0.q"], q)
        assert file["scale"] == 0.5
    beside = json.loads((tmp_path / "x.json").read_text())
    assert beside == {"tokens": [WORDS], "scale": 0.25, "attention": formula.text}
    assert sorted(os.listdir(tmp_path)) == ["x.json", "x.npz"]


CAUSAL = {"attention": "causal | softmax"}
ONE, MASK = np.ones((2, 4, 5, 8), np.float32), np.ones((2, 1, 5, 5), bool)
FULL = {"q": ONE, "k": ONE[:, :2], "v": ONE[:, :2, :, :3]}
UNREADABLE = [
    ({}, {}, ValueError, "there are no tensors"),
    ([ONE], {}, TypeError, "tensors is a list, expected them by name"),
    ({1: ONE}, {}, TypeError, "a name of tensors is a int"),
    ({"q": ONE.astype(complex)}, {}, TypeError, "q has type complex128"),
    ({"entropy": np.array([None])}, {}, TypeError, "entropy has type object"),
    ({"q": ONE.astype(np.longdouble)}, {}, TypeError, "q has type float128"),
    ({"q": ONE.astype(np.int32)}, {}, TypeError, "q has type int32"),
    ({"q": ONE[0, 0, 0]}, {}, ValueError, "q has 1 axes"),
    ({"layer1.q": ONE[None]}, {}, ValueError, r"layer1\.q has 5 axes"),
    ({"layer2.q": ONE, "k": ONE[:, :3]}, {}, ValueError, "save_dump: layer2: .*3 heads"),
    ({"q": ONE, "k": ONE.astype(np.float64)}, {}, TypeError, "float64"),
    ({"q": ONE, "k": ONE[..., :4]}, {}, ValueError, "4"),
    ({"q": ONE, "k": ONE, "v": ONE[:, :, :4]}, {}, ValueError, "4"),
    ({"q": ONE[0], "k": ONE}, {}, ValueError, "batch"),
    (FULL | {"out": ONE}, {}, ValueError, r"out is \(2, 4, 5, 8\), and q, k and v give \(2, 4, 5, 3\)"),
    (FULL | {"weights": ONE}, {}, ValueError, "weights is .*give .2, 4, 5, 5."),
    (FULL | {"lse": ONE}, {}, ValueError, "lse is .*give .2, 4, 5."),
    (FULL | {"dout": ONE[..., :2]}, {}, ValueError, "dout is"),
    (FULL | {"keep_mask": MASK.astype(int)}, {}, TypeError, "keep_mask has type int64, expected bool"),
    (FULL | {"keep_mask": MASK[:, :, :4]}, {}, ValueError, "keep_mask"),
    (FULL | {"bias": ONE[:, :, :, :5].astype(np.float16)}, {}, TypeError, "bias has type float16"),
    (FULL | {"sinks": np.ones(3)}, {}, ValueError, "sinks"),
    (FULL | {"key_lengths": np.ones(2)}, {}, TypeError, "key_lengths has type float64, expected whole numbers"),
    (FULL | {"key_lengths": np.array([5, 9])}, {}, ValueError, r"\[1\] is 9"),
    (FULL | {"document_ids": np.arange(4)}, {}, ValueError, "document"),
    (FULL | {"q": ONE * np.nan}, {}, ValueError, "q holds no number"),
    (FULL | {"scale": np.ones(2)}, {}, ValueError, "expected one finite number"),
    (FULL | {"scale": float("nan")}, {}, ValueError, "expected one finite number"),
    (FULL, {"attention": "causal bias"}, ValueError, "bias"),
    (FULL, {"attention": "keep_mask | softmax"}, ValueError, "keep_mask"),
    (FULL, {"attention": 3}, TypeError, "a formula is a text"),
    (FULL, {"scale": float("inf")}, ValueError, "scale is inf, expected a finite number"),
    (FULL, {"scale": "3"}, TypeError, "scale is a str, expected a number"),
    (FULL, {"tokens": "abcde"}, TypeError, r"tokens\.split"),
    (FULL, {"tokens": 3}, TypeError, "tokens is a int, expected a list of texts"),
    (FULL, {"tokens": [1, 2, 3, 4, 5]}, TypeError, "convert_ids_to_tokens"),
    (FULL, {"tokens": WORDS[:3]}, ValueError, "tokens has 3 texts, and there are 5 queries and 5 keys"),
    (FULL, {"tokens": [WORDS] * 3}, ValueError, "each of 2 batch entries"),
    ({"weights": ONE}, {}, ValueError, "weights are not those of an attention"),
    ({"weights": -ONE / 9}, {}, ValueError, "weights are not those of an attention"),
    ({"x": ONE[0], "wq": ONE[0, 0, :, :4], "wk": ONE[0, 0]}, {}, ValueError, "wq is .*the width of x"),
    ({"x": ONE[0], "wq": ONE[0, 0], "heads": np.array([0])}, {}, ValueError, "heads is"),
    ({"q": ONE[0], "k": ONE[0], "cumulative_query_lengths": [0, 4]}, {}, TypeError, "cumulative_query_lengths is a list"),
]


@pytest.mark.parametrize(("tensors", "options", "error", "text"), UNREADABLE)
def test_what_the_command_would_refuse_is_not_written(tensors, options, error, text, tmp_path):
    with pytest.raises(error, match=text):
        qkv.save_dump(tmp_path / "x.npz", tensors, **options)
    assert os.listdir(tmp_path) == []


LENGTHS = {"cumulative_query_lengths": np.array([0, 1, 4]), "cumulative_key_lengths": np.array([0, 2, 4])}
READABLE = [
    (FULL | {"out": ONE[..., :3], "weights": np.full((2, 4, 5, 5), 0.2), "lse": ONE[..., 0], "dout": ONE[:1, :1, :1, :3]}, {}),
    ({"q": ONE[0], "k": ONE[:1], "v": ONE[0], "out": ONE[0]}, {"tokens": np.array(WORDS)}),
    ({"q": ONE[0, 0], "k": ONE[0, 0], "weights": np.full((5, 5), 0.2)}, {"tokens": [WORDS]}),
    ({"q": ONE, "k": ONE, "keep_mask": MASK, "scale": 2, "bias": MASK[0, 0] * 1.0}, {"tokens": np.array([WORDS] * 2)}),
    ({"q": ONE, "k": ONE[:, :, :4], "ignore_mask": np.zeros((2, 4), bool)}, {"scale": 0.5, "tokens": WORDS}),
    ({"layer0.q": ONE, "layer1.q": ONE, "k": ONE, "document_ids": np.arange(5) // 2, "alibi_slopes": np.ones(4)}, {}),
    (FULL | {"sinks": np.ones(4), "key_lengths": np.array([5, 2]), "q_offset": np.array([1])}, {}),
    (FULL, {"attention": "causal align:bottom_right | alibi | softmax"}),
    (FULL | {"bias": MASK * 1.0}, CAUSAL),  # not named: not used
    ({"q": ONE[0].astype(">f4"), "k": ONE[0].astype(">f4")}, {}),
    ({"weights": np.full((2, 4, 5, 5), 0.2, np.float16)}, {"tokens": WORDS}),
    ({"x": ONE[0], "wq": ONE[0, 0, :1].repeat(8, 0), "wk": ONE[0, 0, :1].repeat(8, 0), "heads": 2}, {}),
    ({"q": ONE[0, 0, :4, None], "k": ONE[0, 0, :4, None]} | LENGTHS, {}),
    ({"q": ONE, "k": ONE}, {"tokens": ["\ud800", "b", "c", "d", "e"]}),
]


@needs_command
@pytest.mark.parametrize(("tensors", "options"), READABLE)
def test_what_is_written_is_read_by_the_command(tensors, options, tmp_path):
    qkv.save_dump(tmp_path / "x.npz", tensors, **options)
    command("see", str(tmp_path / "x.npz"))
    if "out" in tensors:
        assert "out" in subprocess.run([COMMAND, "compare", str(tmp_path / "x.npz")], capture_output=True, text=True).stdout


def test_bfloat16_is_marked(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = arrays()[0].astype(ml_dtypes.bfloat16)
    qkv.save_dump(tmp_path / "x.npz", {"q": q})
    assert json.loads((tmp_path / "x.json").read_text()) == {"bfloat16": ["q"]}
    with np.load(tmp_path / "x.npz") as file:
        np.testing.assert_array_equal(file["q"], q.astype(np.float32))


def test_what_lies_beside_is_replaced_only_where_it_belongs_to_tensors(tmp_path):
    q = arrays()[0]
    qkv.save_dump(tmp_path / "x.npz", {"q": q}, tokens=WORDS)
    qkv.save_dump(tmp_path / "x.npz", {"k": q})  # tokens of other tensors would lie
    assert json.loads((tmp_path / "x.json").read_text()) == {}
    for beside in ({}, {"tokens": WORDS}):  # a key of ours does not make it ours
        foreign = '{"scale": 3, "hidden_size": 64}'
        (tmp_path / "z.json").write_text(foreign)
        with pytest.raises(ValueError, match="z.json would be replaced"):
            qkv.save_dump(tmp_path / "z.npz", {"q": q}, **beside)
        assert (tmp_path / "z.json").read_text() == foreign
        assert not (tmp_path / "z.npz").exists()
    (tmp_path / "y.json").write_text('{"mine": 1}')
    qkv.save_dump(tmp_path / "y.npz", {"q": q})
    with pytest.raises(ValueError, match="y.json would be replaced"):
        qkv.save_dump(tmp_path / "y.npz", {"k": q}, tokens=WORDS)
    assert (tmp_path / "y.json").read_text() == '{"mine": 1}'
    with np.load(tmp_path / "y.npz") as file:
        assert file.files == ["q"]


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    q = arrays()[0]
    qkv.save_dump(tmp_path / "x.npz", {"q": q}, tokens=WORDS)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        qkv.save_dump(tmp_path / "x.npz", {"q": q[:1]}, tokens=WORDS[:1])
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    with pytest.raises(FileNotFoundError, match=re.escape(repr(str(tmp_path / "none/x.png")))):
        qkv.see(q, q).save(tmp_path / "none/x.png")


# ---- refusals, long work ----

Q, K, V = arrays(b=2)
REFUSED = [
    (lambda: qkv.see(), ValueError, "q is missing"),
    (lambda: qkv.see(Q), ValueError, "k is missing"),
    (lambda: qkv.see(Q, K, weights=Q), ValueError, "not both"),
    (lambda: qkv.see(Q, K, head=4), ValueError, "head 4: expected 0 to 3"),
    (lambda: qkv.see(Q, K, head=-1), ValueError, "head is -1"),
    (lambda: qkv.see(Q, K, batch=2), ValueError, "batch 2: expected 0 to 1"),
    (lambda: qkv.see(Q, K, query=2), ValueError, "say of which, with head"),
    (lambda: qkv.see(Q, K, head=0, query=5), ValueError, "query 5: expected 0 to 4"),
    (lambda: qkv.see([Q, Q], [K, K], head=1), ValueError, "2 layers; say which"),
    (lambda: qkv.see([Q, Q], [K, K], layer=2), ValueError, "layer is 2, expected 0 to 1"),
    (lambda: qkv.see([Q, Q], [K]), ValueError, "2, 1 and 1 layers"),
    (lambda: qkv.see(Q, K, tokens="the cat"), TypeError, r"tokens\.split"),
    (lambda: qkv.see(Q, K, tokens=[1, 2, 3, 4, 5]), TypeError, "convert_ids_to_tokens"),
    (lambda: qkv.see(Q, K, tokens=WORDS[:3]), ValueError, "tokens: expected 5 tokens, one for each key, got 3"),
    (lambda: qkv.see(Q, K, tokens=[WORDS] * 3), ValueError, "each of 2 batch entries"),
    (lambda: qkv.see(Q, K, query_tokens=WORDS[:2]), ValueError, "query_tokens: expected 5"),
    (lambda: qkv.see(Q, K, colors="red"), ValueError, "expected one of 'lift', 'linear', 'log'"),
    (lambda: qkv.see(Q, K, top=0), ValueError, "top is 0"),
    (lambda: qkv.see(Q, K, is_causal=True), TypeError, "here it is causal"),
    (lambda: qkv.see(Q, K, dropout=0.1, training=True), ValueError, "before dropout"),
    (lambda: qkv.see(Q, K[..., :3]), ValueError, "head size 3"),
    (lambda: qkv.see(Q[:0], K[:0]), ValueError, "nothing to see"),
    (lambda: qkv.see(Q[:, :, :0], K).png(), ValueError, "nothing to draw"),
    (lambda: qkv.see(weights=Q), ValueError, "not those of an attention"),
    (lambda: qkv.see(weights=np.zeros(3, np.float32)), ValueError, "1 axes"),
    (lambda: qkv.see(weights=np.zeros((2, 3), int)), TypeError, "int64"),
    (lambda: qkv.see(weights=np.zeros((2, 3)), causal=True), ValueError, "causal acts on q and k"),
    (lambda: qkv.see(Q, K).save("x.pdf"), ValueError, "neither .html nor .png"),
    (lambda: qkv.see(Q, K).text(color="red"), ValueError, "color is 'red'"),
    (lambda: qkv.see(Q, K).text(color=3), ValueError, "color is 3, expected 'auto'"),
    (lambda: qkv.see(Q, K).text(columns=80.5), TypeError, "columns is 80.5, expected a whole number"),
    (lambda: qkv.see(Q, K).text(columns=0), ValueError, "columns is 0, expected 1 or more"),
    (lambda: qkv.see(Q, K).text(plain="no"), TypeError, "plain is 'no', expected True or False"),
    (lambda: qkv.see(Q, K, title=None), TypeError, "title is a NoneType, expected a text"),
    (lambda: qkv.see(Q, K, colors=3), TypeError, "colors is a int, expected a text"),
    (lambda: qkv.see(Q, K, top="3"), TypeError, "top is '3', expected a whole number"),
    (lambda: qkv.see(Q, K, top=True), TypeError, "top is True"),
    (lambda: qkv.see(Q, K, head=1.0), TypeError, "head is 1.0, expected a whole number"),
    (lambda: qkv.see(Q, K, head=2**40), ValueError, "head is 1099511627776, expected 0 to"),
    (lambda: qkv.see(Q, K, head=0, query=2**70), ValueError, "query is 1180591620717411303424"),
    (lambda: qkv.see(Q, K, batch="0"), TypeError, "batch is '0'"),
    (lambda: qkv.see([Q], [K], layer="0"), TypeError, "layer is '0'"),
    (lambda: qkv.explain(Q, K, V, head=4), ValueError, "head 4: expected 0 to 3"),
    (lambda: qkv.explain(Q, K, V, query=-1), ValueError, "query -1"),
    (lambda: qkv.explain(Q, K, V, top=0), ValueError, "top is 0"),
    (lambda: qkv.explain(Q, K, V, dout=Q[..., :3]), ValueError, "expected the shape of out"),
    (lambda: qkv.explain(Q, K, dout=1), ValueError, "give v too"),
    (lambda: qkv.save_dump("x.npy", {"q": Q}), ValueError, "does not end in .npz"),
    (lambda: qkv.save_dump("x.npz", {"query": Q}), ValueError, "write 'q'"),
    (lambda: qkv.save_dump("x.npz", {"layers.3.self_attn.q": Q}), ValueError, r"write 'layer3\.q'"),
    (lambda: qkv.save_dump("x.npz", {"nonsense": Q}), ValueError, "no tensor is called 'nonsense'"),
    (lambda: qkv.save_dump("x.npz", {"q": [1, 2]}), TypeError, "np.asarray"),
    (lambda: qkv.save_dump("x.npz", {"q": Q}, attention="causl"), ValueError, "causl"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED)
def test_wrong_use_says_what_to_do(call, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        call()
    assert os.listdir(tmp_path) == []


def test_long_work_can_be_interrupted():
    q, k, _ = arrays(heads=8, key_heads=8, n=4096, s=4096, d=64)
    picture = qkv.see(q, k, causal=True)

    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    before = signal.signal(signal.SIGALRM, enough)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Enough):
            picture.text()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("module", ["_see", "_explain", "_dump"])
def test_examples_of_the_documentation_hold(module):
    found = doctest.testmod(importlib.import_module(f"qkv.{module}"))
    assert found.attempted > 0 and found.failed == 0
