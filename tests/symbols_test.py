"""A user's file with policies, compiled for AVX2, must not define a pass or kernel that libqkv.a defines too: the linker
keeps one of two weak symbols, and the program would then run AVX2 code on a machine without it."""
import os
import platform
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
OURS = re.compile(r"qkv::.*(passes|detail|kernels|policies)")
DEFINED = set("TWVuDBR")


def defined_symbols(path):
    lines = subprocess.run(["nm", "--demangle", "--defined-only", path], check=True, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL).stdout.splitlines()
    parts = [line.split(maxsplit=2) for line in lines]
    return {words[2] for words in parts if len(words) == 3 and words[1] in DEFINED and OURS.search(words[2])}


@unittest.skipUnless(platform.machine() == "x86_64", "the flags are those of x86-64")
class Symbols(unittest.TestCase):
    def test_own_policies_built_for_avx2_share_none_with_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "own_policies.o"
            subprocess.run([os.environ["QKV_CXX"], "-std=c++20", "-O2", "-mavx2", "-mfma", f"-I{SOURCE / 'include'}", "-c",
                            SOURCE / "examples/own_policies.cc", "-o", built], check=True)
            own = defined_symbols(built)
        library = defined_symbols(os.environ["QKV_STATIC_LIBRARY"])
        self.assertTrue(any("ScoreOf<Decay>" in symbol for symbol in own))
        self.assertTrue(any("qkv::passes::" in symbol for symbol in library))
        self.assertEqual(sorted(own & library), [])


if __name__ == "__main__":
    unittest.main()
