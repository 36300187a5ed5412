"""Layers and training beside PyTorch: parameters go over in both directions under PyTorch's names, outputs, weights and gradients
agree, and losses stay together step by step. Skipped where no Python has torch; `scripts/setup --all` installs it into .venv."""
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(os.environ["QKV_SOURCE_DIR"])
PROGRAMS = Path(os.environ["QKV_BUILD_DIR"]) / "tests"
NEEDED = ("torch", "safetensors")
VENV = SOURCE / ".venv/bin/python"
HAS_TORCH = all(map(find_spec, NEEDED))
if not HAS_TORCH and VENV.exists() and "QKV_TORCH_TEST" not in os.environ:
    os.environ["QKV_TORCH_TEST"] = "once"  # so that a .venv without torch does not start itself again
    os.execv(VENV, [str(VENV), *sys.argv])
if HAS_TORCH:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn

    sys.path.insert(0, str(SOURCE / "tests/torch"))
    import training

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
WIDTH, HEADS, HIDDEN, BATCH, ROWS, KEYS = 24, 3, 33, 2, 7, 9


def run(program, tensors, metadata):
    """What the program writes, given these tensors and texts."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/in.safetensors", f"{folder}/out.safetensors"
        # A copy of each: safetensors refuses tensors that share memory.
        save_file({k: t.detach().clone().contiguous() for k, t in tensors.items()}, source,
                  {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in metadata.items()})
        done = subprocess.run([PROGRAMS / program, source, target], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return load_file(target)


def randomised(module, dtype, seed=1):
    """PyTorch begins with biases of 0 and gains of 1, which hide faults."""
    torch.manual_seed(seed)
    module = module.to(getattr(torch, dtype))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.2) + (1 if p.dim() == 1 and p.mean() > 0.5 else 0))
    return module.train()


def numbers(*shape, dtype):
    return torch.randn(*shape, dtype=getattr(torch, dtype), requires_grad=True)


class Compared:
    """Runs a layer on both sides."""

    def expect_close(self, name, ours, theirs, dtype):
        self.assertEqual(ours.shape, theirs.shape, name)
        self.assertEqual(ours.dtype, theirs.dtype, name)
        worst = (ours - theirs).abs().max().item() if ours.numel() else 0
        self.assertLessEqual(worst, TOLERANCE[dtype] * max(1.0, theirs.abs().max().item()), f"{name} differs by {worst:.2e}")

    def compare(self, module, call, inputs, metadata, masks, dtype):
        """call(module) gives y, or y and the weights of heads. Returns what our program wrote."""
        result = call(module)
        y, weights = result if isinstance(result, tuple) else (result, None)
        dy = torch.randn_like(y)
        y.backward(dy)
        tensors = {**inputs, **masks, "dy": dy, **{f"state.{k}": t for k, t in module.state_dict().items()}}
        metadata = {"weights": weights is not None, "width": WIDTH, "heads": HEADS, **metadata}
        ours = run("layers_of_torch", tensors, metadata)
        self.expect_close("y", ours["y"], y, dtype)
        if weights is not None:
            self.expect_close("weights", ours["weights"], weights, dtype)
        for name, x in inputs.items():
            self.expect_close(f"d{name}", ours[f"d{name}"], x.grad, dtype)
        parameters = dict(module.named_parameters())
        self.assertEqual({k[9:] for k in ours if k.startswith("gradient.")}, set(parameters))
        for name, p in parameters.items():
            self.expect_close(f"gradient.{name}", ours[f"gradient.{name}"], p.grad, dtype)
        return ours

    def load_back(self, module, call, inputs, metadata, masks, dtype):
        """Parameters that our program has made, in PyTorch's module."""
        metadata = {"seed": 7, "width": WIDTH, "heads": HEADS, **metadata}
        ours = run("layers_of_torch", {**inputs, **masks}, metadata)
        module.load_state_dict({k[6:]: t for k, t in ours.items() if k.startswith("state.")}, strict=True)
        result = call(module)
        self.expect_close("y of loaded state", ours["y"], result[0] if isinstance(result, tuple) else result, dtype)

    def both_ways(self, module, call, inputs, metadata, masks, dtype):
        self.compare(module, call, inputs, metadata, masks, dtype)
        self.load_back(module, call, inputs, metadata, masks, dtype)


def ignored_keys(rows):
    """{BATCH, rows}, true: padding; every sequence keeps a key."""
    mask = torch.zeros(BATCH, rows, dtype=torch.bool)
    mask[0, rows - 3:] = True
    mask[1, rows - 1:] = True
    return mask


def ignored_pairs(rows, keys):
    """{rows, keys}, true: hidden; every row keeps the first key."""
    mask = torch.rand(rows, keys) < 0.4
    mask[:, 0] = False
    return mask


class SlowAttention(Compared, unittest.TestCase):
    """torch.nn.MultiheadAttention."""

    def attention(self, dtype, *, cross=False, bias=True, kdim=None, vdim=None, formula="softmax", masks=None, **call):
        module = randomised(nn.MultiheadAttention(WIDTH, HEADS, bias=bias, kdim=kdim, vdim=vdim, batch_first=True), dtype)
        inputs = {"x": numbers(BATCH, ROWS, WIDTH, dtype=dtype)}
        if cross:
            inputs["key"] = numbers(BATCH, KEYS, kdim or WIDTH, dtype=dtype)
            inputs["value"] = numbers(BATCH, KEYS, vdim or WIDTH, dtype=dtype)
        metadata = {"kind": "attention", "bias": bias, "formula": formula}
        if cross:
            metadata |= {"key_width": kdim or WIDTH, "value_width": vdim or WIDTH}

        def run_theirs(m):
            x = inputs["x"]
            return m(x, inputs.get("key", x), inputs.get("value", x), average_attn_weights=False, **call)

        self.both_ways(module, run_theirs, inputs, metadata, masks or {}, dtype)
        return module, inputs, run_theirs

    def each_type(self, test):
        for dtype in TOLERANCE:
            with self.subTest(dtype=dtype):
                torch.manual_seed(3)
                test(dtype)

    def test_of_one_tensor(self):
        self.each_type(lambda dtype: self.attention(dtype))

    def test_without_biases(self):
        self.each_type(lambda dtype: self.attention(dtype, bias=False))

    def test_of_three_tensors(self):
        self.each_type(lambda dtype: self.attention(dtype, cross=True))

    def test_keys_and_values_of_other_widths(self):
        self.each_type(lambda dtype: self.attention(dtype, cross=True, kdim=10, vdim=13))
        self.each_type(lambda dtype: self.attention(dtype, cross=True, kdim=10, vdim=13, bias=False))

    def test_key_padding_mask(self):
        mask = ignored_keys(ROWS)
        self.each_type(lambda dtype: self.attention(dtype, formula="ignore_mask | softmax", key_padding_mask=mask,
                                                    masks={"self.ignore_mask": mask[:, None, None, :]}))

    def test_bool_mask(self):
        mask = ignored_pairs(ROWS, KEYS)
        self.each_type(lambda dtype: self.attention(dtype, cross=True, formula="ignore_mask | softmax", attn_mask=mask,
                                                    masks={"self.ignore_mask": mask[None, None]}))

    def test_bool_mask_of_each_head_and_key_padding(self):
        heads = torch.stack([ignored_pairs(ROWS, ROWS) for _ in range(BATCH * HEADS)])
        keys = ignored_keys(ROWS)
        both = heads.view(BATCH, HEADS, ROWS, ROWS) | keys[:, None, None, :]
        self.each_type(lambda dtype: self.attention(dtype, formula="ignore_mask | softmax", attn_mask=heads,
                                                    key_padding_mask=keys, masks={"self.ignore_mask": both}))

    def test_float_mask(self):
        def test(dtype):
            mask = torch.randn(ROWS, ROWS, dtype=getattr(torch, dtype))
            mask[ignored_pairs(ROWS, ROWS)] = -torch.inf
            self.attention(dtype, formula="bias | softmax", attn_mask=mask, masks={"self.bias": mask[None, None]})
        self.each_type(test)

    def test_causal(self):
        mask = nn.Transformer.generate_square_subsequent_mask(ROWS, dtype=torch.bool)
        self.each_type(lambda dtype: self.attention(dtype, formula="causal | softmax", attn_mask=mask, is_causal=True))

    def test_averaged_weights_are_the_mean_of_the_heads(self):
        def test(dtype):
            module, inputs, _ = self.attention(dtype)
            x = inputs["x"]
            ours = run("layers_of_torch", {"x": x, **{f"state.{k}": t for k, t in module.state_dict().items()}},
                       {"kind": "attention", "bias": True, "formula": "softmax", "width": WIDTH, "heads": HEADS, "weights": True})
            self.expect_close("mean of weights", ours["weights"].mean(1), module(x, x, x)[1], dtype)
        self.each_type(test)


class SlowLayers(Compared, unittest.TestCase):
    """torch.nn.TransformerEncoderLayer, TransformerDecoderLayer and stacks of two."""

    def each_kind(self, test):
        for dtype in TOLERANCE:
            for norm_first in (False, True):
                for activation in ("relu", "gelu"):
                    for bias in (True, False):
                        with self.subTest(dtype=dtype, norm_first=norm_first, activation=activation, bias=bias):
                            torch.manual_seed(5)
                            test(dtype, {"norm_first": norm_first, "activation": activation, "bias": bias})

    def sizes(self, options):
        return {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0, "layer_norm_eps": 1e-3,
                "batch_first": True, **options}

    def encoder(self, dtype, options, *, layers=0, formula="softmax", masks=None, **call):
        module = nn.TransformerEncoderLayer(**self.sizes(options))
        metadata = {"kind": "encoder", "hidden": HIDDEN, "epsilon": 1e-3, "formula": formula, "layers": layers, **options}
        if layers:
            norm = nn.LayerNorm(WIDTH, bias=options["bias"])
            module = nn.TransformerEncoder(module, layers, norm=norm, enable_nested_tensor=False)
            metadata["last_norm"] = True
        inputs = {"x": numbers(BATCH, ROWS, WIDTH, dtype=dtype)}
        self.both_ways(randomised(module, dtype), lambda m: m(inputs["x"], **call), inputs, metadata, masks or {}, dtype)

    def decoder(self, dtype, options, *, layers=0):
        module = nn.TransformerDecoderLayer(**self.sizes(options))
        metadata = {"kind": "decoder", "hidden": HIDDEN, "epsilon": 1e-3, "formula": "causal | softmax",
                    "cross_formula": "ignore_mask | softmax", "layers": layers, **options}
        if layers:
            module = nn.TransformerDecoder(module, layers, norm=nn.LayerNorm(WIDTH, bias=options["bias"]))
            metadata["last_norm"] = True
        inputs = {"x": numbers(BATCH, ROWS, WIDTH, dtype=dtype), "memory": numbers(BATCH, KEYS, WIDTH, dtype=dtype)}
        causal, padding = nn.Transformer.generate_square_subsequent_mask(ROWS, dtype=torch.bool), ignored_keys(KEYS)
        self.both_ways(
            randomised(module, dtype),
            lambda m: m(inputs["x"], inputs["memory"], tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding),
            inputs, metadata, {"cross.ignore_mask": padding[:, None, None, :]}, dtype)

    def test_encoder_layer(self):
        self.each_kind(self.encoder)

    def test_encoder_layer_with_padding(self):
        mask = ignored_keys(ROWS)
        self.each_kind(lambda dtype, options: self.encoder(dtype, options, formula="ignore_mask | softmax",
                                                           src_key_padding_mask=mask,
                                                           masks={"self.ignore_mask": mask[:, None, None, :]}))

    def test_decoder_layer(self):
        self.each_kind(self.decoder)

    def test_stacks_of_two(self):
        self.each_kind(lambda dtype, options: self.encoder(dtype, options, layers=2))
        self.each_kind(lambda dtype, options: self.decoder(dtype, options, layers=2))


class SlowTraining(unittest.TestCase):
    def test_fifty_steps_have_pytorchs_losses(self):
        torch.set_num_threads(1)
        settings = training.SETTINGS
        model = training.Model(settings)
        data = training.batches(settings, 50)
        ours = run("train_as_torch", {**training.state_of(model), **data}, {**settings, "threads": 2})["losses"].tolist()
        theirs = training.train(model, settings, data)["losses"]
        self.assertEqual(len(ours), 50)
        self.assertLess(theirs[-1], theirs[0] - 0.5, "it learns")
        worst = max(range(50), key=lambda n: abs(ours[n] - theirs[n]))
        self.assertLess(abs(ours[worst] - theirs[worst]), 1e-4, f"step {worst}: {ours[worst]} and {theirs[worst]}")


if __name__ == "__main__":
    if not HAS_TORCH:
        print("skipped: no Python here has torch and safetensors; scripts/setup --all installs them")
        sys.exit(77)  # what ctest takes for "skipped"
    unittest.main()
