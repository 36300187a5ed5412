"""A user's file with policies, compiled for AVX2, must define nothing of namespace qkv that libqkv.a defines too: the
linker keeps one of two weak symbols, and the library would then run AVX2 code on a machine without it. (Members of std types
cannot be kept out of either.)"""
import os
import platform
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
OURS = re.compile(r"^_Z(T[VIS])?N?[VK]*3qkv")  # functions, virtual tables and variables of namespace qkv
DEFINED = set("TWVuDBR")


def defined_symbols(path):
    lines = subprocess.run(["nm", "--defined-only", path], check=True, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL).stdout.splitlines()
    parts = [line.split(maxsplit=2) for line in lines]
    return {words[2] for words in parts if len(words) == 3 and words[1] in DEFINED and OURS.match(words[2])}


@unittest.skipUnless(platform.machine() == "x86_64", "the flags are those of x86-64")
class Symbols(unittest.TestCase):
    def test_own_policies_built_for_avx2_share_none_with_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "own_policies.o"
            subprocess.run([os.environ["QKV_CXX"], "-std=c++20", "-O2", "-mavx2", "-mfma", f"-I{SOURCE / 'include'}", "-c",
                            SOURCE / "examples/own_policies.cc", "-o", built], check=True)
            own = defined_symbols(built)
        library = defined_symbols(os.environ["QKV_STATIC_LIBRARY"])
        self.assertTrue(any("ScoreOfI5Decay" in symbol for symbol in own))
        self.assertTrue(any("3qkv6passes" in symbol for symbol in library))
        self.assertEqual(sorted(own & library), [])


if __name__ == "__main__":
    unittest.main()
