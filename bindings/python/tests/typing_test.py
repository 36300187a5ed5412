"""What type checkers say of calls: the types of results, and names that there are not."""

from __future__ import annotations

import ast
import inspect
import pathlib

import pytest
import qkv

USES = """
from typing import Any
import qkv

q: Any = None
reveal_type(qkv.attention(q, q, q))
reveal_type(qkv.attention(q, q, q, causal=True, return_lse=True))
reveal_type(qkv.attention(q, q, q, return_lse=True, return_stats=True, top=3))
reveal_type(qkv.attention(q, q, q, return_stats=True).stats)
reveal_type(qkv.attention_varlen(q, q, q, q, q, return_lse=True, top=2).top)
reveal_type(qkv.merge([q], [q]))
qkv.attention(q, q, q, casual=True)
qkv.attention(q, q, q, return_lse=True).weights
qkv.visible(q, q, q, windows=(1, 0))
"""


def signatures() -> ast.Module:
    return ast.parse((pathlib.Path(qkv.__file__).parent / "_signatures.pyi").read_text())


def test_type_checkers_know_results_and_names(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "uses.py").write_text(USES)
    monkeypatch.setenv("MYPYPATH", str(pathlib.Path(qkv.__file__).parent.parent))
    monkeypatch.chdir(tmp_path)
    alone = ["--no-site-packages", "--ignore-missing-imports", "--config-file=", "--cache-dir=.cache"]  # PyTorch takes minutes
    said = api.run([*alone, "uses.py"])[0].splitlines()
    revealed = [line.partition('Revealed type is "')[2].rstrip('"') for line in said if "Revealed type" in line]
    assert [kind.split("=")[-1].rstrip("]").rpartition(".")[2] for kind in revealed] == [
        "Any",
        "ResultLse",
        "ResultLseStatsTop",
        "Statistics",
        "Top",
        "ResultLse",
    ]
    faults = {int(line.split(":")[1]) for line in said if line.startswith("uses.py") and "error:" in line}
    assert {USES.splitlines()[n - 1] for n in faults} == set(USES.splitlines()[-3:]), said


def test_they_see_every_keyword() -> None:
    options = next(x for x in signatures().body if isinstance(x, ast.ClassDef))
    names = [x.target.id for x in options.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]
    more = ["q", "k", "v", "return_lse", "return_weights", "return_stats", "top", "unknown"]
    assert sorted(names + more) == sorted(inspect.signature(qkv.attention).parameters)


@pytest.mark.parametrize("name", ["attention", "attention_varlen", "attention_backward", "observe", "merge", "explain_path"])
def test_the_arguments_are_those_that_there_are(name: str) -> None:
    functions = [x for x in signatures().body if isinstance(x, ast.FunctionDef) and x.name == name]
    options = set(inspect.signature(qkv.attention).parameters)
    known = {*inspect.signature(getattr(qkv, name)).parameters}
    assert functions
    for x in functions:
        seen = {a.arg for a in (*x.args.args, *x.args.kwonlyargs)}
        assert known - options - {"options"} <= seen <= known
