"""Installs the built qkv into a fresh prefix, moves it, and builds tests/consumer against the copy: with find_package(qkv)
and with plain compiler lines from pkg-config, each with the shared and with the static library."""
import os
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
CMAKE = os.environ["QKV_CMAKE"]
CXX = os.environ["QKV_CXX"]


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(map(str, command))}\n{done.stdout}")
    return done.stdout


class Consumer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.top = Path(cls.folder.name)
        run(CMAKE, "--install", os.environ["QKV_BUILD_DIR"], "--prefix", cls.top / "first")
        cls.prefix = (cls.top / "first").rename(cls.top / "moved")
        cls.libraries = next(cls.prefix.rglob("libqkv.so")).parent

    def test_find_package_gives_the_shared_and_the_static_library(self):
        build = self.top / "build"
        run(CMAKE, "-S", SOURCE / "tests/consumer", "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={CXX}",
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(CMAKE, "--build", build)
        for program in ("with_shared", "with_static"):
            self.assertIn("qkv ", run(build / program))
        self.assertIn("libqkv.so", run("readelf", "-d", build / "with_shared"))
        self.assertNotIn("libqkv.so", run("readelf", "-d", build / "with_static"))

    def test_pkg_config_gives_a_compiler_line_for_each(self):
        for package, linked in (("qkv", True), ("qkv-static", False)):
            with self.subTest(package):
                flags = run("pkg-config", "--cflags", "--libs", package, PKG_CONFIG_PATH=str(self.libraries / "pkgconfig"))
                program = self.top / package
                run(CXX, "-std=c++20", SOURCE / "tests/consumer/main.cc", "-o", program, *shlex.split(flags))
                self.assertIn("qkv ", run(program, LD_LIBRARY_PATH=str(self.libraries)))
                self.assertEqual("libqkv.so" in run("readelf", "-d", program), linked)

    def test_the_command_is_installed_and_runs(self):
        self.assertIn("Usage", run(self.prefix / "bin/qkv", "--help"))

    def test_every_public_header_is_installed(self):
        sources = {header.name for header in (SOURCE / "include/qkv").glob("*.h")}
        installed = {header.name for header in (self.prefix / "include/qkv").glob("*.h")}
        self.assertEqual(installed, sources | {"version.h"})


if __name__ == "__main__":
    unittest.main()
