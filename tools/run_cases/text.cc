#include "run_cases/text.h"

#include <sys/mman.h>
#include <unistd.h>

#include <charconv>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/io.h"
#include "qkv/token_text.h"
#include "run_cases/arrays.h"

namespace run_cases {
namespace {

using Names = std::vector<std::string_view>;

void check_names(const Json& inputs, const Names& known_inputs, const Json& options, const Names& known_options) {
  only_known(inputs, "input", known_inputs);
  only_known(options, "option", known_options);
}

std::vector<std::string> texts(const Json& inputs, const char* key) {
  return required(inputs, key).get<std::vector<std::string>>();
}

qkv::cli::TokenScheme scheme_of(const Json& options) {
  const auto scheme = required(options, "scheme").get<std::string>();
  if (scheme == "byte_level") return qkv::cli::TokenScheme::kByteLevel;
  if (scheme == "metaspace") return qkv::cli::TokenScheme::kMetaspace;
  throw NotSupported(fmt::format("scheme \"{}\"", scheme));
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  if (hex.size() % 2 != 0) throw Malformed("an odd number of hexadecimal digits");
  for (size_t n = 0; n < hex.size(); n += 2) {
    unsigned byte = 0;
    if (std::from_chars(hex.data() + n, hex.data() + n + 2, byte, 16).ptr != hex.data() + n + 2)
      throw Malformed(fmt::format("\"{}\" is no hexadecimal byte", hex.substr(n, 2)));
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

/// A file that exists only in memory.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : descriptor_(::memfd_create("case", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || ::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      throw qkv::FileError("a file in memory cannot be made");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

template <class T> Json numbers_of(const qkv::Array& array) {
  Json list = Json::array();
  const T* x = static_cast<const T*>(array.data());
  for (int64_t n = 0; n < array.size(); ++n) list.push_back(number_json(Number(x[n])));
  return list;
}

/// All elements in the order of the file, whatever the shape.
Json flattened(const qkv::Array& array) {
  using qkv::DType;
  switch (array.dtype()) {
    case DType::kFloat32: return numbers_of<float>(array);
    case DType::kFloat64: return numbers_of<double>(array);
    case DType::kFloat16: return numbers_of<qkv::float16>(array);
    case DType::kBFloat16: return numbers_of<qkv::bfloat16>(array);
    case DType::kBool: return numbers_of<uint8_t>(array);
    case DType::kInt8: return numbers_of<int8_t>(array);
    case DType::kInt16: return numbers_of<int16_t>(array);
    case DType::kInt32: return numbers_of<int32_t>(array);
    case DType::kInt64: return numbers_of<int64_t>(array);
    case DType::kUInt8: return numbers_of<uint8_t>(array);
    case DType::kUInt16: return numbers_of<uint16_t>(array);
    case DType::kUInt32: return numbers_of<uint32_t>(array);
    case DType::kUInt64: return numbers_of<uint64_t>(array);
  }
  throw NotSupported("an element type");
}

}  // namespace

Answer run_display_labels(const Json& inputs, const Json& options) {
  check_names(inputs, {"tokens", "added", "joined"}, options, {"scheme"});
  const std::vector<std::string> tokens = texts(inputs, "tokens");
  const auto plain = inputs.value("added", std::vector<bool>());
  const auto scheme = scheme_of(options);
  return {{"labels", Json(qkv::cli::display_labels(tokens, plain, scheme))},
          {"joined", Json(qkv::cli::display_text(tokens, plain, scheme))}};
}

Answer run_row_labels(const Json& inputs, const Json& options) {
  check_names(inputs, {"tokens", "rows", "cols"}, options, {});
  const auto labels = qkv::cli::axis_labels(texts(inputs, "tokens"), read_count(required(inputs, "rows")),
                                            read_count(required(inputs, "cols")));
  return {{"row_labels", Json(labels.rows)}, {"col_labels", Json(labels.columns)}};
}

Answer run_byte_offsets(const Json& inputs, const Json& options) {
  check_names(inputs, {"text", "tokens"}, options, {});
  const auto text = required(inputs, "text").get<std::string>();
  return {{"char_offsets", Json(qkv::cli::character_ranges(text, texts(inputs, "tokens")))}};
}

Answer run_html_text(const Json& inputs, const Json& options) {
  check_names(inputs, {"text"}, options, {});
  return {{"html", Json(qkv::cli::html_text(required(inputs, "text").get<std::string>()))}};
}

/// A file is accepted where it opens and every tensor of it can be read.
Answer run_safetensors(const Json& inputs, const Json& options) {
  check_names(inputs, {"hex"}, options, {});
  const MemoryFile file(bytes_of_hex(required(inputs, "hex").get<std::string>()));
  try {
    const qkv::Safetensors tensors(file.path());
    Json read = Json::object();
    for (const std::string& name : tensors.names()) read[name] = flattened(tensors.read(name));
    return {{"verdict", Json("accept")}, {"tensors", read}};
  } catch (const qkv::FileError&) {
    return {{"verdict", Json("reject")}};
  }
}

}  // namespace run_cases
