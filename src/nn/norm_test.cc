#include "nn/norm.h"

#include "nn/test_support.h"

namespace qkv::nn::testing {
namespace {

struct Norm {
  Tensor x, gain, bias, y, mean, rstd;

  Norm(DType type, int64_t rows, int64_t dim, Placement placement = Placement::kContiguous, double offset = 0)
      : x(type, {rows, dim}, placement),
        gain(type, {dim}),
        bias(type, {dim}),
        y(type, {rows, dim}, placement),
        mean(arithmetic(type), {rows}),
        rstd(arithmetic(type), {rows}) {
    std::mt19937_64 bits(uint64_t(rows * 1000 + dim));
    std::normal_distribution<double> normal;
    x.fill([&](int64_t, int64_t, int64_t, int64_t) { return offset + normal(bits); });
    gain.fill([&](int64_t, int64_t, int64_t, int64_t) { return 1 + normal(bits) / 4; });
    bias.normal(3);
  }
  void layer(const Call& call = {}) {
    layer_norm_forward({x.view(), gain.view(), bias.view()}, {y.view(), mean.view(), rstd.view()}, 1e-5, call);
  }
  void rms(const Call& call = {}) {
    rms_norm_forward({x.view(), gain.view()}, {y.view(), {}, rstd.view()}, 1e-6, call);
  }
  /// The normalised row in long double, without gain and bias.
  std::vector<long double> normalised(int64_t r, bool is_rms) const {
    const int64_t dim = x.layout().shape[1];
    long double at = 0, squares = 0;
    for (int64_t c = 0; c < dim && !is_rms; ++c) at += x.get(r, c);
    at /= dim;
    for (int64_t c = 0; c < dim; ++c) squares += (x.get(r, c) - at) * (x.get(r, c) - at);
    std::vector<long double> n(static_cast<size_t>(dim));
    for (int64_t c = 0; c < dim; ++c)
      n[size_t(c)] = (x.get(r, c) - at) / std::sqrt(squares / dim + (is_rms ? 1e-6L : 1e-5L));
    return n;
  }
  void expect_formula(bool is_rms, const std::string& trace) const {
    const double unit = 1.01 * rounding(y.type()) + 10 * rounding(arithmetic(y.type()));
    for (int64_t r = 0; r < x.layout().shape[0]; ++r) {
      const auto n = normalised(r, is_rms);
      for (size_t c = 0; c < n.size(); ++c) {
        const auto shift = is_rms ? 0 : bias.get(int64_t(c));
        const auto scaled = double(n[c] * gain.get(int64_t(c)));
        ASSERT_NEAR(y.get(r, int64_t(c)), scaled + shift, unit * (std::abs(scaled) + std::abs(scaled + shift) + 0.1))
            << trace << " row " << r << " column " << c;
      }
    }
  }
};

TEST(Norm, IsTheFormulaForEveryTypeAndOddSize) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t dim : kOddSizes)
        for (const Placement placement : {Placement::kContiguous, Placement::kGaps}) {
          Norm n(type, 7, dim, placement);
          n.layer();
          n.expect_formula(false, std::string(name(type)) + " layer " + std::to_string(dim) + " " + set);
          n.rms();
          n.expect_formula(true, std::string(name(type)) + " rms " + std::to_string(dim) + " " + set);
        }
  });
}

TEST(Norm, HasNoCancellationWhereTheMeanIsFarAboveTheDeviation) {
  each_instruction_set([](const std::string& set) {
    for (const double offset : {1e3, -3e4, 1e6}) {
      Norm n(DType::kFloat32, 5, 129, Placement::kContiguous, offset);
      n.layer();
      n.expect_formula(false, std::to_string(offset) + " " + set);
    }
    Norm constant(DType::kFloat32, 4, 65);
    constant.x.fill(0.1);
    constant.layer();
    constant.y.each([&](int64_t r, int64_t c, int64_t, int64_t) {
      EXPECT_EQ(constant.y.get(r, c), constant.bias.get(c)) << "a row without deviation";
    });
  });
}

/// dx, dgain, dbias of `n` one behind the other, {rows + 2, dim}.
Tensor gradients(const Norm& n, const Tensor& dy, bool is_rms, Into into = Into::kWrite, double before = 0,
                 const Call& call = {}) {
  const int64_t rows = n.x.layout().shape[0], dim = n.x.layout().shape[1];
  Tensor all(n.x.type(), {rows + 2, dim});
  all.fill(before);
  Tensor dgain(n.x.type(), {dim}), dbias(n.x.type(), {dim});
  dgain.fill(before), dbias.fill(before);
  NormGradients out{slice(all.view(), 0, 0, rows), dgain.view(), dbias.view(), into, into};
  NormBackwardInputs in{n.x.view(), n.gain.view(), n.mean.view(), n.rstd.view(), dy.view()};
  if (is_rms) in.mean = {}, out.dbias = {};
  if (is_rms) rms_norm_backward(in, out, call);
  else layer_norm_backward(in, out, call);
  for (int64_t c = 0; c < dim; ++c) all.set(dgain.get(c), rows, c), all.set(dbias.get(c), rows + 1, c);
  return all;
}

TEST(Norm, GradientsAreCentralDifferences) {
  each_instruction_set([](const std::string& set) {
    for (const bool is_rms : {false, true})
      for (const int64_t rows : {3, 37}) {
        Norm n(DType::kFloat64, rows, 9);
        const auto forward = [&] { is_rms ? n.rms() : n.layer(); };
        forward();
        const Tensor dy = Tensor(DType::kFloat64, {rows, 9}, Placement::kGaps).normal(11);
        const Tensor all = gradients(n, dy, is_rms);
        const auto loss = [&] { return forward(), dot(dy, n.y); };
        Tensor dx(DType::kFloat64, {rows, 9}), dgain(DType::kFloat64, {9}), dbias(DType::kFloat64, {9});
        dx.fill([&](int64_t r, int64_t c, int64_t, int64_t) { return all.get(r, c); });
        dgain.fill([&](int64_t c, int64_t, int64_t, int64_t) { return all.get(rows, c); });
        dbias.fill([&](int64_t c, int64_t, int64_t, int64_t) { return all.get(rows + 1, c); });
        EXPECT_TRUE(is_gradient(dx, n.x, loss)) << set << is_rms;
        EXPECT_TRUE(is_gradient(dgain, n.gain, loss)) << set << is_rms;
        EXPECT_TRUE(is_rms || is_gradient(dbias, n.bias, loss)) << set;
      }
  });
}

TEST(Norm, GradientsOfNarrowTypesAreThoseOfTheirNumbers) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t dim : {1, 65, 129})
        for (const bool is_rms : {false, true}) {
          Norm n(type, 70, dim), exact(DType::kFloat64, 70, dim);
          n.x.each([&](int64_t r, int64_t c, int64_t, int64_t) { exact.x.set(n.x.get(r, c), r, c); });
          for (int64_t c = 0; c < dim; ++c) exact.gain.set(n.gain.get(c), c);
          is_rms ? (n.rms(), exact.rms()) : (n.layer(), exact.layer());
          const Tensor dy = Tensor(type, {70, dim}).normal(5);
          Tensor exact_dy(DType::kFloat64, {70, dim});
          dy.each([&](int64_t r, int64_t c, int64_t, int64_t) { exact_dy.set(dy.get(r, c), r, c); });
          const Tensor got = gradients(n, dy, is_rms), expected = gradients(exact, exact_dy, is_rms);
          const double unit = 1.01 * rounding(type) + 16 * rounding(arithmetic(type));
          got.each([&](int64_t r, int64_t c, int64_t, int64_t) {
            if (r == 71 && is_rms) return;
            // dgain and dbias: 70 terms of about 1. With one column dx is a difference of equal numbers.
            const double size = std::abs(expected.get(r, c)) + (r < 70 ? 1 + (dim == 1 ? exact.rstd.get(r) : 0) : 9);
            ASSERT_NEAR(got.get(r, c), expected.get(r, c), unit * size)
                << name(type) << dim << is_rms << r << " " << set;
          });
        }
  });
}

TEST(Norm, AddsWhereItIsTold) {
  for (const DType type : {DType::kFloat32, DType::kFloat64}) {
    Norm n(type, 40, 33);
    n.layer();
    const Tensor dy = Tensor(type, {40, 33}).normal(2);
    const Tensor written = gradients(n, dy, false), added = gradients(n, dy, false, Into::kAdd, 0.5);
    written.each([&](int64_t r, int64_t c, int64_t, int64_t) {
      EXPECT_NEAR(added.get(r, c), written.get(r, c) + 0.5, 2e-6) << r << " " << c;
    });
  }
}

TEST(Norm, RowsHaveTheSameBitsAloneAndForAnyThreads) {
  each_instruction_set([](const std::string& set) {
    Norm n(DType::kFloat32, 331, 257);
    const Tensor all = same_for_any_threads([&](const Call& call) { return n.layer(call), n.y; });
    const Tensor dy = Tensor(DType::kFloat32, {331, 257}).normal(2);
    const Tensor grads =
        same_for_any_threads([&](const Call& call) { return gradients(n, dy, false, Into::kWrite, 0, call); });
    for (const int64_t r : {0, 5, 330}) {
      Tensor y(DType::kFloat32, {1, 257}), dx = y, mean(DType::kFloat32, {1}), rstd = mean;
      const auto x = slice(View<const void>(n.x.view()), 0, r, r + 1);
      layer_norm_forward({x, n.gain.view(), n.bias.view()}, {y.view(), mean.view(), rstd.view()});
      EXPECT_TRUE(same_bits(y.view(), slice(all.view(), 0, r, r + 1))) << set;
      layer_norm_backward({x, n.gain.view(), mean.view(), rstd.view(), slice(dy.view(), 0, r, r + 1)},
                          {.dx = dx.view()});
      EXPECT_TRUE(same_bits(dx.view(), slice(grads.view(), 0, r, r + 1))) << set;
    }
  });
}

TEST(Norm, WorksInPlaceAndWithoutParameters) {
  Norm n(DType::kFloat32, 9, 65);
  n.gain.fill(1), n.bias.fill(0);
  n.layer();
  Tensor plain(DType::kFloat32, {9, 65}), in_place = n.x;
  layer_norm_forward({n.x.view()}, {plain.view()});
  EXPECT_TRUE(same_bits(plain, n.y));
  layer_norm_forward({in_place.view()}, {in_place.view()});
  EXPECT_TRUE(same_bits(in_place, n.y));
  const Tensor dy = Tensor(DType::kFloat32, {9, 65}).normal(2);
  Tensor dx(DType::kFloat32, {9, 65}), over = dy;
  layer_norm_backward({n.x.view(), {}, n.mean.view(), n.rstd.view(), dy.view()}, {.dx = dx.view()});
  layer_norm_backward({n.x.view(), {}, n.mean.view(), n.rstd.view(), over.view()}, {.dx = over.view()});
  EXPECT_TRUE(same_bits(dx, over));
}

TEST(Norm, NamesWhatIsWrong) {
  Norm n(DType::kFloat32, 2, 3);
  Tensor short_gain(DType::kFloat32, {2}), wide(DType::kFloat64, {2});
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer_norm_forward({n.x.view(), short_gain.view()}, {n.y.view()});
            }),
            "layer_norm_forward: gain has shape {2}, expected {3}; allocate it so");
  EXPECT_EQ(message_of<OptionError>([&] { layer_norm_forward({n.x.view()}, {n.y.view()}, -1); }),
            "layer_norm_forward: epsilon is -1, expected 0 or a positive number; 1e-5 is usual");
  EXPECT_EQ(message_of<OptionError>([&] {
              rms_norm_forward({n.x.view(), {}, n.bias.view()}, {n.y.view()});
            }),
            "rms_norm_forward: bias is given, expected none; leave it out or call layer_norm_forward");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer_norm_backward({n.x.view(), {}, {}, n.rstd.view(), n.y.view()}, {});
            }),
            "layer_norm_backward: mean has shape {}, expected {2}; allocate it so");
  EXPECT_EQ(
      message_of<DtypeError>([&] {
        layer_norm_forward({n.x.view()}, {n.y.view(), wide.view()});
      }),
      "layer_norm_forward: mean has type float64, expected float32, float16 or bfloat16; float64 goes with float64 "
      "alone, convert one of them");
}

}  // namespace
}  // namespace qkv::nn::testing
