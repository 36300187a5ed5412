#include "nn/row_positions.h"

#include "nn/arguments.h"

namespace qkv {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 30;  // as in attention: differences fit 32 bits

}  // namespace

void check_positions(const char* function, const RowPositions& p, int64_t batch, int64_t length) {
  if (p.offsets) {
    arguments::tensor(function, "offsets", p.offsets);
    if (p.offsets.rank != 1 || (p.offsets.shape[0] != batch && p.offsets.shape[0] != 1))
      shape_error("{}: offsets has shape {}, expected {{{}}} or {{1}}: one position an entry of the batch", function,
                  p.offsets, batch);
  }
  if (p.ids) {
    arguments::tensor(function, "ids", p.ids);
    if (p.ids.rank != 2 || (p.ids.shape[0] != batch && p.ids.shape[0] != 1) || p.ids.shape[1] != length)
      shape_error("{}: ids has shape {}, expected {{{}, {}}} or {{1, {}}}: one position a row", function, p.ids, batch,
                  length, length);
  }
  const auto expect_near = [&](int64_t b, int64_t l) {
    const int64_t at = position_of(p, b, l);
    if (at < -kMostPositions || at > kMostPositions)
      option_error("{}: row {} of entry {} stands at position {}, expected -2^30 to 2^30; count from a later token",
                   function, l, b, at);
  };
  if (batch == 0 || length == 0) return;
  if (p.offset < -2 * kMostPositions || p.offset > 2 * kMostPositions)
    option_error("{}: offset is {}, expected -2^30 to 2^30; count from a later token", function, p.offset);
  const int64_t entries = p.offsets || (p.ids && p.ids.shape[0] > 1) ? batch : 1;
  for (int64_t b = 0; b < entries; ++b) {
    if (p.ids) {
      for (int64_t l = 0; l < length; ++l) expect_near(b, l);
    } else {
      expect_near(b, 0);
      expect_near(b, length - 1);
    }
  }
}

void position_ids(View<const bool> is_token, View<int32_t> ids) {
  arguments::tensor("position_ids", "is_token", is_token);
  arguments::tensor("position_ids", "ids", ids);
  if (is_token.rank != 2) shape_error("position_ids: is_token has shape {}, expected {{batch, length}}", is_token);
  arguments::shape("position_ids", "ids", ids, {is_token.shape[0], is_token.shape[1]});
  const View<const uint8_t> token(reinterpret_cast<const uint8_t*>(is_token.data), is_token);
  for (int64_t b = 0; b < ids.shape[0]; ++b) {
    int32_t tokens = 0;
    for (int64_t l = 0; l < ids.shape[1]; ++l) ids(b, l) = token(b, l) != 0 ? tokens++ : 0;
  }
}

}  // namespace qkv
