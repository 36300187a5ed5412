"""The examples of docs/dumps.md as a reader would run them, and the file that each writes as qkv reads it. Those whose
packages are missing are skipped; `scripts/setup --all` installs them into .venv."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
QKV = os.environ["QKV_COMMAND"]
EXAMPLE = re.compile(r"^### ([^\n]+)\n.*?```(python|cpp)\n(.*?)```", re.MULTILINE | re.DOTALL)

# What the reader has already, by the title of the example, with the modules that it needs.
BEFORE = {
    "PyTorch": ("torch safetensors", """
import torch
q, k, v = (torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3))
out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""),
    "transformers: weights of all layers": ("torch safetensors transformers", """
import torch, transformers
config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16, vocab_size=50)
model = transformers.BertModel._from_config(config, attn_implementation="eager").eval()
inputs = {"input_ids": torch.arange(6)[None]}
"""),
    "transformers: q, k, v of all layers": ("torch safetensors transformers", """
import torch, transformers
config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                  intermediate_size=16, vocab_size=50)
model = transformers.LlamaModel(config).eval()
inputs = {"input_ids": torch.arange(12).reshape(2, 6), "attention_mask": torch.tensor([[1] * 6, [0] * 2 + [1] * 4])}
"""),
    "NumPy": ("numpy", "import numpy as np\nq, k, v = np.random.randn(3, 1, 2, 3, 8).astype(np.float32)\n"),
    "JAX": ("numpy jax", "import jax\nq, k, v = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 8))\n"),
    "C++": ("", ""),
}
PROGRAM = """#include <qkv/io.h>
int main() {
  constexpr int B = 1, H = 2, L = 3, S = 4, D = 8;
  static float q_data[B * H * L * D], k_data[B * H * S * D], v_data[B * H * S * D];
%s}
"""


def python_with(modules):
    """An interpreter that has the modules; None where there is none."""
    check = f"from importlib.util import find_spec; assert all(map(find_spec, {modules.split()}))"
    for python in (sys.executable, SOURCE / ".venv/bin/python"):
        if Path(python).exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0:
            return python
    return None


class Example:
    """Runs an example in a folder of its own."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_here(self, *command, code=0):
        done = subprocess.run([str(word) for word in command], cwd=self.folder.name, capture_output=True, text=True,
                              env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}{done.stderr}")
        return done

    def dump(self, title):
        examples = {t: (language, text) for t, language, text in EXAMPLE.findall((SOURCE / "docs/dumps.md").read_text())}
        self.assertEqual(set(examples), set(BEFORE))
        language, text = examples[title]
        modules, before = BEFORE[title]
        if language == "cpp":
            source = Path(self.folder.name) / "dump.cc"
            source.write_text(PROGRAM % text)
            flags = ["-std=c++20", f"-I{SOURCE / 'include'}", f"-I{os.environ['QKV_BUILD_DIR']}/include", "-DQKV_STATIC"]
            self.run_here(os.environ["QKV_CXX"], *flags, source, os.environ["QKV_STATIC_LIBRARY"], "-lhwy", "-lzip", "-pthread",
                          "-o", "dump")
            return self.run_here("./dump")
        python = python_with(modules)
        if python is None:
            self.skipTest(f"no Python here has {modules}")
        return self.run_here(python, "-c", before + text)

    def convert(self, modules, make, files):
        """What a message says behind "in Python: ", as a user would run it; then qkv reads what it wrote."""
        python = python_with(modules)
        if python is None:
            self.skipTest(f"no Python here has {modules}")
        self.run_here(python, "-c", make)
        for name, converted in files.items():
            message = self.run_here(QKV, "see", name, code=2).stderr
            self.run_here(python, "-c", message.split("`")[1])
            self.run_here(QKV, "see", *converted.split(), "--plain")


class Examples(Example, unittest.TestCase):
    def test_numpy(self):
        self.dump("NumPy")
        result = json.loads(self.run_here(QKV, "attend", "dump.npz", "-o", "out.npz", "--json").stdout)
        self.assertEqual(result["layers"][0]["attention"], "causal | softmax")
        sidecar = json.loads((Path(self.folder.name) / "out.json").read_text())
        self.assertEqual(sidecar["tokens"], ["the", "cat", "sat"])

    def test_cpp(self):
        self.dump("C++")
        result = json.loads(self.run_here(QKV, "attend", "dump.npz", "-o", "out.npz", "--json").stdout)
        self.assertEqual(result["layers"][0]["key"], "{1, 2, 4, 8}")

    def test_numpy_converts_what_qkv_does_not_read(self):
        make = "import numpy, pickle; q = numpy.random.randn(3, 4); numpy.savetxt('q.csv', q, delimiter=','); numpy.savetxt('q.txt', q)"
        self.convert("numpy", f"{make}; pickle.dump({{'q': q, 'k': q}}, open('q.pkl', 'wb'))",
                     {"q.csv": "--q out.npy --k out.npy", "q.txt": "--q out.npy --k out.npy", "q.pkl": "out.npz"})


class SlowExamples(Example, unittest.TestCase):
    """Of frameworks that take seconds to start."""

    def test_pytorch_converts_what_qkv_does_not_read(self):
        self.convert("torch safetensors", "import torch; q = torch.randn(3, 4); torch.save({'q': q, 'k': q + 1}, 'q.pt')",
                     {"q.pt": "out.safetensors"})

    def test_pytorch(self):
        self.dump("PyTorch")
        self.run_here(QKV, "compare", "dump.safetensors", "--tolerance", "1e-5")

    def test_transformers_weights(self):
        self.dump("transformers: weights of all layers")
        seen = json.loads(self.run_here(QKV, "see", "dump.safetensors", "--json").stdout)
        self.assertEqual(len(seen["layers"]), 2)

    def test_transformers_q_k_v(self):
        self.dump("transformers: q, k, v of all layers")
        # The mask keeps rows of padding from seeing anything real, and transformers gives such rows something else than 0.
        result = json.loads(self.run_here(QKV, "attend", "dump.safetensors", "-o", "out.npz", "--json").stdout)
        self.assertEqual([layer["layer"] for layer in result["layers"]], [0, 1])
        self.assertEqual(result["layers"][0]["attention"], "keep_mask | softmax")
        self.assertEqual(result["layers"][0]["key"], "{2, 2, 6, 8}")

    def test_jax(self):
        self.dump("JAX")
        result = json.loads(self.run_here(QKV, "attend", "dump.npz", "-o", "out.npz", "--json").stdout)
        self.assertEqual(result["layers"][0]["query"], "{2, 4, 5, 8}")


if __name__ == "__main__":
    unittest.main()
