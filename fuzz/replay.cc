// Runs a fuzz target over files and folders: what once broke a reader must not break it again.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

int run(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  int files = 0;
  for (int n = 1; n < count; ++n) {
    if (!std::filesystem::is_directory(arguments[n])) {
      files += run(arguments[n]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(arguments[n])) {
      if (entry.is_regular_file()) files += run(entry.path());
    }
  }
  std::printf("%d files read\n", files);
  return files == 0;
}
