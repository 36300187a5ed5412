#include "qkv/png.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include "io/test_files.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

using io::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A picture whose bytes tell where they lie.
Image ramp(int width, int height) {
  Image image{width, height, {}};
  for (int n = 0; n < 3 * width * height; ++n) image.rgb.push_back(static_cast<uint8_t>(n * 7));
  return image;
}

Image read_back(const std::string& path) {
  png_image facts{};
  facts.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_file(&facts, path.c_str()), 0) << facts.message;
  facts.format = PNG_FORMAT_RGB;
  Image image{static_cast<int>(facts.width), static_cast<int>(facts.height), {}};
  image.rgb.resize(PNG_IMAGE_SIZE(facts));
  EXPECT_NE(png_image_finish_read(&facts, nullptr, image.rgb.data(), 0, nullptr), 0) << facts.message;
  return image;
}

TEST(Png, EveryPixelComesBack) {
  io::ScratchFolder folder;
  for (const auto& [width, height] : {std::pair{1, 1}, {3, 5}, {1, 700}, {513, 2}}) {
    const Image image = ramp(width, height);
    write_png(folder / "x.png", image);
    const Image back = read_back(folder / "x.png");
    EXPECT_EQ(back.width, width);
    EXPECT_EQ(back.height, height);
    EXPECT_EQ(back.rgb, image.rgb);
  }
}

TEST(Png, EqualImagesGiveEqualBytes) {
  io::ScratchFolder folder;
  write_png(folder / "a.png", ramp(9, 4));
  write_png(folder / "b.png", ramp(9, 4));
  EXPECT_EQ(io::bytes_of(folder / "a.png"), io::bytes_of(folder / "b.png"));
  const std::vector<std::byte> bytes = png_of(ramp(9, 4));
  EXPECT_EQ(io::bytes_of(folder / "a.png"), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

TEST(Png, RefusesWhatIsNoImageAndWritesNothing) {
  io::ScratchFolder folder;
  EXPECT_THAT(message_of<ShapeError>([&] {
                write_png(folder / "x.png", Image{2, 2, std::vector<uint8_t>(11)});
              }),
              HasSubstr("2 x 2 with 11 bytes"));
  EXPECT_THROW(write_png(folder / "x.png", Image{}), ShapeError);
  EXPECT_THROW(write_png(folder / "x.png", Image{-1, -1, std::vector<uint8_t>(3)}), ShapeError);
  EXPECT_THROW(write_png(folder / "no/x.png", ramp(1, 1)), FileError);
  EXPECT_TRUE(folder.files().empty());
}

TEST(Png, ReplacesAPictureThatWasThere) {
  io::ScratchFolder folder;
  io::put_bytes(folder / "x.png", "before");
  write_png(folder / "x.png", ramp(2, 2));
  EXPECT_EQ(read_back(folder / "x.png").rgb, ramp(2, 2).rgb);
  EXPECT_THAT(folder.files(), ElementsAre("x.png"));
}

}  // namespace
}  // namespace qkv::cli
