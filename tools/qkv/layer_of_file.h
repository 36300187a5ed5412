// A layer of a file.
#pragma once
#include "qkv/layer.h"
#include "qkv/problem_of_files.h"

namespace qkv::cli {

enum class WeightsFrom : uint8_t { kQueriesAndKeys, kFile };

/// Computes from q and k where they are there, unless `from` says that the file's weights are meant.
Layer layer_of(const Dump&, const AttentionOptions&, int number, WeightsFrom from, Progress&);

}  // namespace qkv::cli
