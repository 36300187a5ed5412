// Numbers as text that a page decodes: float16, 8-bit weights, base64.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::cli {

/// Numbers as float16 times one factor, a power of two that moves the largest of them below 2^15: then neither large
/// numbers overflow nor small ones lose digits before they are 2^-29 of the largest.
struct Halves {
  std::vector<uint16_t> bits;
  double factor = 1;  ///< number = float16 * factor
};
Halves to_halves(std::span<const float> numbers);

/// What stands for a pair that a mask hides among the float16 bits of weights. A NaN is kNaNBits, never this.
inline constexpr uint16_t kHiddenBits = 0xFFFF, kNaNBits = 0x7E00;
/// Weights; `hidden` is as long or empty. A weight that is not 0 never becomes 0.
Halves weights_to_halves(std::span<const float> weights, std::span<const uint8_t> hidden);

/// A weight in [0, 1] as one byte: 3 to 254 are equal steps of its logarithm from kSmallestCoded to 1, so that a
/// decoded weight is within 3 % of the real one.
inline constexpr uint8_t kHiddenCode = 0, kZeroCode = 1, kTinyCode = 2, kFirstCode = 3, kLastCode = 254, kNaNCode = 255;
inline constexpr double kSmallestCoded = 1e-6;
uint8_t code_of(double weight);
double weight_of(uint8_t code);  ///< 0 for hidden, zero and tiny; the inverse of code_of elsewhere

std::string base64(std::string_view bytes);
constexpr size_t base64_size(size_t bytes) { return (bytes + 2) / 3 * 4; }

/// JSON that cannot end or open anything where it stands inside a <script> element: '<' and the two line separators
/// become escapes, which in JSON stand in strings only.
std::string script_safe(std::string_view json);

/// Byte strings on their way into a page, each once however often it is added.
class Blobs {
 public:
  int add(std::string bytes);  ///< its number
  template <class T> int add(std::span<const T> values) {
    return add(std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
  }
  size_t count() const { return texts_.size(); }
  size_t size() const { return size_; }  ///< of text()
  std::vector<size_t> ends() const;      ///< where each ends in text()
  std::string text() const;              ///< one after the other in base64, each padded by itself

 private:
  std::map<std::string, int> numbers_;
  std::vector<std::string> texts_;
  size_t size_ = 0;
};

}  // namespace qkv::cli
