#include "io/npy.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "io/npy_header.h"
#include "io/test_files.h"
#include "qkv/error.h"
#include "qkv/io.h"

namespace qkv {
namespace {

using io::bytes_of;
using io::fixture;
using io::message_of;
using io::put_bytes;
using io::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T> void expect_two_by_three(const Array& a) {
  ASSERT_EQ(a.dtype(), kDType<T>);
  ASSERT_THAT(a.shape(), ElementsAre(2, 3));
  const View<const T> x = a.view().as<const T>();
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(static_cast<double>(x(i, j)), static_cast<double>(10 * i + j));
  }
}

Array parse(const std::string& bytes, uint64_t limit = uint64_t{1} << 40) {
  io::MemorySource source(std::as_bytes(std::span(bytes)));
  return io::parse_npy(source, "x.npy", limit);
}
std::string npy(const std::string& header, const std::string& data = {}) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + data;
}
std::string refusal(const std::string& bytes) {
  return message_of<FileError>([&] { parse(bytes); });
}

TEST(Npy, ReadsWhatNumPyWrites) {
  for (const char* version : {"float32_v1.npy", "float32_v2.npy", "float32_v3.npy"})
    expect_two_by_three<float>(read_npy(fixture(version)));
  expect_two_by_three<double>(read_npy(fixture("float64_fortran.npy")));
  expect_two_by_three<float16>(read_npy(fixture("float16.npy")));
  expect_two_by_three<float>(read_npy(fixture("float32_big_endian.npy")));
  expect_two_by_three<int64_t>(read_npy(fixture("int64_big_endian_fortran.npy")));
  expect_two_by_three<uint8_t>(read_npy(fixture("uint8.npy")));
  expect_two_by_three<int16_t>(read_npy(fixture("python2.npy")));
}

TEST(Npy, ReadsBooleansScalarsAndEmptyArrays) {
  const Array mask = read_npy(fixture("bool.npy"));
  EXPECT_EQ(mask.dtype(), DType::kBool);
  EXPECT_TRUE(mask.view().as<const bool>()(0, 0));
  EXPECT_FALSE(mask.view().as<const bool>()(1, 1));

  const Array scalar = read_npy(fixture("scalar.npy"));
  EXPECT_TRUE(scalar.shape().empty());
  EXPECT_EQ(scalar.size(), 1);
  EXPECT_EQ(scalar.view().rank, 1);
  EXPECT_EQ(scalar.view().as<const float>()(0), 2.5F);

  const Array empty = read_npy(fixture("empty.npy"));
  EXPECT_THAT(empty.shape(), ElementsAre(0, 3));
  EXPECT_EQ(empty.view().size(), 0);
}

TEST(Npy, ReadsAnyRankAndRefusesOnlyTheViewAboveFour) {
  const Array a = read_npy(fixture("rank5.npy"));
  EXPECT_THAT(a.shape(), ElementsAre(1, 1, 2, 1, 1));
  EXPECT_EQ(static_cast<const int32_t*>(a.data())[1], 1);
  EXPECT_THAT(message_of<ShapeError>([&] { a.view(); }), HasSubstr("has 5: {1, 1, 2, 1, 1}"));
}

TEST(Npy, MemoryIsAlignedForVectors) {
  for (const char* name : {"float32_v1.npy", "uint8.npy", "empty.npy"}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read_npy(fixture(name)).data()) % 64, 0U) << name;
  }
}

TEST(Npy, NamesWhyATypeIsRefusedAndHowToSaveInstead) {
  const auto why = [](const char* name) { return message_of<FileError>([&] { read_npy(fixture(name)); }); };
  EXPECT_THAT(why("object.npy"), AllOf(HasSubstr("type '|O'"), HasSubstr("allow_pickle"), HasSubstr("np.savez")));
  EXPECT_THAT(why("record.npy"), HasSubstr("records with named fields"));
  EXPECT_THAT(why("text.npy"), HasSubstr("type '<U3': text"));
  EXPECT_THAT(why("complex.npy"), HasSubstr("type '<c8': complex"));
  EXPECT_THAT(refusal(npy("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }", "ab")), HasSubstr("bfloat16"));
}

TEST(Npy, ABooleanIsZeroOrOneWhateverTheByteWas) {
  const Array a = parse(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", std::string("\x00\x02\xFF", 3)));
  const auto* bytes = static_cast<const uint8_t*>(a.data());
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[1], 1);
  EXPECT_EQ(bytes[2], 1);
}

TEST(Npy, RefusesAHeaderThatClaimsMoreThanTheFile) {
  EXPECT_THAT(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000,)}", "1234")),
              HasSubstr("ends before the 400000000000 bytes"));
  EXPECT_THAT(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "12345")),
              HasSubstr("goes on after the 4 bytes"));
  EXPECT_THAT(refusal(std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\x7F{", 13)),
              HasSubstr("claims a header of 2147483647 bytes"));
}

TEST(Npy, RefusesShapesWhoseProductOverflows) {
  for (const char* shape :
       {"(4294967296, 4294967296)", "(9223372036854775807, 2)", "(0, 9223372036854775807, 9223372036854775807)",
        "(18446744073709551616,)", "(4611686018427387904,)"}) {
    EXPECT_NE(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + std::string(shape) + "}")), "")
        << shape;
  }
}

TEST(Npy, HoldsToTheLimitOfTheCaller) {
  const std::string bytes = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", std::string(16, 'x'));
  EXPECT_EQ(parse(bytes, 16).size(), 4);
  EXPECT_THAT(message_of<FileError>([&] { parse(bytes, 15); }), HasSubstr("more than the 15 bytes that are allowed"));
}

TEST(Npy, AClaimFromAPipeCostsNoMemoryBeforeDataArrive) {
  ScratchFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const auto& [shape, why] : {std::pair("(5000000,)", "ends before"), {"(999999999999,)", "no memory for the"}}) {
    const std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}}}", shape);
    std::thread writer([&] { put_bytes(path, npy(header, "1234")); });
    EXPECT_THAT(message_of<FileError>([&] { read_npy(path); }), HasSubstr(why));
    writer.join();
  }
}

TEST(Npy, ReadsFromAPipeOfUnknownLength) {
  ScratchFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string data(size_t{3} << 20, 'x');
  data.back() = 'y';
  std::thread writer(
      [&] { put_bytes(path, npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1048576)}", data)); });
  const Array a = read_npy(path);
  writer.join();
  EXPECT_EQ(std::memcmp(a.data(), data.data(), data.size()), 0);
}

TEST(NpyHeader, AcceptsWhatNumPyMeansInEveryOrder) {
  const io::NpyHeader h = io::parse_npy_header("{ \"shape\":(2 , 3,),\n'fortran_order':True,'descr':'>f8' }  \n", "x");
  EXPECT_THAT(h.shape, ElementsAre(2, 3));
  EXPECT_TRUE(h.fortran);
  EXPECT_TRUE(h.swapped);
  EXPECT_EQ(h.dtype, DType::kFloat64);
}

TEST(NpyHeader, RefusesWhatIsNotExactlyTheThreeKeys) {
  const std::string type = "'descr': '<f4'", order = "'fortran_order': False", shape = "'shape': (2,)";
  const std::string wrong[] = {
      "",
      "{}",
      "{" + type + "," + order + "}",
      "{" + type + "," + order + "," + shape + "," + shape + "}",
      "{" + type + "," + order + "," + shape + ", 'more': 1}",
      "{" + type + "," + order + "," + shape + "} x",
      "{" + type + "," + order + "," + shape,
      "{" + type + " " + order + "," + shape + "}",
      "{'descr': '<f4, " + order + "," + shape + "}",
      "{'descr': '<f3'," + order + "," + shape + "}",
      "{'descr': ''," + order + "," + shape + "}",
      "{'descr': '|f4'," + order + "," + shape + "}",
      "{'descr': 'f4'," + order + "," + shape + "}",
      "{" + type + ", 'fortran_order': 1," + shape + "}",
      "{" + type + "," + order + ", 'shape': (2)}",
      "{" + type + "," + order + ", 'shape': 2}",
      "{" + type + "," + order + ", 'shape': (-2,)}",
      "{" + type + "," + order + ", 'shape': (2 3)}",
      "{" + type + "," + order + ", 'shape': (2.5,)}",
      "{" + type + "," + order + ", 'shape': (,)}",
  };
  for (const std::string& header : wrong) EXPECT_THROW(io::parse_npy_header(header, "x"), FileError) << header;
}

TEST(Npy, AFileCutAnywhereIsRefused) {
  for (const char* name : {"float32_v1.npy", "float64_fortran.npy", "float32_v2.npy", "bool.npy"}) {
    const std::string whole = bytes_of(fixture(name));
    for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(refusal(whole.substr(0, n)), "") << name << " cut to " << n;
  }
}

TEST(Npy, AFlippedByteIsRefusedOrGivesAnArray) {
  const std::string whole = bytes_of(fixture("float64_fortran.npy"));
  int refused = 0;
  for (size_t n = 0; n < whole.size(); ++n) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string bytes = whole;
      bytes[n] = static_cast<char>(bytes[n] ^ flip);
      try {
        const Array a = parse(bytes);
        EXPECT_EQ(a.bytes(), static_cast<size_t>(a.size()) * size_of(a.dtype()));
      } catch (const FileError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Npy, NamesTheFileAndTheReasonWhereItCannotBeOpened) {
  EXPECT_THAT(message_of<FileError>([] { read_npy("/nowhere/x.npy"); }), HasSubstr("/nowhere/x.npy: No such file"));
  EXPECT_THAT(message_of<FileError>([] { read_npy("/tmp"); }), HasSubstr("is a folder"));
  EXPECT_THAT(message_of<FileError>([] { read_npy(fixture("make_fixtures.py")); }), HasSubstr("is not an .npy file"));
}

template <class T> class NpyRoundTrip : public ::testing::Test {};
using Types = ::testing::Types<float, double, float16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
                               uint32_t, uint64_t>;
TYPED_TEST_SUITE(NpyRoundTrip, Types);

TYPED_TEST(NpyRoundTrip, KeepsEveryElementOfEveryRankAndStride) {
  ScratchFolder folder;
  std::vector<char> storage(2 * 3 * 4 * 5 * sizeof(TypeParam));
  auto* x = reinterpret_cast<TypeParam*>(storage.data());
  for (int n = 0; n < 120; ++n) x[n] = static_cast<TypeParam>(static_cast<float>(n % 100));
  const View<const TypeParam> views[] = {
      {x, {120}},
      {x, {0}},
      {x, {4, 30}},
      {x, {3, 0, 2}},
      {x, {2, 3, 4, 5}},
      {x + 119, {5, 4, 3, 2}, {-1, -5, -20, -60}},
      {x, {2, 3, 4}, {0, 40, 10}},
  };
  for (const auto& v : views) {
    const std::string path = folder / "x.npy";
    write_npy(path, v);
    const Array back = read_npy(path);
    ASSERT_EQ(back.dtype(), kDType<TypeParam>);
    const auto w = back.view().template as<const TypeParam>();
    ASSERT_EQ(shape_text(w), shape_text(v));
    for (int64_t a = 0; a < v.shape[0]; ++a)
      for (int64_t b = 0; b < v.shape[1]; ++b)
        for (int64_t c = 0; c < v.shape[2]; ++c)
          for (int64_t d = 0; d < v.shape[3]; ++d)
            ASSERT_EQ(static_cast<float>(w(a, b, c, d)), static_cast<float>(v(a, b, c, d)));
  }
}

TEST(Npy, Bfloat16IsWrittenAsFloat32) {
  ScratchFolder folder;
  const bfloat16 x[] = {bfloat16(1.5F), bfloat16(-3.0F)};
  write_npy(folder / "x.npy", View<const bfloat16>(x, {2}));
  const Array back = read_npy(folder / "x.npy");
  ASSERT_EQ(back.dtype(), DType::kFloat32);
  EXPECT_EQ(back.view().as<const float>()(1), -3.0F);
}

TEST(Npy, WritesTheBytesThatNumPyWrites) {
  ScratchFolder folder;
  const float x[] = {0, 1, 2, 10, 11, 12};
  write_npy(folder / "x.npy", View<const float>(x, {2, 3}));
  EXPECT_EQ(bytes_of(folder / "x.npy"), bytes_of(fixture("float32_v1.npy")));
}

TEST(Npy, AFailedWriteLeavesWhatWasThereAndNothingElse) {
  ScratchFolder folder;
  const std::string path = folder / "x.npy";
  put_bytes(path, "before");
  const std::vector<float> large(1 << 16);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};  // a full disk, as far as write(2) can tell
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string why = message_of<FileError>([&] { write_npy(path, View<const float>(large.data(), {1 << 16})); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(why, AllOf(HasSubstr("write_npy: "), HasSubstr("x.npy cannot be written: File too large")));
  EXPECT_EQ(bytes_of(path), "before");
  EXPECT_THAT(folder.files(), ElementsAre("x.npy"));
}

TEST(Npy, WritesThroughALinkAndKeepsThePermissions) {
  ScratchFolder folder;
  put_bytes(folder / "real.npy", "before");
  ASSERT_EQ(::chmod((folder / "real.npy").c_str(), 0640), 0);
  std::filesystem::create_symlink(folder / "real.npy", folder / "link.npy");
  const float x = 1;
  write_npy(folder / "link.npy", View<const float>(&x, {1}));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.npy"));
  EXPECT_EQ(read_npy(folder / "real.npy").size(), 1);
  struct stat facts {};
  ASSERT_EQ(::stat((folder / "real.npy").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0640U);
}

TEST(Npy, WritesIntoADeviceInsteadOfReplacingIt) {
  const float x = 1;
  write_npy("/dev/null", View<const float>(&x, {1}));
  struct stat facts {};
  ASSERT_EQ(::stat("/dev/null", &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode));
  EXPECT_THAT(message_of<FileError>([&] { write_npy("/dev/full", View<const float>(&x, {1})); }),
              HasSubstr("No space left"));
}

TEST(Npy, RefusesATensorThatIsAbsent) {
  const ScratchFolder folder;
  EXPECT_THROW(write_npy(folder / "never.npy", View<const void>()), ArgumentError);
}

TEST(Array, StartsWithZerosAndRefusesNegativeSizes) {
  const Array a(DType::kFloat32, {2, 3});
  EXPECT_EQ(a.view().as<const float>()(1, 2), 0.0F);
  EXPECT_THROW(Array(DType::kFloat32, {2, -3}), ShapeError);
  EXPECT_THROW(Array(DType::kFloat64, {INT64_MAX, 2}), ShapeError);
}

}  // namespace
}  // namespace qkv
