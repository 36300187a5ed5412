// What the options ask for, as text.
#include <algorithm>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/see.h"

namespace qkv::cli {

namespace {

/// About one head: a mask, a row, gradients, the head.
std::string text_of_head(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens,
                         const Screen& screen) {
  const Layer& layer = layers.front();
  if (o.mask) {
    if (o.plain) return fold(plain_mask(o, layer), screen);
    return o.json ? mask_json(o, layer) : mask_text(o, layer, tokens, screen);
  }
  if (o.row >= 0) {
    if (o.plain) return fold(plain_row(o, layer, tokens), screen);
    return o.json ? row_json(o, layer, tokens) : row_text(o, layer, tokens, screen);
  }
  if (o.gradient) {
    if (o.plain) return fold(gradient_plain(o, layer, tokens), screen);
    return o.json ? gradient_json(o, layer, tokens) : gradient_text(o, layer, tokens, screen);
  }
  if (o.json) return head_json(o, layer, tokens);
  if (o.plain) return fold(plain_head(o, layer, tokens), screen);
  return o.only_links ? heads_text(o, layers, tokens, screen) : head_text(o, layer, tokens, screen);
}

}  // namespace

void check(const SeeOptions& o, const Layer& layer) {
  const auto expect_below = [&](const std::string& option, int64_t value, int64_t count, const char* what) {
    if (count == 0) throw OptionError(fmt::format("there is nothing to see: the tensors have no {}", what));
    if (value >= 0) expect_in_range(option, value, count);
  };
  expect_below(o.option("batch"), o.batch, layer.batches(), "batch entry");
  expect_below(o.option("head"), o.head, layer.heads(), "head");
  if (o.gradient && layer.problem() == nullptr)
    throw OptionError("--gradient: the file has weights only; it needs q, k, v and dout");
  if (o.row >= 0) expect_below(o.row_option(), o.row, layer.queries(), "query");
}

bool shows_one_head(const SeeOptions& o, const std::vector<Layer>& layers) {
  if (o.head >= 0) return true;
  if (o.json && o.row < 0 && !o.gradient) return false;  // for machines the same form, however many heads there are
  return layers.size() == 1 && layers.front().heads() == 1;
}

std::string see_text(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& given, const Screen& screen) {
  const bool whole = o.json || (!o.between.empty() && !o.plain);  // --between compares names, and no sentence has one
  const Tokens tokens = whole ? given : cut_tokens(given, screen);
  if (!o.grid && (o.mask || shows_one_head(o, layers))) {
    SeeOptions chosen = o;
    chosen.head = std::max(0, o.head);
    return text_of_head(chosen, layers, tokens, screen);
  }
  if (o.gradient && !o.grid)
    throw OptionError("--gradient: say of which head, with --layer and --head; or all of them, with --grid or --png");
  if (!o.between.empty()) throw OptionError("--between: say which head, with --layer and --head");
  if (o.row >= 0) throw OptionError("--row: say of which head, with --layer and --head");
  if (o.json) return heads_json(o, layers, tokens);
  if (o.plain) return fold(plain_heads(o, layers, tokens), screen);
  return o.grid ? grid_text(o, layers, screen) : heads_text(o, layers, tokens, screen);
}

}  // namespace qkv::cli
