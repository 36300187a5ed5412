#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zip.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "io/bytes.h"
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

/// A zip with one entry of these bytes.
void put_zip(const std::string& path, const std::string& name, const std::string& bytes) {
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  ASSERT_NE(archive, nullptr);
  zip_source_t* source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
  ASSERT_GE(zip_file_add(archive, name.c_str(), source, 0), 0);
  ASSERT_EQ(zip_close(archive), 0);
}

TEST(Npz, ReadsWhatNumPyWrites) {
  const Npz stored(fixture("stored.npz"));
  EXPECT_THAT(stored.names(), ElementsAre("q", "keep_mask"));
  EXPECT_TRUE(stored.contains("q"));
  EXPECT_FALSE(stored.contains("q.npy"));
  EXPECT_EQ(stored.read("q").view().as<const float>()(1, 2), 12.0F);
  EXPECT_EQ(stored.read("keep_mask").dtype(), DType::kBool);

  const Array tiled = Npz(fixture("deflated.npz")).read("q");
  EXPECT_THAT(tiled.shape(), ElementsAre(16, 24));
  EXPECT_EQ(tiled.view().as<const float>()(15, 23), 12.0F);
}

TEST(Npz, SaysWhatThereIsWhereANameIsMissing) {
  EXPECT_THAT(message_of<FileError>([] { Npz(fixture("stored.npz")).read("k"); }),
              HasSubstr("has no array 'k'; it has: q, keep_mask"));
}

TEST(Npz, RefusesANameThatIsThereTwice) {
  EXPECT_THAT(message_of<FileError>([] { Npz file(fixture("twice.npz")); }), HasSubstr("has the name 'q' twice"));
}

TEST(Npz, RefusesWhatIsNoZip) {
  EXPECT_THAT(message_of<FileError>([] { Npz file(fixture("uint8.npy")); }), HasSubstr("cannot open"));
  EXPECT_THAT(message_of<FileError>([] { Npz file("/nowhere.npz"); }), HasSubstr("No such file"));
}

TEST(Npz, KeepsEveryTensorInBothCompressions) {
  ScratchFolder folder;
  const std::vector<double> x = {1, 2, 3, 4, 5, 6};
  const bool keep[] = {true, false};
  for (Compression compression : {Compression::kStored, Compression::kDeflate}) {
    const std::string path = folder / "x.npz";
    const NamedTensor tensors[] = {{"layer0.q", View<const double>(x.data(), {3, 2}, {1, 3})},
                                   {"keep_mask", View<const bool>(keep, {1, 2})},
                                   {"empty", View<const bool>(keep, {0, 2})}};
    write_npz(path, tensors, compression);
    const Npz back(path);
    EXPECT_THAT(back.names(), ElementsAre("layer0.q", "keep_mask", "empty"));
    EXPECT_EQ(back.read("layer0.q").view().as<const double>()(2, 1), 6.0);
    EXPECT_EQ(back.read("keep_mask").view().as<const bool>()(0, 1), false);
    EXPECT_EQ(back.read("empty").size(), 0);
  }
}

TEST(Npz, EqualTensorsGiveEqualBytes) {
  ScratchFolder folder;
  const float x[] = {1, 2, 3};
  for (const char* name : {"a.npz", "b.npz"})
    write_npz(folder / name, std::vector<NamedTensor>{{"x", View<const float>(x, {3})}}, Compression::kDeflate);
  EXPECT_EQ(bytes_of(folder / "a.npz"), bytes_of(folder / "b.npz"));
}

TEST(Npz, AFileCutAnywhereIsRefused) {
  ScratchFolder folder;
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    const std::string whole = bytes_of(fixture(name));
    for (size_t n = 0; n < whole.size(); ++n) {
      put_bytes(folder / "x.npz", whole.substr(0, n));
      EXPECT_THROW(
          {
            const Npz file(folder / "x.npz");
            for (const std::string& entry : file.names()) file.read(entry);
          },
          FileError)
          << name << " cut to " << n;
    }
  }
}

TEST(Npz, AFlippedByteIsRefusedOrGivesAnArray) {
  ScratchFolder folder;
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    const std::string whole = bytes_of(fixture(name));
    const Array original = Npz(fixture(name)).read("q");
    for (size_t n = 0; n < whole.size(); ++n) {
      for (int flip : {0x01, 0x80, 0xFF}) {
        std::string bytes = whole;
        bytes[n] = static_cast<char>(bytes[n] ^ flip);
        put_bytes(folder / "x.npz", bytes);
        try {
          const Npz file(folder / "x.npz");
          if (!file.contains("q")) continue;
          const Array a = file.read("q");  // whoever gets past the checksum has the original data
          ASSERT_EQ(a.bytes(), original.bytes()) << n;
          EXPECT_EQ(std::memcmp(a.data(), original.data(), a.bytes()), 0) << n;
        } catch (const FileError&) {}
      }
    }
  }
}

TEST(Npz, ABombIsRefusedBeforeItFillsTheMemory) {
  ScratchFolder folder;
  const std::string header = io::npy_preamble(DType::kFloat32, "(16000000000,)");
  put_zip(folder / "claim.npz", "q.npy", header);
  EXPECT_THAT(message_of<FileError>([&] { Npz(folder / "claim.npz").read("q"); }),
              HasSubstr("ends before the 64000000000 bytes"));

  put_zip(folder / "large.npz", "q.npy", io::npy_preamble(DType::kUInt8, "(8388608,)") + std::string(8388608, '\0'));
  EXPECT_LT(std::filesystem::file_size(folder / "large.npz"), 20000U);
  EXPECT_EQ(Npz(folder / "large.npz").read("q").size(), 8388608);
  EXPECT_THAT(message_of<FileError>([&] { Npz(folder / "large.npz", {.entry_bytes = 8388608}).read("q"); }),
              HasSubstr("more than the 8388608"));
}

TEST(Npz, AnEntryThatNoMemoryHoldsIsRefusedBeforeItsFirstByte) {
  ScratchFolder folder;
  const uint64_t too_many = std::max(io::available_memory(), uint64_t{1} << 30) & ~uint64_t{0xFFFFF};
  const std::string shape = fmt::format("({},)", too_many + (uint64_t{1} << 40));
  std::ofstream(folder / "claim.npy", std::ios::binary) << io::npy_preamble(DType::kUInt8, shape);
  std::filesystem::resize_file(folder / "claim.npy", too_many + (uint64_t{1} << 41));  // a hole: no disk is used
  EXPECT_THAT(message_of<FileError>([&] { read_npy(folder / "claim.npy"); }), HasSubstr("no memory for the"));
  EXPECT_THROW(Array(DType::kUInt8, {static_cast<int64_t>(too_many + (uint64_t{1} << 40))}), std::bad_alloc);
}

TEST(Npz, RefusesAnEntryWhoseClaimDeflateCannotReach) {
  ScratchFolder folder;
  put_zip(folder / "x.npz", "q.npy", io::npy_preamble(DType::kUInt8, "(4096,)") + std::string(4096, '\0'));
  std::string bytes = bytes_of(folder / "x.npz");
  const size_t central = bytes.rfind("PK\x01\x02");
  const std::string claim("\x00\x00\x00\x10", 4);  // 256 MiB
  bytes.replace(central + 24, 4, claim);
  bytes.replace(22, 4, claim);
  put_bytes(folder / "x.npz", bytes);
  EXPECT_THAT(message_of<FileError>([&] { Npz(folder / "x.npz").read("q"); }), HasSubstr("claims 268435456 bytes"));
}

TEST(Npz, AFailedWriteLeavesWhatWasThereAndNothingElse) {
  ScratchFolder folder;
  const std::string path = folder / "x.npz";
  put_bytes(path, "before");
  const std::vector<float> large(1 << 16);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string why = message_of<FileError>([&] {
    write_npz(path, std::vector<NamedTensor>{{"x", View<const float>(large.data(), {1 << 16})}});
  });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(why, HasSubstr("x.npz cannot be written"));
  EXPECT_EQ(bytes_of(path), "before");
  EXPECT_THAT(folder.files(), ElementsAre("x.npz"));
}

TEST(Npz, AStoppedWriteLeavesWhatWasThereAndNothingElse) {
  ScratchFolder folder;
  const std::string path = folder / "x.npz";
  put_bytes(path, "before");
  const std::vector<float> x(1 << 20, 0.7F);
  const NamedTensor tensors[] = {{"x", View<const float>(x.data(), {1 << 20})}};
  std::stop_source source;
  source.request_stop();
  for (const Compression compression : {Compression::kStored, Compression::kDeflate})
    EXPECT_THROW(write_npz(path, tensors, compression, source.get_token()), Cancelled);
  EXPECT_THROW(write_npy(path, tensors[0].view, source.get_token()), Cancelled);
  EXPECT_EQ(bytes_of(path), "before");
  EXPECT_THAT(folder.files(), ElementsAre("x.npz"));
}

TEST(Npz, RefusesNamesThatAreEmptyOrTwice) {
  ScratchFolder folder;
  const float x = 1;
  const View<const float> v(&x, {1});
  EXPECT_THROW(write_npz(folder / "x.npz", std::vector<NamedTensor>{{"", v}}), ArgumentError);
  EXPECT_THROW(write_npz(folder / "x.npz", std::vector<NamedTensor>{{"q", v}, {"q", v}}), ArgumentError);
  EXPECT_THROW(write_npz(folder / "x.npz", {}), ArgumentError);
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace qkv
