"""README and the pages of docs/commands show real output: every ```console block is run and compared, word by word. A line "[...]" stands
for any lines. Standard error is not shown. To write the output anew: QKV_RECORD=1 scripts/test -R docs."""
import os
import re
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
PAGES = sorted((SOURCE / "docs/commands").glob("*.md"))
BLOCK = re.compile(r"```console\n(.*?)```", re.S)
SKIP = "[...]\n"


def run(line, folder):
    """One line after '$', in a folder where the samples lie too, so that what it writes goes nowhere."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLORTERM", "LINES", "LANG")}
    environment.update(LC_ALL="C.UTF-8", COLUMNS="100", NO_COLOR="1")
    shell = f"qkv() {{ {shlex.quote(os.environ['QKV_COMMAND'])} \"$@\"; }}\n{line}"
    return subprocess.run(["bash", "-c", shell], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


def steps(block):
    """The commands of a block, each with the output that follows it."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.M)
    return list(zip(parts[1::2], parts[2::2]))


def without_rounding(text):
    """Differences of the size of roundings are not the same on every instruction set."""
    return re.sub(r" +\d(\.\d+)?e-\d\d", " *", text)


def matches(expected, text):
    expected, text = without_rounding(expected), without_rounding(text)
    pattern = "(?:.*\n)*".join(re.escape(part) for part in expected.split(SKIP))
    return re.fullmatch(pattern, text) is not None


class Docs(unittest.TestCase):
    maxDiff = None

    def check(self, block, folder):
        shown = ""
        for line, expected in steps(block):
            done = run(line, folder)
            self.assertEqual(done.returncode, 0, f"$ {line}\n{done.stderr}")
            shown += f"$ {line}\n" + (expected if SKIP in expected else done.stdout)
            if os.environ.get("QKV_RECORD") and SKIP not in expected:
                continue
            if not matches(expected, done.stdout):
                self.assertEqual(expected, done.stdout, f"$ {line}")
        return f"```console\n{shown}```"

    def test_output_is_what_the_commands_print(self):
        self.assertTrue(PAGES)
        for page in [SOURCE / "README.md", *PAGES]:
            with self.subTest(page.name), tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "samples").symlink_to(SOURCE / "samples")
                text = page.read_text()
                recorded = BLOCK.sub(lambda block: self.check(block[1], folder), text)
                if os.environ.get("QKV_RECORD"):
                    page.write_text(recorded)

    def test_every_option_of_a_command_is_on_its_page(self):
        for page in PAGES:
            done = run(f"qkv {page.stem} --help", SOURCE)
            self.assertEqual(done.returncode, 0, page.name)
            own = done.stdout.split("Tensors (")[0].split("Attention:")[0]
            for option in re.findall(r"--[a-z-]+", own):
                if option not in ("--help", "--json"):
                    self.assertIn(option, page.read_text(), page.name)


if __name__ == "__main__":
    unittest.main()
