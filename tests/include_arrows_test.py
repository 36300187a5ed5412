"""Fails on an include line that points upwards: core <- policies, kernels <- attention <- inspect, nn <- autograd <- layers. io uses core only,
reference uses core and public headers, policies and kernels know each other through qkv/pass.h alone."""
import os
import re
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)

# What each folder of src/ may include beside itself. Public headers are for all.
MAY_USE = {
    "core": set(),
    "policies": {"core"},
    "kernels": {"core"},
    "io": {"core"},
    "reference": {"core"},
    "attention": {"core", "policies", "kernels"},
    "inspect": {"core", "policies", "kernels", "attention"},
    "nn": {"core", "kernels", "attention"},
    "autograd": {"core", "kernels", "nn"},
    "layers": {"core", "nn", "autograd"},
    "optim": {"core", "nn"},
    "train": {"core", "io", "nn", "autograd", "layers", "optim"},
}
# Public headers name no third party: a user needs none to compile.
STANDARD = re.compile(r"^[a-z_0-9]+$")


def wrong_arrows(top):
    """Every include line below `top` that breaks the rules, as text. Tests and benchmarks may look at anything."""
    wrong = []
    for path in sorted(p for part in ("include", "src", "tools") for p in (top / part).rglob("*") if p.suffix in {".h", ".cc"}):
        if path.stem.endswith(("_test", "_bench")):
            continue
        part, folder = path.relative_to(top).parts[:2]
        for target in INCLUDE.findall(path.read_text()):
            first = target.split("/")[0]
            if part == "include":
                good = (first == "qkv" and "/" in target) or STANDARD.match(target)
            elif part == "tools":
                good = first not in MAY_USE or first in {"core", "io", "reference"}
            elif folder not in MAY_USE:
                good = False
            else:
                good = first not in MAY_USE or first == folder or first in MAY_USE[folder]
            if not good or ".." in target:
                wrong.append(f"{path.relative_to(top)} includes {target}")
    return wrong


class IncludeArrows(unittest.TestCase):
    def test_none_points_upwards(self):
        self.assertEqual(wrong_arrows(SOURCE), [])

    def test_files_are_found(self):
        self.assertGreater(len(list((SOURCE / "src").rglob("*.cc"))), 0)
        self.assertGreater(len(INCLUDE.findall((SOURCE / "include/qkv/attention.h").read_text())), 5)

    def test_each_wrong_arrow_is_seen_and_each_right_one_is_not(self):
        files = {
            "src/core/shape.cc": ['#include "qkv/view.h"', '#include "kernels/softmax.h"'],
            "src/policies/causal.cc": ['#include "qkv/pass.h"', '#include "core/half.h"', '#include "kernels/products-inl.h"'],
            "src/kernels/forward.cc": ['#include <hwy/highway.h>', '#include "policies/alibi.h"', '  #  include <attention/check.h>'],
            "src/attention/forward.cc": ['#include "kernels/forward.h"', '#include "inspect/doctor.h"'],
            "src/reference/oracle.cc": ['#include "qkv/attention.h"', '#include "attention/bind.h"'],
            "src/io/npy.cc": ['#include "core/half.h"', '#include "attention/check.h"', '#include "../core/half.h"'],
            "src/elsewhere/new.cc": ['#include <vector>'],
            "src/core/shape_test.cc": ['#include "attention/check.h"'],
            "include/qkv/view.h": ["#include <vector>", '#include "qkv/error.h"', "#include <fmt/format.h>", '#include "core/half.h"'],
            "tools/qkv/attend.cc": ['#include "qkv/io.h"', '#include "io/npy.h"', '#include "kernels/forward.h"'],
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, lines in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(lines) + "\n")
            self.assertEqual(wrong_arrows(Path(folder)), [
                "include/qkv/view.h includes fmt/format.h",
                "include/qkv/view.h includes core/half.h",
                "src/attention/forward.cc includes inspect/doctor.h",
                "src/core/shape.cc includes kernels/softmax.h",
                "src/elsewhere/new.cc includes vector",
                "src/io/npy.cc includes attention/check.h",
                "src/io/npy.cc includes ../core/half.h",
                "src/kernels/forward.cc includes policies/alibi.h",
                "src/kernels/forward.cc includes attention/check.h",
                "src/policies/causal.cc includes kernels/products-inl.h",
                "src/reference/oracle.cc includes attention/bind.h",
                "tools/qkv/attend.cc includes kernels/forward.h",
            ])


if __name__ == "__main__":
    unittest.main()
