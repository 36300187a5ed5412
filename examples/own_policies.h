// Attention of one's own: each policy is a struct with one formula. Nothing of the library is rebuilt, and the tiled kernels
// run them like their own. qkv/pass.h says what Row, Site and KeyRange hold; fields() lists the numbers for the text form;
// fault() refuses those that cannot be meant; with kReadsHead = false a mask is made once for all heads.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <tuple>

#include "qkv/attention.h"

/// A score modifier: what is far away counts less, score' = score - rate * |query - key|.
struct Decay {
  static constexpr std::string_view kName = "decay";
  float rate = 0;
  auto operator()(auto score, qkv::Site at) const { return score - rate * float(std::abs(at.query - at.key)); }
  auto fields() { return std::tie(rate); }
};

/// A pattern whose query sees one range of keys: a prompt that sees itself whole, then causal text.
struct Prompt {
  static constexpr std::string_view kName = "prompt";
  static constexpr bool kReadsHead = false;
  int length = 0;
  qkv::KeyRange keys(qkv::Row r) const { return {0, std::max(length, r.query + 1) - r.key_start}; }
  auto fields() { return std::tie(length); }
};

/// A pattern that decides pair by pair: every `step`-th key, counted from the query.
struct Strided {
  static constexpr std::string_view kName = "strided";
  static constexpr bool kReadsHead = false;
  int step = 1;
  bool sees(qkv::Site at) const { return (at.query - at.key) % step == 0; }
  const char* fault() const { return step < 1 ? "expected a step of 1 or more" : nullptr; }
  auto fields() { return std::tie(step); }
};

/// An observer: the share of all weight that goes farther than `distance`.
struct FarWeight {
  int distance = 0;
  double far = 0, all = 0;
  void see(double weight, qkv::Site at) {
    all += weight;
    if (std::abs(at.query - at.key) > distance) far += weight;
  }
  void join(const FarWeight& later) { far += later.far, all += later.all; }
};
