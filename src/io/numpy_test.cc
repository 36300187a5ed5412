// Against the NumPy of this machine, where there is one.
#include <gtest/gtest.h>

#include <cstdlib>

#include "io/test_files.h"
#include "qkv/io.h"

namespace qkv {
namespace {

bool run_python(const std::string& code) {
  return std::system(("python3 -c \"" + code + "\" 2>/dev/null").c_str()) == 0;
}

class NumPy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!run_python("import numpy")) GTEST_SKIP() << "python3 with numpy is not installed";
  }
  io::ScratchFolder folder_;
};

TEST_F(NumPy, ArraysOfEveryTypeOrderAndRankArriveUnchanged) {
  ASSERT_TRUE(run_python(
      "import numpy as np, itertools\n"
      "for n, (t, order, s) in enumerate(itertools.product('f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ?'.split(), 'CF', "
      "[(7,), (2, 3), (2, 3, 4), (2, 3, 4, 5)])):\n"
      "  for e in '<>':\n"
      "    x = (np.arange(np.prod(s)) % 100).reshape(s).astype(e + t if t != '?' else t)\n"
      "    np.save('" +
      folder_ / "" + "%d%s.npy' % (n, e), np.asarray(x, order=order))\n"));
  int seen = 0;
  for (const std::string& file : folder_.files()) {
    const Array a = read_npy(folder_ / file);
    write_npy(folder_ / "back.npy", a.view());
    const Array back = read_npy(folder_ / "back.npy");
    ASSERT_EQ(a.shape(), back.shape());
    ++seen;
    if (a.dtype() != DType::kFloat32) continue;
    const auto x = back.view().as<const float>();  // C order: element n is n mod 100
    for (int64_t n = 0; n < x.size(); ++n) ASSERT_EQ(x.data[n], static_cast<float>(n % 100)) << file;
  }
  EXPECT_EQ(seen, 12 * 2 * 4 * 2);
}

TEST_F(NumPy, ReadsWhatWeWrite) {
  const float x[] = {0, 1, 2, 3, 4, 5};
  const bool mask[] = {true, false, true};
  for (Compression compression : {Compression::kStored, Compression::kDeflate}) {
    const NamedTensor tensors[] = {{"layer0.q", View<const float>(x, {3, 2}, {1, 3})},
                                   {"mask", View<const bool>(mask, {3})}};
    write_npz(folder_ / "x.npz", tensors, compression);
    EXPECT_TRUE(
        run_python("import numpy as np\n"
                   "z = np.load('" +
                   folder_ / "x.npz" +
                   "')\n"
                   "assert z['layer0.q'].tolist() == [[0, 3], [1, 4], [2, 5]] and z['layer0.q'].dtype == np.float32\n"
                   "assert z['mask'].tolist() == [True, False, True]\n"));
  }
}

}  // namespace
}  // namespace qkv
