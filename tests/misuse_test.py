"""Compiles every file of tests/misuse: each must fail with the sentence of its first line, `// expect: SENTENCE`.
Where that says `compiles` it must succeed, so that the others fail for their own reason."""
import os
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
COMPILE = [os.environ["QKV_CXX"], "-std=c++20", "-fsyntax-only", f"-I{SOURCE / 'include'}"]


def compile_file(path):
    return subprocess.run([*COMPILE, str(path)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "LC_ALL": "C.UTF-8"})


class Misuse(unittest.TestCase):
    def test_the_compiler_says_what_is_wrong(self):
        files = sorted((SOURCE / "tests/misuse").glob("*.cc"))
        expected = [path.read_text().splitlines()[0].removeprefix("// expect: ") for path in files]
        self.assertEqual(expected.count("compiles"), 1)
        with ThreadPoolExecutor(2) as pool:
            for path, sentence, done in zip(files, expected, pool.map(compile_file, files)):
                with self.subTest(path.name):
                    if sentence == "compiles":
                        self.assertEqual((done.returncode, done.stdout), (0, ""))
                    else:
                        self.assertNotEqual(done.returncode, 0, "it compiles")
                        errors = [line for line in done.stdout.splitlines() if "error: static" in line]
                        self.assertTrue(any(sentence in line for line in errors), done.stdout)


if __name__ == "__main__":
    unittest.main()
