// Tensors of a real model, written by PyTorch: a sentence encoder (all-MiniLM-L6-v2) in eager attention.
#include <gtest/gtest.h>

#include <filesystem>

#include "qkv/io.h"
#include "tests/support/compare.h"

namespace qkv::testing {
namespace {

/// The file, or an empty path where neither the repository nor a folder beside it has it.
std::string find_file(const std::string& name) {
  for (const char* folder : {"/samples/", "/../shared/data/"}) {
    const std::string path = std::string(QKV_SOURCE_DIR) + folder + name;
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

Tensor copy(const Array& a) {
  Tensor t(a.dtype(), a.shape());
  Parameter from{"x"};
  from.view = a.view();
  return t.fill([&](int64_t i, int64_t j, int64_t k, int64_t l) { return from.get<double>(i, j, k, l); });
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  a.each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    largest = std::max(largest, std::abs(a.get(i, j, k, l) - b.get(i, j, k, l)));
  });
  return largest;
}

/// One layer against what PyTorch wrote, and both against float64.
void expect_layer_agrees(const Npz& file, const std::string& layer, const Tensor& keep) {
  const auto read = [&](const char* name) { return copy(file.read(layer + "." + name)); };
  Example e(Case{});
  e.query = read("q"), e.key = read("k"), e.value = read("v");
  const Tensor their_out = read("out");
  const bool has_weights = file.contains(layer + ".weights");
  const Extents& q = e.query.layout().shape;
  e.shape = {.batch = int(q[0]),
             .key_heads = int(q[1]),
             .queries = int(q[2]),
             .keys = int(q[2]),
             .head_dim = int(q[3]),
             .value_dim = int(q[3])};
  if (keep) {
    e.keep_mask = keep;
    e.attention.visible(KeepMask{});
  }
  Tensor out = e.out(), weights = e.matrix();
  forward(e.attention, e.inputs(), {.out = out.view(), .weights = weights.view()});
  EXPECT_LE(largest_difference(out, their_out), 2e-6);
  Tensor their_weights;
  if (has_weights) {
    their_weights = read("weights");
    EXPECT_LE(largest_difference(weights, their_weights), 1e-6);
  }

  double our_error = 0, their_error = 0, our_weight_error = 0, their_weight_error = 0;
  for (const auto& r : Expected(e).rows) {
    for (size_t d = 0; d < r.oracle.out.size(); ++d) {
      our_error = std::max(our_error, std::abs(out.get(r.b, r.h, r.i, int64_t(d)) - r.oracle.out[d]));
      their_error = std::max(their_error, std::abs(their_out.get(r.b, r.h, r.i, int64_t(d)) - r.oracle.out[d]));
    }
    for (size_t j = 0; j < r.oracle.weights.size() && has_weights; ++j) {
      our_weight_error =
          std::max(our_weight_error, std::abs(weights.get(r.b, r.h, r.i, int64_t(j)) - r.oracle.weights[j]));
      their_weight_error =
          std::max(their_weight_error, std::abs(their_weights.get(r.b, r.h, r.i, int64_t(j)) - r.oracle.weights[j]));
    }
  }
  EXPECT_LE(our_error, 2 * their_error);
  EXPECT_LE(our_weight_error, 2 * their_weight_error);
}

TEST(Golden, ASentenceAgreesWithPyTorch) {
  const std::string path = find_file("minilm-not-bad.npz");
  if (path.empty()) GTEST_SKIP() << "no minilm-not-bad.npz";
  const Npz file(path);
  for (int layer = 0; layer < 6; ++layer) {
    SCOPED_TRACE(layer);
    expect_layer_agrees(file, "layer" + std::to_string(layer), {});
  }
}

TEST(Golden, APaddedBatchAgreesWithPyTorch) {
  const std::string path = find_file("minilm-batch.npz");
  if (path.empty()) GTEST_SKIP() << "no minilm-batch.npz";
  const Npz file(path);
  const Tensor tokens = copy(file.read("keep_mask"));  // {3, 22}
  const Tensor keep = Tensor(DType::kBool, {3, 1, 1, 22}).fill([&](int64_t b, int64_t, int64_t, int64_t j) {
    return tokens.get(b, j);
  });
  for (int layer = 0; layer < 6; ++layer) {
    SCOPED_TRACE(layer);
    expect_layer_agrees(file, "layer" + std::to_string(layer), keep);
  }
}

TEST(Golden, APageOfTextLiesWithinTheBound) {
  const std::string path = find_file("minilm-shakespeare.npz");
  if (path.empty()) GTEST_SKIP() << "no minilm-shakespeare.npz";
  const Npz file(path);
  for (int layer = 0; layer < 6; ++layer) {
    Example e(Case{.key_heads = 12, .queries = 256, .keys = 256, .head_dim = 32, .value_dim = 32});
    e.query = copy(file.read("layer" + std::to_string(layer) + ".q"));
    e.key = copy(file.read("layer" + std::to_string(layer) + ".k"));
    EXPECT_TRUE(within_bound(e, run(e), 61)) << "layer " << layer;
  }
}

}  // namespace
}  // namespace qkv::testing
