#include "io/npy_header.h"

#include <bit>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::io {

namespace {

constexpr size_t kMostAxes = 64;  // NumPy 2's limit

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {
    {"f4", DType::kFloat32}, {"f8", DType::kFloat64}, {"f2", DType::kFloat16}, {"b1", DType::kBool},
    {"i1", DType::kInt8},    {"i2", DType::kInt16},   {"i4", DType::kInt32},   {"i8", DType::kInt64},
    {"u1", DType::kUInt8},   {"u2", DType::kUInt16},  {"u4", DType::kUInt32},  {"u8", DType::kUInt64},
};

/// Why a type that NumPy knows cannot be a tensor here, and what to do.
std::string_view refusal(char kind) {
  switch (kind) {
    case 'O':
      return "Python objects, which only running code could restore (allow_pickle is not offered); save one numeric "
             "array per name: np.savez(file, q=np.asarray(q, np.float32), ...)";
    case 'S':
    case 'U':
    case 'T':
    case 'a': return "text; tokens belong in a .json beside the file";
    case 'c': return "complex numbers; save their real and imaginary parts";
    case 'M':
    case 'm': return "dates; save numbers";
    case 'V': return "raw bytes (bfloat16 and float8 are stored so, and lose their name); save x.astype(np.float32)";
    default: return "a type that tensors do not have here; save x.astype(np.float32)";
  }
}

/// A reader of the Python literal. Every step checks for the end.
class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      value(key);
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    if (at_ != text_.size()) fail("expected nothing after the dictionary");
    if (!has_type_ || !has_order_ || !has_shape_) fail("expected the keys 'descr', 'fortran_order' and 'shape'");
    return header_;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw FileError(fmt::format("read_npy: the header of {} is damaged at its byte {}: {}; save the array again", file_,
                                at_, what));
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  bool accept(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view string() {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail("expected a name in quotes");
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == text_.npos) fail("a quote is not closed");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  void once(bool& seen) {
    if (seen) fail("a key appears twice");
    seen = true;
  }
  void value(std::string_view key) {
    if (key == "descr") {
      once(has_type_);
      type();
    } else if (key == "fortran_order") {
      once(has_order_);
      header_.fortran = boolean();
    } else if (key == "shape") {
      once(has_shape_);
      shape();
    } else {
      fail("expected the keys 'descr', 'fortran_order' and 'shape' only");
    }
  }
  bool boolean() {
    if (accept("True")) return true;
    if (!accept("False")) fail("expected True or False");
    return false;
  }
  void type() {
    skip_space();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(' || text_[at_] == '{')) {
      throw FileError(fmt::format(
          "read_npy: {} holds records with named fields, expected numbers of one type; save each field as an array "
          "of its own: np.savez(file, q=x['q'], ...)",
          file_));
    }
    const std::string_view descr = string();
    const bool marked = !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string_view::npos;
    const std::string_view bare = descr.substr(marked ? 1 : 0);
    for (const TypeName& t : kTypes) {
      if (bare == t.name && (marked || size_of(t.dtype) == 1)) return order(t.dtype, descr[0]);
    }
    if (bare.empty()) fail("the type has no name");
    throw FileError(
        fmt::format("read_npy: {} has elements of type '{}': {}", file_, printable(descr), refusal(bare[0])));
  }
  void order(DType dtype, char mark) {
    header_.dtype = dtype;
    if (size_of(dtype) == 1) return;
    if (mark == '|') fail("a number of several bytes without a byte order");
    constexpr bool kLittle = std::endian::native == std::endian::little;
    header_.swapped = mark != '=' && (mark == '<') != kLittle;
  }
  void shape() {
    expect('(');
    bool comma = true;  // whether another size may follow
    while (!accept(')')) {
      if (!comma) fail("expected ',' or ')' in the shape");
      if (header_.shape.size() == kMostAxes) fail("the shape has more than 64 axes");
      header_.shape.push_back(size());
      comma = accept(',');
    }
    if (header_.shape.size() == 1 && !comma) fail("the shape is a number, expected a tuple such as (3,)");
  }
  int64_t size() {
    skip_space();
    int64_t value = 0;
    const char* first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("a size does not fit in 64 bits");
    if (error != std::errc() || value < 0) fail("expected a size of at least 0");
    at_ += static_cast<size_t>(end - first);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2's long integers
    return value;
  }
  static std::string printable(std::string_view text) {
    std::string safe;
    for (char c : text.substr(0, 20)) safe += c >= ' ' && c <= '~' ? c : '?';
    return safe;
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  NpyHeader header_;
  bool has_type_ = false, has_order_ = false, has_shape_ = false;
};

std::string_view type_name(DType dtype) {
  for (const TypeName& t : kTypes) {
    if (t.dtype == dtype) return t.name;
  }
  throw DtypeError(
      fmt::format("write_npy: tensor has type {}, which .npy does not have; convert it to float32", name(dtype)));
}

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const std::string& file) { return Parser(text, file).parse(); }

std::string npy_preamble(DType dtype, std::string_view shape_tuple) {
  constexpr size_t kFixed = 10;  // magic, version, 16-bit length
  const char order = size_of(dtype) == 1 ? '|' : std::endian::native == std::endian::little ? '<' : '>';
  std::string text =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': {}, }}", order, type_name(dtype), shape_tuple);
  text.append(63 - (kFixed + text.size()) % 64, ' ');
  text += '\n';
  std::string preamble("\x93NUMPY\x01\x00", 8);
  preamble += static_cast<char>(text.size() & 0xFF);
  preamble += static_cast<char>(text.size() >> 8);
  return preamble + text;
}

}  // namespace qkv::io
