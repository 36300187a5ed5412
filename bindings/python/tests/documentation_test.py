"""The package as it presents itself: examples in docstrings, names, types."""

from __future__ import annotations

import doctest
import importlib.metadata
import importlib.util
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys
import typing

import numpy as np
import pytest
import qkv

MODULES = sorted(m.name for m in pkgutil.iter_modules(qkv.__path__) if m.name != "_core")


@pytest.mark.parametrize("name", ["", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    module = pytest.importorskip(f"qkv.{name}" if name else "qkv")  # some need PyTorch or transformers
    known: dict[str, typing.Any] = {"np": np, "qkv": qkv}
    if name == "hf":
        transformers = pytest.importorskip("transformers")
        known |= {"GPT2Config": transformers.GPT2Config, "AutoModel": transformers.AutoModel}
    result = doctest.testmod(module, extraglobs=known)
    assert result.failed == 0


#: All names that a user may say, by the module that must be there for them.
PUBLIC = {
    "qkv": [name for name in qkv.__all__ if name not in ("__version__", "tap")],
    "qkv._tap": ["tap", "Record", "Layer"],
    "qkv.torch": ["MultiheadAttention", "replace_sdpa", "scaled_dot_product_attention"],
    "qkv.hf": ["attention_forward", "make_mask", "register"],
}


def public_thing(module: str, name: str) -> typing.Any:
    return getattr(pytest.importorskip(module), name)


@pytest.mark.parametrize("module, name", [(module, name) for module, names in PUBLIC.items() for name in names])
def test_every_public_name_has_its_documentation_and_an_example(module: str, name: str) -> None:
    thing = public_thing(module, name)
    text = inspect.getdoc(thing) or ""
    assert len(text.splitlines()) > 2, text
    assert thing.__module__.partition(".")[0] == "qkv"
    assert doctest.DocTestParser().get_examples(text), f"no example: {text}"
    if inspect.isfunction(thing) and name not in ("num_threads", "make_mask"):
        assert "Raises" in text


@pytest.mark.parametrize("name", ["Explanation", "Picture", "Record", "Layer"])
def test_every_public_method_is_documented(name: str) -> None:
    thing = getattr(qkv, name, None) or public_thing("qkv._tap", name)
    public = {n: x for n, x in vars(thing).items() if not n.startswith("_") and (callable(x) or isinstance(x, property))}
    assert len(public) > 1
    assert [n for n, x in public.items() if not inspect.getdoc(x)] == []


def test_the_list_of_public_names_is_whole() -> None:
    assert qkv.__version__ == importlib.metadata.version("qkv")
    for module in ("qkv.torch", "qkv.hf"):
        assert PUBLIC[module] == sorted(pytest.importorskip(module).__all__)


def test_names_of_the_package_are_the_public_ones() -> None:
    assert {"tap", "torch", "hf", "attention"} <= set(dir(qkv))
    assert not {"Any", "TYPE_CHECKING", "importlib", "annotations"} & set(dir(qkv))
    assert "qkv.tap" in str(qkv.__doc__) and "qkv.hf" in str(qkv.__doc__)
    names: dict[str, typing.Any] = {}
    exec("from qkv import *", names)
    assert ("tap" in names) == (importlib.util.find_spec("torch") is not None)


def test_every_keyword_of_attention_is_in_its_documentation() -> None:
    keywords = set(inspect.signature(qkv.attention).parameters) - {"unknown"}
    missing = {name for name in keywords if name not in str(qkv.attention.__doc__)}
    assert missing <= {"return_lse", "return_weights", "return_stats"}


def test_the_package_says_its_types() -> None:
    folder = pathlib.Path(qkv.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists()
    for function in (qkv.attention, qkv.attention_backward, qkv.observe, qkv.merge, qkv.visible):
        assert "return" in typing.get_type_hints(function)


def test_importing_it_does_not_import_pytorch() -> None:
    code = "import qkv, sys; assert not {'torch', 'transformers', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_about_python_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "python.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, typing.Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for module in re.findall(r"^import (torch|transformers)$", block, re.MULTILINE):
            pytest.importorskip(module)
        exec(block, names)
    assert {path.name for path in tmp_path.iterdir()} >= {"page.html", "layer.html", "layer.npz"}


def test_the_example_of_the_readme_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = pathlib.Path(__file__).parents[3] / "README.md"
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert len(blocks) == 1
    monkeypatch.chdir(tmp_path)
    exec(blocks[0], {})
    assert (tmp_path / "page.html").stat().st_size > 10_000
