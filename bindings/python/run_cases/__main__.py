"""Runs case files through the Python package, as the command run_cases does through the library.

Operations that the package does not have are unsupported.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from operations import OPERATIONS, Answer, required
from values import Malformed, NotSupported, Refused, Tolerance, first_difference, read_shape, read_values, shape_text


@dataclass
class Outcome:
    id: str
    verdict: str  #: "pass", "fail" or "unsupported"
    detail: str = ""  #: why it is no pass

    def line(self) -> str:
        return f"{self.verdict} {self.id}: {self.detail}" if self.detail else f"{self.verdict} {self.id}"


def complaint(name: str, answer: Answer, expected: Any, shapes: Any, tolerance: Tolerance) -> str:
    """Why an answer is not the expected one; empty where it is."""
    got = answer[name]
    shape = read_shape(shapes[name]) if name in shapes else None
    want = read_values(expected, shape)
    if got.shape != want.shape if shape is not None else len(got.numbers) != len(want.numbers):
        return f"{name} has shape {shape_text(got.shape)}, expected {shape_text(want.shape)}"
    difference = first_difference(got, want, tolerance)
    return "" if difference is None else name + difference


def is_known_wrong(answer: Answer, known_wrong: dict[str, Any], tolerance: Tolerance) -> bool:
    """Whether the answer is the one of a faulty implementation, in everything that is known of it."""
    names = [name for name in sorted(known_wrong) if name in answer]

    def equals(name: str) -> bool:
        wrong = read_values(known_wrong[name])
        same_size = len(wrong.numbers) == len(answer[name].numbers)
        return same_size and first_difference(answer[name], wrong, tolerance) is None

    return bool(names) and all(equals(name) for name in names)


def members(entry: Any, key: str) -> dict[str, Any]:
    found = entry.get(key)
    return found if isinstance(found, dict) else {}


def compare(id: str, entry: Any, answer: Answer) -> Outcome:
    expected, shapes = required(entry, "expected"), members(entry, "expected_shape")
    bounds = required(entry, "tol")
    tolerance = Tolerance(float(required(bounds, "atol")), float(required(bounds, "rtol")))
    if not expected:
        raise Malformed('"expected" is empty')
    for name, value in sorted(expected.items()):
        if name not in answer:
            raise NotSupported(f'the expected "{name}"')
        if why := complaint(name, answer, value, shapes, tolerance):
            return Outcome(id, "fail", why)
    if is_known_wrong(answer, members(entry, "known_wrong"), tolerance):
        return Outcome(id, "fail", "the result is the known wrong one")
    return Outcome(id, "pass")


def run_operation(id: str, entry: Any, op: str) -> Outcome:
    inputs, options = required(entry, "inputs"), entry.get("options", {})
    expected = required(entry, "expected")
    must_refuse = isinstance(expected, dict) and "error" in expected
    try:
        answer = OPERATIONS[op](inputs, options)
    except Refused as e:
        return Outcome(id, "pass") if must_refuse else Outcome(id, "fail", f"the call was refused: {e}")
    if must_refuse:
        wanted = json.dumps(expected["error"])
        return Outcome(id, "fail", f"error: the call was accepted, expected {wanted}")
    return compare(id, entry, answer)


def text_of(entry: Any, key: str) -> str:
    text = required(entry, key)
    if not isinstance(text, str):
        raise Malformed(f'"{key}" is {text!r}')
    return text


def run_entry(entry: Any, number: int) -> Outcome:
    """A malformed entry fails and keeps no other from its verdict."""
    id = f"entry {number}"
    try:
        id = text_of(entry, "id")
        op = text_of(entry, "op")
        if op not in OPERATIONS:
            return Outcome(id, "unsupported", f"operation {op}")
        return run_operation(id, entry, op)
    except NotSupported as e:
        return Outcome(id, "unsupported", str(e))
    except (Malformed, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        return Outcome(id, "fail", f"malformed: {e}")


def no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def run_file(path: str) -> list[Outcome]:
    """Raises Malformed where the file is no list of entries."""
    try:
        with open(path, encoding="utf-8") as stream:
            file = json.load(stream, parse_constant=no_number)
        if required(file, "schema_version") != 1:
            raise Malformed("schema_version is not 1")
        if not isinstance(required(file, "entries"), list):
            raise Malformed('"entries" is not a list')
    except OSError as e:
        raise Malformed(f"{path} cannot be opened") from e
    except (ValueError, Malformed) as e:
        raise Malformed(f"{path}: {e}") from e
    return [run_entry(entry, n) for n, entry in enumerate(file["entries"])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="run_cases", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="case files, schema version 1")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    arguments = parser.parse_args()
    try:
        outcomes = [(file, outcome) for file in arguments.files for outcome in run_file(file)]
    except Malformed as e:
        print(f"run_cases: {e}", file=sys.stderr)
        return 2
    verdicts = [outcome.verdict for _, outcome in outcomes]
    passed, failed, unsupported = (verdicts.count(name) for name in ("pass", "fail", "unsupported"))
    if arguments.json:
        entries = [{"file": file, "id": o.id, "result": o.verdict, "detail": o.detail} for file, o in outcomes]
        report = {"entries": entries, "passed": passed, "failed": failed, "unsupported": unsupported}
        print(json.dumps(report, indent=2, sort_keys=True, ensure_ascii=False))
    else:
        print(*(outcome.line() for _, outcome in outcomes), sep="\n", end="\n" if outcomes else "")
        print(f"{passed} passed, {failed} failed, {unsupported} unsupported")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
