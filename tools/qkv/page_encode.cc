#include "qkv/page_encode.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "qkv/float16.h"

// Bytes go into the page as they lie in memory, and a browser reads them as little-endian.
static_assert(std::endian::native == std::endian::little);

namespace qkv::cli {

namespace {

constexpr int kLargestExponent = 15;  // float16 ends below 2^16

double factor_of(std::span<const float> numbers) {
  float largest = 0;
  for (float x : numbers) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest > 0 ? std::ldexp(1.0, std::ilogb(largest) + 1 - kLargestExponent) : 1.0;
}

uint16_t half(float x, double factor) { return float16(static_cast<float>(static_cast<double>(x) / factor)).bits; }

}  // namespace

Halves to_halves(std::span<const float> numbers) {
  Halves h{{}, factor_of(numbers)};
  h.bits.reserve(numbers.size());
  for (float x : numbers) h.bits.push_back(half(x, h.factor));
  return h;
}

Halves weights_to_halves(std::span<const float> weights, std::span<const uint8_t> hidden) {
  Halves h = to_halves(weights);
  for (size_t n = 0; n < weights.size(); ++n) {
    if (!hidden.empty() && hidden[n] != 0) h.bits[n] = kHiddenBits;
    else if (std::isnan(weights[n])) h.bits[n] = kNaNBits;
    else if (weights[n] != 0 && (h.bits[n] & 0x7FFF) == 0) h.bits[n] |= 1;
  }
  return h;
}

uint8_t code_of(double weight) {
  if (std::isnan(weight)) return kNaNCode;
  if (weight <= 0) return kZeroCode;
  if (weight < kSmallestCoded) return kTinyCode;
  const double place = 1 - std::log10(weight) / std::log10(kSmallestCoded);  // 0 at the smallest, 1 at 1
  const double code = kFirstCode + place * (kLastCode - kFirstCode);
  return static_cast<uint8_t>(std::lround(std::min<double>(code, kLastCode)));
}

double weight_of(uint8_t code) {
  if (code == kNaNCode) return std::nan("");
  if (code < kFirstCode) return 0;
  return std::pow(kSmallestCoded, static_cast<double>(kLastCode - code) / (kLastCode - kFirstCode));
}

std::string base64(std::string_view bytes) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve(base64_size(bytes.size()));
  for (size_t n = 0; n < bytes.size(); n += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (n + k < bytes.size() ? static_cast<uint8_t>(bytes[n + k]) : 0U);
    for (size_t k = 0; k < 4; ++k)
      text += n + k <= bytes.size() ? kLetters[group >> (18 - 6 * k) & 63U] : '=';  // k letters need k bytes, but one
  }
  return text;
}

std::string script_safe(std::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (size_t n = 0; n < json.size(); ++n) {
    const std::string_view rest = json.substr(n, 3);
    if (json[n] == '<') safe += "\\u003c";
    else if (rest == "\xE2\x80\xA8") safe += "\\u2028", n += 2;
    else if (rest == "\xE2\x80\xA9") safe += "\\u2029", n += 2;
    else safe += json[n];
  }
  return safe;
}

int Blobs::add(std::string bytes) {
  const auto [at, is_new] = numbers_.try_emplace(std::move(bytes), static_cast<int>(texts_.size()));
  if (is_new) {
    texts_.push_back(base64(at->first));
    size_ += texts_.back().size();
  }
  return at->second;
}

std::vector<size_t> Blobs::ends() const {
  std::vector<size_t> ends;
  for (const std::string& text : texts_) ends.push_back((ends.empty() ? 0 : ends.back()) + text.size());
  return ends;
}

std::string Blobs::text() const {
  std::string all;
  all.reserve(size_);
  for (const std::string& text : texts_) all += text;
  return all;
}

}  // namespace qkv::cli
