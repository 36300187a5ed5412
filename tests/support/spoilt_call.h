// A call that is right, to be spoilt; and what a refusal has to be.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/compare.h"

namespace qkv::testing {

/// A call that is right, to be spoilt: tensors of two entries, four query heads on two key heads, 5 queries, 7 keys.
struct Call4 {
  Case shape{.batch = 2, .key_heads = 2, .group = 2, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 3};
  Attention attention;
  Example e{shape};
  Inputs in = e.inputs();
  Tensor out = e.out(), lse = e.lse(), extra;
  Outputs to{.out = out.view(), .lse = lse.view()};

  void make(const Case& c) {
    shape = c;
    e = Example(c);
    attention = e.attention;
    in = e.inputs();
    out = e.out(), lse = e.lse();
    to = {.out = out.view(), .lse = lse.view()};
  }
  View<const void> add(Tensor t) {
    extra = std::move(t);
    return extra.view();
  }
};

template <class E>
void expect_error(const char* what, const std::vector<std::string>& parts, const std::function<void(Call4&)>& spoil) {
  SCOPED_TRACE(what);
  Call4 c;
  spoil(c);
  const Tensor out = c.out, lse = c.lse;
  try {
    forward(c.attention, c.in, c.to);
    ADD_FAILURE() << "no error";
  } catch (const E& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("forward: ", 0), 0u) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type: " << error.what();
  }
  EXPECT_TRUE(same_bits(out, c.out)) << "out was written";
  EXPECT_TRUE(same_bits(lse, c.lse)) << "lse was written";
}

inline Tensor of(DType type, std::vector<int64_t> shape) { return Tensor(type, std::move(shape)).fill(0); }

template <class F> void expect_option_error(const std::vector<std::string>& parts, F f) {
  try {
    f();
    ADD_FAILURE() << "no error";
  } catch (const OptionError& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no '" << part << "' in: " << error.what();
  }
}

}  // namespace qkv::testing
