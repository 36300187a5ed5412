#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "io/bytes.h"
#include "qkv/error.h"

namespace qkv::io {

namespace {

constexpr size_t kMostAxes = 64;
constexpr std::string_view kMetadataName = "__metadata__";

struct Type {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};
/// All types of the format (huggingface/safetensors, safetensors/src/tensor.rs): a size that is known is checked, also of what
/// cannot be read here.
constexpr Type kTypes[] = {
    {"F32", 32, DType::kFloat32},
    {"F16", 16, DType::kFloat16},
    {"BF16", 16, DType::kBFloat16},
    {"F64", 64, DType::kFloat64},
    {"BOOL", 8, DType::kBool},
    {"I8", 8, DType::kInt8},
    {"I16", 16, DType::kInt16},
    {"I32", 32, DType::kInt32},
    {"I64", 64, DType::kInt64},
    {"U8", 8, DType::kUInt8},
    {"U16", 16, DType::kUInt16},
    {"U32", 32, DType::kUInt32},
    {"U64", 64, DType::kUInt64},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
    {"C64", 64, {}},
};

std::string printable(std::string_view text) {
  std::string safe;
  for (char c : text.substr(0, 60)) safe += c >= ' ' && c <= '~' ? c : '?';
  return safe;
}

/// Takes the parser's events. Nothing is kept but what the format has, so depth and memory are bounded by the shape of these
/// states: file { tensor { field [ numbers ] } }.
class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  SafetensorsHeader take() { return {std::move(entries_), std::move(metadata_)}; }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool number_integer(int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) { return unexpected("a number that is no integer of 64 bits"); }
  bool binary(std::vector<uint8_t>&) { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) {
    if (state_ == State::kShape) {
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) fail("a size does not fit in 63 bits");
      if (entry().shape.size() == kMostAxes) fail("a shape has more than 64 axes");
      entry().shape.push_back(static_cast<int64_t>(value));
    } else if (state_ == State::kOffsets) {
      if (offsets_ == 2) fail("data_offsets has more than two numbers");
      (offsets_++ == 0 ? entry().begin : entry().end) = value;
    } else {
      return unexpected("a number");
    }
    return true;
  }

  bool string(std::string& value) {
    if (state_ == State::kMetadata) return metadata_[metadata_key_] = value, true;
    if (state_ != State::kType) return unexpected("a text");
    entry().type = value;
    state_ = State::kTensor;
    return true;
  }

  bool start_object(size_t) {
    if (state_ == State::kBefore) state_ = State::kFile;
    else if (state_ == State::kEntry) state_ = State::kTensor;
    else if (state_ == State::kMetadataEntry) state_ = State::kMetadata;
    else return unexpected("an object");
    return true;
  }
  bool end_object() {
    if (state_ == State::kTensor && !(has_type_ && has_shape_ && has_offsets_))
      fail("a tensor needs dtype, shape and data_offsets");
    state_ = State::kFile;
    return true;
  }

  bool start_array(size_t) {
    if (state_ != State::kShapeBefore && state_ != State::kOffsetsBefore) return unexpected("a list");
    state_ = state_ == State::kShapeBefore ? State::kShape : State::kOffsets;
    return true;
  }
  bool end_array() {
    if (state_ == State::kOffsets && offsets_ != 2) fail("data_offsets has fewer than two numbers");
    state_ = State::kTensor;
    return true;
  }

  bool key(std::string& name) {
    if (state_ == State::kFile) file_key(name);
    else if (state_ == State::kTensor) tensor_key(name);
    else if (!metadata_.emplace(name, "").second) fail("a key of __metadata__ appears twice");
    else metadata_key_ = name;
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) { fail_at(at); }
  [[noreturn]] void fail_at(size_t at) const {
    throw FileError(fmt::format(
        "Safetensors: the header of {} is no JSON at its byte {}; the file is damaged or padded with something else than "
        "spaces, save it again",
        file_, at));
  }

 private:
  enum class State : uint8_t {
    kBefore,
    kFile,
    kEntry,
    kTensor,
    kType,
    kShapeBefore,
    kShape,
    kOffsetsBefore,
    kOffsets,
    kMetadataEntry,
    kMetadata
  };

  SafetensorsEntry& entry() { return entries_.back(); }

  [[noreturn]] void fail(std::string_view what) const {
    const std::string where = entries_.empty() ? "" : fmt::format(" (tensor '{}')", printable(entries_.back().name));
    throw FileError(
        fmt::format("Safetensors: the header of {} is damaged: {}{}; save the file again", file_, what, where));
  }
  bool unexpected(std::string_view what) const {
    static constexpr std::string_view kExpected[] = {"an object with the tensors",
                                                     "a name",
                                                     "an object with dtype, shape and data_offsets",
                                                     "a field's name",
                                                     "the name of a type",
                                                     "a list of sizes",
                                                     "a size of at least 0",
                                                     "a list of two offsets",
                                                     "an offset of at least 0",
                                                     "an object with texts",
                                                     "a text"};
    fail(fmt::format("expected {}, got {}", kExpected[static_cast<size_t>(state_)], what));
  }

  void file_key(const std::string& name) {
    if (!names_.insert(name).second)
      fail(fmt::format("the name '{}' appears twice, and no rule says which is meant", printable(name)));
    if (name == kMetadataName) {
      state_ = State::kMetadataEntry;
      return;
    }
    entries_.emplace_back().name = name;
    has_type_ = has_shape_ = has_offsets_ = false;
    offsets_ = 0;
    state_ = State::kEntry;
  }
  void tensor_key(const std::string& name) {
    if (name == "dtype") once(has_type_, State::kType);
    else if (name == "shape") once(has_shape_, State::kShapeBefore);
    else if (name == "data_offsets") once(has_offsets_, State::kOffsetsBefore);
    else fail(fmt::format("expected dtype, shape and data_offsets only, got '{}'", printable(name)));
  }
  void once(bool& seen, State next) {
    if (seen) fail("a field appears twice");
    seen = true;
    state_ = next;
  }

  const std::string& file_;
  State state_ = State::kBefore;
  std::vector<SafetensorsEntry> entries_;
  std::set<std::string> names_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::string metadata_key_;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

[[noreturn]] void refuse(const std::string& file, const SafetensorsEntry& e, const std::string& what) {
  throw FileError(fmt::format("Safetensors: tensor '{}' in {} {}; the file is damaged, fetch or save it again",
                              printable(e.name), file, what));
}

/// Bytes of a tensor of this shape; nothing where they do not fit in 63 bits or are no whole number.
std::optional<uint64_t> bytes_of(const std::vector<int64_t>& shape, uint64_t bits) {
  if (bits % 8 == 0) return checked_bytes(shape, bits / 8);
  const auto elements = checked_bytes(shape, 1);
  uint64_t all = 0;
  if (!elements || __builtin_mul_overflow(*elements, bits, &all) || all % 8 != 0) return std::nullopt;
  return all / 8;
}

void check_extent(SafetensorsEntry& e, uint64_t data_bytes, const std::string& file) {
  const auto* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.name == e.type; });
  if (type == std::end(kTypes)) {
    throw FileError(
        fmt::format("Safetensors: tensor '{}' in {} has elements of type '{}', which the format does not have; "
                    "save it as F32",
                    printable(e.name), file, printable(e.type)));
  }
  e.dtype = type->dtype;
  if (e.begin > e.end) refuse(file, e, fmt::format("ends at byte {} before it begins at {}", e.end, e.begin));
  if (e.end > data_bytes)
    refuse(file, e, fmt::format("claims bytes up to {}, but there are {} after the header", e.end, data_bytes));
  const auto bytes = bytes_of(e.shape, type->bits);
  if (bytes && *bytes == e.end - e.begin) return;
  refuse(file, e,
         fmt::format("has the shape [{}] of {}, which does not fit the {} bytes that it claims",
                     fmt::join(e.shape, ", "), e.type, e.end - e.begin));
}

}  // namespace

std::string_view safetensors_type(DType dtype) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.dtype == dtype; })->name;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes, const std::string& file) {
  if (!text.starts_with('{')) {
    throw FileError(fmt::format(
        "Safetensors: {} is no safetensors file: its header does not begin with '{{'; write it with safetensors' save_file",
        file));
  }
  Reader reader(file);
  // The parser takes a zero byte for the end and would not look at what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) reader.fail_at(zero);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header = reader.take();
  auto& entries = header.entries;
  for (SafetensorsEntry& e : entries) check_extent(e, data_bytes, file);
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t reached = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin < reached) refuse(file, e, fmt::format("begins at byte {}, inside of another tensor", e.begin));
    if (e.begin > reached)
      refuse(file, e, fmt::format("begins at byte {}, after {} that belong to no tensor", e.begin, e.begin - reached));
    reached = e.end;
  }
  if (reached == data_bytes) return header;
  throw FileError(
      fmt::format("Safetensors: {} has {} bytes after its last tensor; it is damaged, fetch or save it again", file,
                  data_bytes - reached));
}

}  // namespace qkv::io
