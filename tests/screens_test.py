"""What the command draws, byte by byte, on terminals of several kinds and sizes and into a pipe, against recorded screens.
Where a change is meant: QKV_RECORD=1 scripts/test -R screens, and look at the difference before committing it."""
import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
import unicodedata
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
COMMAND = os.environ["QKV_COMMAND"]
SCREENS = SOURCE / "tests/data/screens"
SAMPLE = str(SOURCE / "samples/minilm-not-bad.npz")

TRUE = {"COLORTERM": "truecolor", "TERM": "xterm-256color"}
CUBE = {"TERM": "xterm-256color"}  # 256 colours
NONE = {**TRUE, "NO_COLOR": "1"}
DUMB = {"TERM": "dumb"}
ASCII = {**CUBE, "LC_ALL": "C"}

HEAD = ["see", SAMPLE, "--layer", "4", "--head", "7", "--top", "3"]
WORDS = ["see", "words.npy", "--top", "2"]
LONG = ["see", "long.npy", "--top", "1"]
GRID = ["see", SAMPLE, "--layer", "4", "--grid"]
HEADS = ["see", SAMPLE, "--top", "1"]
MASK = ["see", SAMPLE, "--layer", "4", "--mask", "--causal", "--window", "3,0"]
TYPED = ["--x", "1,2,0;0.5,-0.25,3", "--wq", "1,0;0,1;1,1", "--wk", "2,0;0,1;1,1", "--wv", "1,1;0,1;5,5", "--heads", "1", "--softcap", "3"]
ROW = ["see", SAMPLE, "--layer", "4", "--head", "7", "--row", "5"]

# name: columns (0: a pipe), environment, arguments
CASES = {
    "head-truecolour": (100, TRUE, HEAD),
    "head-256": (100, CUBE, HEAD),
    "head-no-colour": (100, NONE, HEAD),
    "head-dumb": (100, DUMB, HEAD),
    "head-pipe": (0, TRUE, HEAD),
    "head-60": (60, TRUE, HEAD),
    "head-200": (200, TRUE, HEAD),
    "head-lift": (100, TRUE, [*HEAD, "--causal", "--scale", "lift"]),
    "words-truecolour": (100, TRUE, WORDS),
    "words-60": (60, CUBE, WORDS),
    "words-pipe": (0, TRUE, WORDS),
    "words-ascii": (100, ASCII, WORDS),
    "long-truecolour": (100, TRUE, LONG),
    "long-256-60": (60, CUBE, LONG),
    "long-200": (200, NONE, LONG),
    "long-ascii": (100, ASCII, LONG),
    "grid-truecolour": (100, TRUE, GRID),
    "grid-256-60": (60, CUBE, GRID),
    "grid-pipe": (0, TRUE, GRID),
    "row-truecolour": (100, TRUE, ROW),
    "row-60": (60, NONE, ROW),
    "row-ascii": (100, ASCII, ROW),
    "mask-256": (100, CUBE, MASK),
    "plain": (100, TRUE, ["see", SAMPLE, "--layer", "4", "--head", "7", "--plain"]),
    "explain-truecolour": (100, TRUE, ["explain", "--example", "W3c", "--query", "1", "--tokens", "the,cat,sat"]),
    "explain-sample-pipe": (0, TRUE, ["explain", SAMPLE, "--layer", "4", "--head", "7", "--query", "5", "--top", "4"]),
    "head-40": (40, CUBE, HEAD),
    "heads-40": (40, NONE, HEADS),
    "heads-60": (60, NONE, HEADS),
    "heads-pipe": (0, TRUE, HEADS),
    "words-40": (40, NONE, WORDS),
    "long-40": (40, CUBE, LONG),
    "grid-40": (40, CUBE, GRID),
    "row-40": (40, NONE, ROW),
    "mask-40": (40, CUBE, MASK),
    "plain-40": (40, NONE, ["see", SAMPLE, "--layer", "4", "--head", "7", "--plain"]),
    "explain-40": (40, NONE, ["explain", SAMPLE, "--layer", "4", "--head", "7", "--query", "5", "--top", "3", "--causal"]),
    "explain-projections-40": (40, NONE, ["explain", *TYPED]),
    "scaling-40": (40, NONE, ["explain", "scaling", "--draws", "101"]),
    "scaling-60": (60, NONE, ["explain", "scaling", "--draws", "101"]),
    "compare-40": (40, NONE, ["compare", SAMPLE, "--layer", "4"]),
    "explain-ascii": (60, ASCII, ["explain", "--example", "W2i", "--query", "1"]),
}


def write_npy(path, rows):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    flat = [x for row in rows for x in row]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(flat)}f", *flat))


def weights(scores):
    rows = []
    for row in scores:
        e = [math.exp(s) for s in row]
        rows.append([x / sum(e) for x in e])
    return rows


def make_files(folder):
    words = ["我", "喜欢", "机器学习", "👩\u200d🚀", "שלום", "e\u0301tude", "internationalisation", "\n"]
    n = len(words)
    write_npy(folder / "words.npy", weights([[3.0 * (i == (3 * j + 1) % n) - 0.1 * j for j in range(n)] for i in range(n)]))
    (folder / "words.json").write_text(json.dumps({"tokens": words}))
    n = 96
    write_npy(folder / "long.npy", weights([[4.0 * (j == i - 1) + 3.0 * (j == 0) + (j // 8 == i // 8) for j in range(n)]
                                            for i in range(n)]))


def on_a_terminal(arguments, columns, environment, folder):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen([COMMAND, *arguments], cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not part:
            break
        text += part
    os.close(master)
    return child.wait(), text.replace(b"\r\n", b"\n")


def into_a_pipe(arguments, environment, folder):
    done = subprocess.run([COMMAND, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def without_rounding(text):
    """The last bits differ between instruction sets; that they are within the bound is the command's own business."""
    text = re.sub(rb" +\d(\.\d+)?e-\d\d", b" *", text)
    return re.sub(rb"differs\s+by\s+\S+\s+allowed\s+is\s+\S+", b"differs by *; allowed is *", text)


def width(line):
    """Columns of a line: wide characters count two, marks, joiners and what an emoji is joined to none."""
    line = re.sub("\x1b\\[[0-9;]*m|\u200d.", "", line)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


class Screens(unittest.TestCase):
    maxDiff = None

    def screen(self, name, folder):
        columns, variables, arguments = CASES[name]
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "COLUMNS", "LINES", "LANG")}
        environment = {**environment, "LC_ALL": "C.UTF-8", **variables}
        code, text = (on_a_terminal(arguments, columns, environment, folder) if columns
                      else into_a_pipe(arguments, environment, folder))
        self.assertEqual(code, 0, text)
        return without_rounding(text)

    def test_are_as_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder))
            for name in CASES:
                with self.subTest(name):
                    text = self.screen(name, folder)
                    recorded = SCREENS / f"{name}.txt"
                    if os.environ.get("QKV_RECORD"):
                        SCREENS.mkdir(exist_ok=True)
                        recorded.write_bytes(text)
                    self.assertEqual(text.decode(), recorded.read_bytes().decode())

    def test_none_is_recorded_that_nobody_draws(self):
        self.assertEqual({path.stem for path in SCREENS.glob("*.txt")}, set(CASES))

    def test_lines_are_no_wider_than_the_terminal(self):
        for path in SCREENS.glob("*.txt"):
            columns = CASES[path.stem][0]
            for line in path.read_text().splitlines():
                # Two are wider: one is not as it was drawn, and a command goes on a line so that it can be copied.
                if columns and "differs by *" not in line and not line.startswith("qkv explain "):
                    self.assertLessEqual(width(line), columns, path.stem)

    def test_colours_are_where_they_belong(self):
        for path in SCREENS.glob("*.txt"):
            columns, variables, _ = CASES[path.stem]
            text = path.read_text()
            coloured = columns > 0 and variables in (TRUE, CUBE, ASCII) and path.stem != "plain"
            self.assertEqual("\x1b[" in text, coloured, path.stem)
            if variables is not TRUE:
                self.assertNotIn("8;2;", text, path.stem)
            if variables is ASCII:
                self.assertNotIn("▀", text, path.stem)


if __name__ == "__main__":
    unittest.main()
