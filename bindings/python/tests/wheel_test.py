"""What a wheel brings. Skipped where the package is not installed from one."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest
import qkv

FOLDER = pathlib.Path(qkv.__file__).parent


@pytest.fixture(scope="module")
def names() -> set[str]:
    """All files of the wheel."""
    try:
        files = importlib.metadata.files("qkv") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    if not any(f.name == "RECORD" for f in files):
        pytest.skip("not installed from a wheel")
    return {str(f) for f in files if f.suffix != ".pyc"}


def test_it_is_the_package_its_metadata_and_nothing_else(names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in names} == {"qkv"}
    assert {"qkv/py.typed", "qkv/_core.pyi"} <= names
    assert len([name for name in names if name.startswith("qkv/_core.") and name.endswith(".so")]) == 1


def test_licences_of_what_is_inside_are_there(names: set[str]) -> None:
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    inside = ["fmt.txt", "highway.txt", "json.txt", "libpng.txt", "nanobind.txt", "utf8proc.txt", "zlib.txt"]
    assert licences == {"LICENSE", *inside}


def loaded_by(code: str) -> set[pathlib.Path]:
    """The shared libraries of a process that runs this."""
    code += "; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {pathlib.Path(line.split()[-1]) for line in maps.splitlines() if ".so" in line}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_libraries_that_are_not_part_of_every_linux_come_from_the_wheel(names: set[str]) -> None:
    brought = {name.rpartition("/")[2] for name in names if name.startswith("qkv/libraries/")}
    assert {name.partition(".so")[0] for name in brought} <= {"libhwy", "libfmt", "libpng16", "libutf8proc", "libz"}
    core = next(FOLDER / name.partition("/")[2] for name in names if name.startswith("qkv/_core.") and ".so" in name)
    # Alone in its process, so that nothing else has loaded one of them but the interpreter itself.
    code = f"from importlib import util as u; u.module_from_spec(u.spec_from_file_location('qkv._core', {str(core)!r}))"
    before, loaded = loaded_by("pass"), loaded_by(code)
    missing = brought - {library.name for library in loaded if library.parent == FOLDER / "libraries"}
    assert missing <= {library.name for library in before}
    assert not [library.name for library in loaded if library.name.startswith(("libzip", "libqkv"))]
