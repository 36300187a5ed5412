"""The runner of case files through the package gives the verdicts of the one through the library."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[3]
OURS = [sys.executable, str(ROOT / "bindings/python/run_cases")]
LIBRARYS = ROOT / "build/release/run_cases"
OWN = [ROOT / "tests/data/cases/passing.json", ROOT / "tests/data/cases/failing.json"]
REFUSED = "the call was refused"
SHARED = sorted((ROOT.parent / "shared/cases").glob("*.json"))


def run(command: list[str], *arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)


def entries(command: list[str], file: pathlib.Path) -> list[dict[str, str]]:
    result = run(command, "--json", file)
    assert result.returncode in (0, 1), result.stderr
    report = json.loads(result.stdout)
    verdicts = [entry["result"] for entry in report["entries"]]
    assert report["failed"] == verdicts.count("fail") and (report["failed"] > 0) == (result.returncode == 1)
    return list(report["entries"])


@pytest.mark.parametrize("file", [*OWN, *SHARED], ids=lambda file: file.stem)
def test_every_entry_has_the_verdict_and_the_reason_of_the_other_runner(file: pathlib.Path) -> None:
    if not LIBRARYS.exists():
        pytest.skip("build/release/run_cases is not built")
    ours, others = entries(OURS, file), entries([str(LIBRARYS)], file)
    assert [entry["id"] for entry in ours] == [entry["id"] for entry in others]
    ran = 0
    for one, other in zip(ours, others):
        if one["detail"].startswith("operation "):
            continue
        if one["detail"].startswith(REFUSED):  # messages say names of Python here
            assert other["detail"].startswith(REFUSED)
            one, other = one | {"detail": ""}, other | {"detail": ""}
        assert one == other
        ran += 1
    assert ran > 5


def test_the_text_says_the_same_as_the_json() -> None:
    result = run(OURS, *OWN)
    lines = result.stdout.splitlines()
    assert result.returncode == 1
    assert lines[0] == "pass mean"
    assert "unsupported polarity: operation mask_polarity" in lines
    assert "fail wrong_number: slopes[1]: got 0.00390625 expected 0.5" in lines
    assert lines[-1] == "20 passed, 5 failed, 28 unsupported"


@pytest.mark.parametrize("arguments", [[], ["--no-such-option"], ["absent.json"], [ROOT / "README.md"], [ROOT]])
def test_wrong_use_and_bad_files_give_2(arguments: list[Any]) -> None:
    result = run(OURS, *arguments)
    assert result.returncode == 2 and result.stderr and not result.stdout
