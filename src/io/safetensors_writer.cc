#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/bytes.h"
#include "io/c_order.h"
#include "io/output_file.h"
#include "io/safetensors_header.h"
#include "qkv/error.h"
#include "qkv/io.h"

namespace qkv {

namespace {

using Metadata = std::map<std::string, std::string, std::less<>>;
constexpr std::string_view kMetadataName = "__metadata__";
constexpr size_t kAlignment = 64;

/// The header with spaces after it, so that the data begin at a multiple of 64 bytes, behind its own length.
std::string header_of(std::span<const NamedTensor> tensors, std::span<const io::CopyInOrder> copies,
                      const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataName)] = metadata;
  uint64_t begin = 0;
  for (size_t n = 0; n < tensors.size(); ++n) {
    const View<const void>& v = tensors[n].view;
    const uint64_t end = begin + copies[n].data.size();
    header[tensors[n].name] = {{"dtype", io::safetensors_type(v.dtype)},
                               {"shape", std::vector<int64_t>(v.shape.begin(), v.shape.begin() + v.rank)},
                               {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw ArgumentError("write_safetensors: a name or a text is no UTF-8; convert it");
  }
  while ((sizeof(uint64_t) + text.size()) % kAlignment != 0) text += ' ';
  uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  for (char& byte : bytes) byte = static_cast<char>(length & 0xFF), length >>= 8;
  return bytes + text;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors, const Metadata& metadata,
                       std::stop_token stop) {
  static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");
  io::check_names("write_safetensors", tensors);
  std::vector<io::CopyInOrder> copies;
  for (const NamedTensor& t : tensors) {
    if (t.name == kMetadataName)
      throw ArgumentError("write_safetensors: the format keeps the name __metadata__ for texts; rename the tensor");
    copies.push_back(io::in_c_order(t.view));
  }
  const std::string header = header_of(tensors, copies, metadata);
  io::OutputFile file("write_safetensors", path);
  file.write(std::as_bytes(std::span(header)));
  for (const io::CopyInOrder& copy : copies) file.write(copy.data, stop);
  file.commit();
}

}  // namespace qkv
