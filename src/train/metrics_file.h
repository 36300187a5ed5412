// metrics.jsonl: a line of JSON for each step.
#pragma once
#include <cstdint>
#include <string>

#include "qkv/train.h"

namespace qkv::nn {

/// Lines of steps after the checkpoint from which training goes on are taken back.
class MetricsFile {
 public:
  /// Throws FileError.
  MetricsFile(const std::string& path, int64_t steps_done);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  void write(const Progress&);

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace qkv::nn
