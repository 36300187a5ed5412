// The options that say which attention is meant, the same in every command.
#pragma once
#include <string>

#include "qkv/problem_of_files.h"

// NOLINTNEXTLINE(readability-identifier-naming)
namespace CLI {  // CLI11 is large: only files that add options include it
class App;
}  // namespace CLI

namespace qkv::cli {

/// --q, --k, --v, or --x with --wq, --wk, --wv. `options` has to live as long as the command, here and below.
void add_tensor_options(CLI::App& command, AttentionOptions& options);
void add_attention_options(CLI::App& command, AttentionOptions& options);
/// --dout, which goes with the flag that asks for gradients.
void add_loss_option(CLI::App& command, const std::string& flag, AttentionOptions& options);

}  // namespace qkv::cli
