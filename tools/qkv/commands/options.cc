#include "qkv/commands/options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace qkv::cli {

void add_tensor_options(CLI::App& command, AttentionOptions& o) {
  const char* group = "Tensors (FILE.npy, FILE.npz:NAME, FILE.safetensors:NAME, or typed: 1,2;2,1 are two rows)";
  struct Tensor {
    const char *name, *help;
  };
  constexpr Tensor kTensors[] = {
      {"q", "queries {B, H, L, D}, {H, L, D} or {L, D}"},
      {"k", "keys {B, Hkv, S, D}"},
      {"v", "values {B, Hkv, S, Dv}"},
      {"x", "tokens {B, L, E} or {L, E} instead of q, k and v: q = x wq, k = x wk, v = x wv"},
      {"wq", "weights {E, H D}, or {H D, E} as torch.nn.Linear keeps them"},
      {"wk", "weights of the keys"},
      {"wv", "weights of the values"},
      {"wo", "weights of the output {H Dv, E}"},
  };
  for (const Tensor& t : kTensors)
    command.add_option(fmt::format("--{}", t.name), o.tensors[t.name], t.help)->type_name("TENSOR")->group(group);
  command.add_option("--heads", o.tensors["heads"], "into how many heads x wq is cut")->type_name("N")->group(group);
  command
      .add_option("--weight-layout", o.weight_layout,
                  "{in, out}, or {out, in} as torch.nn.Linear; absent: by the sizes")
      ->check(CLI::IsMember({"in_out", "out_in"}))
      ->group(group);
}

void add_loss_option(CLI::App& command, const std::string& flag, AttentionOptions& o) {
  command
      .add_option(
          "--dout", o.tensors["dout"],
          "gradient of a loss by out, {B, H, L, Dv}, axes 1 or full: 1 is that of the sum of out; absent: in FILE")
      ->type_name("TENSOR")
      ->needs(command.get_option(flag));
}

void add_attention_options(CLI::App& command, AttentionOptions& o) {
  const char* group = "Attention";
  command
      .add_option("--attention", o.text, "the whole formula as text: \"causal window:255,0 | softcap:30 | softmax\"")
      ->group(group);
  command.add_flag("--causal", o.causal, "query p sees keys j <= p")->group(group);
  command.add_option("--align", o.align, "where query 0 stands if there are fewer queries than keys")
      ->check(CLI::IsMember({"top_left", "bottom_right"}))
      ->group(group);
  command.add_option("--window", o.window, "LEFT,RIGHT: query p sees p - LEFT <= j <= p + RIGHT; -1 is unlimited")
      ->group(group);
  command.add_option("--scale", o.scale, "factor of the scores; absent: 1 / sqrt(D)")->group(group);
  command.add_option("--softcap", o.softcap, "scores become X tanh(score / X)")->group(group);
  command.add_flag("--zero-key", o.zero_key, "one more key of zeros with a value of zeros")->group(group);
  command.add_flag("--tiled-heads", o.tiled_heads, "query head h reads key head h mod Hkv, not h / (Hq / Hkv)")
      ->group(group);
  struct Tensor {
    const char *option, *name, *help;
  };
  constexpr Tensor kTensors[] = {
      {"--keep-mask", "keep_mask", "bool, true may attend: {B, H, L, S}, {L, S}, or {B, S} for padding"},
      {"--ignore-mask", "ignore_mask", "bool, true is hidden; the same shapes"},
      {"--bias", "bias", "added to the scores: {B, H, L, S}, {H, L, S} or {L, S}"},
      {"--lengths", "key_lengths", "how many keys each batch entry has, as 13,22,4"},
      {"--documents", "document_ids", "document of each token, {B, L} or {L}: only the same one is seen"},
      {"--sinks", "sinks", "logits {H} that take weight and have no value"},
      {"--offset", "q_offset", "position of query 0: a number or one for each batch entry"},
      {"--key-start", "key_start", "position of key column 0, where a cache dropped its oldest keys"},
      {"--query-lengths", "cumulative_query_lengths",
       "packed batches: 0 and the ends of the sequences, of q {T, H, D}"},
      {"--packed-lengths", "cumulative_key_lengths", "the same of k and v"},
  };
  for (const Tensor& t : kTensors) {
    command.add_option(t.option, o.tensors[t.name], t.help)->type_name("TENSOR")->group(group);
  }
  command
      .add_option_function<std::string>(
          "--alibi", [&o](const std::string& slopes) { o.alibi = true, o.tensors["alibi_slopes"] = slopes; },
          "minus slope times distance; slopes {H}, or the usual ones")
      ->expected(0, 1)
      ->type_name("[TENSOR]")
      ->group(group);
}

}  // namespace qkv::cli
