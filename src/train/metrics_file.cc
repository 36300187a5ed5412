#include "train/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/error.h"

namespace qkv::nn {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes of the lines of the first `steps` steps. A line that is not complete, or no JSON, ends them.
int64_t length_of(const std::string& path, int64_t steps) {
  std::ifstream file(path, std::ios::binary);
  int64_t length = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() || json["step"] > steps) break;
    length += int64_t(line.size()) + 1;
  }
  return length;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, int64_t steps_done)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  const int64_t kept = descriptor_ < 0 ? 0 : length_of(path, steps_done);
  if (descriptor_ < 0 || ::ftruncate(descriptor_, kept) != 0 || ::lseek(descriptor_, 0, SEEK_END) < 0)
    throw FileError(fmt::format("train: {} cannot be written: {}; choose another folder", path, std::strerror(errno)));
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsFile::write(const Progress& p) {
  Json line{{"step", p.step},
            {"loss", p.loss},
            {"learning_rate", p.learning_rate},
            {"gradient_norm", p.gradient_norm},
            {"seconds", p.seconds},
            {"tokens_per_second", p.tokens_per_second}};
  if (p.evaluation) line["evaluation"] = *p.evaluation;
  const std::string text = line.dump() + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(descriptor_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw FileError(fmt::format("train: {} cannot be written: {}", path_, std::strerror(errno)));
    done += size_t(n);
  }
}

}  // namespace qkv::nn
