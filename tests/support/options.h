// Every option of an attention by name. Tests run over this list, so that a new option has one place to go.
#pragma once
#include <vector>

#include "tests/support/case.h"

namespace qkv::testing {

struct Option {
  const char* name;
  void (*set)(Case&);
};

inline const std::vector<Option>& options() {
  static const std::vector<Option> list{
      {"none", [](Case&) {}},
      {"scale", [](Case& c) { c.scale = -0.37; }},
      {"softcap", [](Case& c) { c.softcap = 0.7; }},
      {"soft-caps as a tensor", [](Case& c) { c.softcaps = true; }},
      {"scales as a tensor", [](Case& c) { c.scales = true, c.scale = 1; }},
      {"alibi", [](Case& c) { c.alibi = true; }},
      {"bias", [](Case& c) { c.bias = true; }},
      {"bias of minus infinity", [](Case& c) { c.bias = c.bias_hides = true; }},
      {"bias a head and key", [](Case& c) { c.bias = true, c.mask_axes = 2 + 8; }},
      {"keep mask", [](Case& c) { c.keep_mask = true; }},
      {"keep mask a query and key", [](Case& c) { c.keep_mask = true, c.mask_axes = 4 + 8; }},
      {"ignore mask a batch entry and key", [](Case& c) { c.ignore_mask = true, c.mask_axes = 1 + 8; }},
      {"causal", [](Case& c) { c.causal = true; }},
      {"causal bottom right", [](Case& c) { c.causal = true, c.align = Align::kBottomRight; }},
      {"causal at offsets", [](Case& c) { c.causal = c.query_offset = true; }},
      {"causal with dropped keys", [](Case& c) { c.causal = c.query_offset = c.key_start = true; }},
      {"window", [](Case& c) { c.window = true, c.left = 9, c.right = 4; }},
      {"window to the left", [](Case& c) { c.window = true, c.left = 20, c.align = Align::kBottomRight; }},
      {"causal window",
       [](Case& c) { c.causal = c.window = true, c.left = 7, c.right = 0, c.align = Align::kBottomRight; }},
      {"key lengths", [](Case& c) { c.key_lengths = true; }},
      {"key lengths and causal", [](Case& c) { c.key_lengths = c.causal = true, c.align = Align::kBottomRight; }},
      {"documents", [](Case& c) { c.documents = true; }},
      {"scattered documents, causal", [](Case& c) { c.documents = c.causal = true, c.seed += c.seed % 2; }},
      {"packed", [](Case& c) { c.packed = true; }},
      {"packed causal", [](Case& c) { c.packed = c.causal = true, c.align = Align::kBottomRight; }},
      {"packed with a mask", [](Case& c) { c.packed = c.keep_mask = true; }},
      {"sinks", [](Case& c) { c.sinks = true; }},
      {"zero key", [](Case& c) { c.zero_key = true; }},
      {"sinks and masks", [](Case& c) { c.sinks = c.zero_key = c.keep_mask = c.causal = true; }},
      {"dropout", [](Case& c) { c.dropout = 0.3; }},
      {"dropout from a tensor", [](Case& c) { c.dropout = 0.4, c.dropout_keep = true; }},
      {"dropout of half at offsets", [](Case& c) { c.dropout = 0.5, c.query_offset = c.key_start = c.causal = true; }},
      {"grouped heads", [](Case& c) { c.group = 3; }},
      {"tiled heads", [](Case& c) { c.group = 3, c.key_heads = 2, c.tiled = true, c.alibi = true; }},
      {"everything",
       [](Case& c) {
         c.causal = c.window = c.key_lengths = c.documents = c.keep_mask = c.ignore_mask = c.alibi = c.bias =
             c.bias_hides = true;
         c.sinks = c.zero_key = c.query_offset = true;
         c.left = 50, c.right = 3, c.softcap = 4, c.group = 2, c.placement = Placement::kHeadsInside;
       }},
  };
  return list;
}

inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

}  // namespace qkv::testing
