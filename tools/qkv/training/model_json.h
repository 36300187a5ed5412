// What a model is, as JSON: it lies in checkpoints.
#pragma once
#include <nlohmann/json.hpp>

#include "qkv/models.h"

namespace qkv::cli {

nlohmann::ordered_json json_of(const nn::LanguageModel::Options&);
/// Throws FileError where something is missing or cannot be meant.
nn::LanguageModel::Options language_model_options(const nlohmann::json&);

/// "learned", "rope", ...
const char* name_of(nn::Positions);
/// Throws OptionError, which lists the names.
nn::Positions positions_of(const std::string& name);

}  // namespace qkv::cli
