#include "nn/embedding.h"

#include "nn/test_support.h"

namespace qkv::nn::testing {
namespace {

View<const int32_t> view(const std::vector<int32_t>& ids) { return {ids.data(), {int64_t(ids.size())}}; }

TEST(Embedding, GathersRowsOfEveryType) {
  const std::vector<int32_t> ids = {4, 0, 4, 2};
  for (const DType type : kTypes)
    for (const DType to : kTypes)
      for (const int64_t dim : {1, 63, 1030}) {
        if ((type == DType::kFloat64) != (to == DType::kFloat64)) continue;
        const Tensor table = Tensor(type, {5, dim}, Placement::kGaps).normal(1);
        Tensor out(to, {4, dim}, Placement::kGaps);
        embedding_forward(table.view(), view(ids), out.view());
        Tensor rounded(to, {1});
        out.each([&](int64_t r, int64_t c, int64_t, int64_t) {
          rounded.set(table.get(ids[size_t(r)], c), 0);
          EXPECT_EQ(out.get(r, c), rounded.get(0)) << name(type) << name(to);
        });
      }
}

TEST(Embedding, GradientAddsRowsInOrderForAnyThreads) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t dim : {1, 65, 700}) {
        std::vector<int32_t> ids(600);
        for (size_t r = 0; r < ids.size(); ++r) ids[r] = r % 3 == 0 ? 7 : int32_t(r * 31 % 50);
        const Tensor dout = Tensor(type, {600, dim}, Placement::kGaps).normal(2);
        const Tensor got = same_for_any_threads([&](const Call& call) {
          Tensor dtable = Tensor(type, {50, dim}).fill(0.5);
          embedding_backward(view(ids), dout.view(), dtable.view(), {.padding = 3}, call);
          return dtable;
        });
        for (int64_t id = 0; id < 50; ++id)
          for (int64_t c = 0; c < dim; c += 1 + dim / 7) {
            double sum = 0.5;
            for (int64_t r = 0; r < 600; ++r) {
              if (ids[size_t(r)] != id || id == 3) continue;
              sum = type == DType::kFloat64 ? sum + dout.get(r, c) : float(sum) + float(dout.get(r, c));
            }
            Tensor rounded(type, {1});
            rounded.set(sum, 0);
            ASSERT_EQ(got.get(id, c), rounded.get(0)) << name(type) << id << " " << c << " " << set;
          }
      }
  });
}

TEST(Embedding, OverwritesWhereItIsTold) {
  const std::vector<int32_t> ids = {1, 1};
  const Tensor dout = Tensor(DType::kFloat32, {2, 3}).fill(2);
  Tensor dtable(DType::kFloat32, {3, 3}, Placement::kGaps);
  embedding_backward(view(ids), dout.view(), dtable.view(), {.into = Into::kWrite});
  dtable.each([&](int64_t r, int64_t c, int64_t, int64_t) { EXPECT_EQ(dtable.get(r, c), r == 1 ? 4 : 0); });
}

TEST(Embedding, NamesWhatIsWrong) {
  const std::vector<int32_t> ids = {1, 5};
  Tensor table(DType::kFloat32, {3, 2}), out(DType::kFloat32, {2, 2});
  EXPECT_EQ(message_of<OptionError>([&] { embedding_forward(table.view(), view(ids), out.view()); }),
            "embedding_forward: ids[1] is 5, expected 0 to 2, the rows of the table; correct it");
  EXPECT_EQ(message_of<OptionError>([&] { embedding_backward(view(ids), out.view(), table.view()); }),
            "embedding_backward: ids[1] is 5, expected 0 to 2, the rows of the table; correct it");
}

}  // namespace
}  // namespace qkv::nn::testing
