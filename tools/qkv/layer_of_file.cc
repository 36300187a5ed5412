#include "qkv/layer_of_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

bool computes(const Dump& dump, const AttentionOptions& options, int number) {
  const bool brings_queries = std::any_of(options.tensors.begin(), options.tensors.end(), [](const auto& t) {
    return (t.first == "q" || t.first == "x") && !t.second.empty();
  });
  return brings_queries || dump.has(number, "q") || dump.has(number, "x") || !dump.has(number, "weights");
}

}  // namespace

Layer layer_of(const Dump& dump, const AttentionOptions& options, int number, WeightsFrom from, Progress& progress) {
  progress.begin(layer_name(number));
  if (from == WeightsFrom::kQueriesAndKeys && computes(dump, options, number))
    return {make_problem(options, dump, number), number, progress};
  auto found = dump.find(number, "weights");
  if (!found)
    throw OptionError(fmt::format("{} has no {}weights; leave --from-file out to compute them from q and k",
                                  dump.path(), layer_prefix(number)));
  Layer layer(std::move(*found), options.align == "bottom_right" ? Align::kBottomRight : Align::kUnset, number,
              progress);
  if (has_formula_options(options))
    throw OptionError(
        fmt::format("the weights in {} are finished: a formula acts on q and k; leave --causal and the like out "
                    "(--align is used, to say where the queries stand)",
                    dump.path()));
  return layer;
}

}  // namespace qkv::cli
