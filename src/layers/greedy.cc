#include <algorithm>

#include "core/format.h"
#include "qkv/sampling.h"
#include "qkv/session.h"

namespace qkv::nn {

std::vector<std::vector<int32_t>> EncoderDecoder::greedy(const Source& source, const DecodeOptions& o) {
  const int64_t context = options_.decoder.context, longest = o.longest == 0 ? context : o.longest;
  if (longest < 0 || longest > context)
    option_error("EncoderDecoder::greedy: longest is {}, expected 1 to {}, the context", o.longest, context);
  Session session(*this, source, {.storage = o.storage, .call = o.call});
  const auto entries = size_t(source.ids.shape[0]);
  const Sampler likeliest({.temperature = 0});
  std::vector<std::vector<int32_t>> written(entries);
  std::vector<int32_t> tokens(entries, o.begin);
  std::vector<int32_t> is_open(entries, 1);  // an entry that has ended reads nothing more
  for (int64_t step = 0; step < longest && std::ranges::count(is_open, 1) > 0; ++step) {
    const auto logits = session.read({tokens.data(), {int64_t(entries), 1}}, {is_open.data(), {int64_t(entries)}});
    likeliest(logits, {.step = step}, {tokens.data(), {int64_t(entries)}}, o.call);
    for (size_t b = 0; b < entries; ++b) {
      if (tokens[b] == o.end) is_open[b] = 0;
      if (is_open[b] == 1) written[b].push_back(tokens[b]);
    }
  }
  return written;
}

}  // namespace qkv::nn
