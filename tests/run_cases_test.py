"""The command run_cases: what it prints and its exit codes."""
import json
import os
import pathlib
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["QKV_SOURCE_DIR"])
COMMAND = pathlib.Path(os.environ["QKV_BUILD_DIR"]) / "run_cases"
DATA = SOURCE / "tests/data/cases"


def run(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)


class RunCases(unittest.TestCase):
    def test_passing_entries_give_0_and_a_summary(self):
        result = run(DATA / "passing.json")
        lines = result.stdout.splitlines()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(lines[0], "pass mean")
        self.assertIn("pass gradients", lines)
        self.assertEqual(lines[-1], "34 passed, 0 failed, 0 unsupported")

    def test_failing_entries_give_1(self):
        result = run(DATA / "failing.json", DATA / "passing.json")
        lines = result.stdout.splitlines()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(lines[0], "fail wrong_number: slopes[1]: got 0.00390625 expected 0.5")
        self.assertIn("unsupported unknown_operation: operation sort", lines)
        self.assertEqual(lines[-1], "34 passed, 14 failed, 5 unsupported")

    def test_json_says_the_same(self):
        result = run("--json", DATA / "failing.json")
        report = json.loads(result.stdout)
        self.assertEqual(result.returncode, 1)
        self.assertEqual((report["passed"], report["failed"], report["unsupported"]), (0, 14, 5))
        self.assertEqual(report["entries"][0], {"file": str(DATA / "failing.json"), "id": "wrong_number", "result": "fail",
                                                "detail": "slopes[1]: got 0.00390625 expected 0.5"})

    def test_wrong_use_and_bad_files_give_2(self):
        for arguments in [[], ["--no-such-option"], [DATA / "absent.json"], [SOURCE / "CMakeLists.txt"], [SOURCE]]:
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertNotEqual(result.stderr, "", arguments)
            self.assertEqual(result.stdout, "", arguments)


if __name__ == "__main__":
    unittest.main()
