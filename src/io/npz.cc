#include <zip.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/npy.h"
#include "io/output_file.h"
#include "qkv/error.h"
#include "qkv/io.h"

namespace qkv {

namespace {

constexpr std::string_view kSuffix = ".npy";

std::string without_suffix(std::string_view name) {
  return std::string(name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name);
}

std::string zip_message(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

/// Discards, so that an archive that is not closed on purpose writes nothing.
struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Archive = std::unique_ptr<zip_t, Discard>;
struct CloseEntry {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using Entry = std::unique_ptr<zip_file_t, CloseEntry>;

Archive open_archive(const char* function, const std::string& path, int flags) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), flags, &code));
  if (archive) return archive;
  if (code == ZIP_ER_EXISTS)
    throw FileError(
        fmt::format("{}: {} has a name twice, and no rule says which is meant; save it again", function, path));
  const std::string advice = code == ZIP_ER_NOZIP || code == ZIP_ER_INCONS
                                 ? "; it is cut short, damaged or no .npz: fetch it again, or write it with np.savez"
                                 : "";
  throw FileError(fmt::format("{}: cannot open {}: {}{}", function, path, zip_message(code), advice));
}

class EntrySource final : public io::Source {
 public:
  EntrySource(Entry entry, std::string file, uint64_t size, bool stored)
      : entry_(std::move(entry)), file_(std::move(file)), left_(size), stored_(stored) {}
  size_t read(void* to, size_t bytes) override {
    const zip_int64_t got = zip_fread(entry_.get(), to, bytes);
    if (got < 0) {
      const char* why = zip_file_strerror(entry_.get());
      throw FileError(fmt::format("Npz: {} is damaged: {}; fetch the file again", file_, why));
    }
    left_ -= std::min(left_, static_cast<uint64_t>(got));
    return static_cast<size_t>(got);
  }
  std::optional<uint64_t> left() const override { return left_; }
  /// Stored bytes are there (ZIP_CHECKCONS has compared them with the file's length); deflated ones have to arrive first.
  bool backed() const override { return stored_; }

 private:
  Entry entry_;
  std::string file_;
  uint64_t left_;
  bool stored_;
};

}  // namespace

struct Npz::Impl {
  std::string path;
  NpzLimits limits;
  Archive archive;
  std::vector<std::string> names;

  Impl(const std::string& file, const NpzLimits& most)
      : path(file), limits(most), archive(open_archive("Npz", file, ZIP_RDONLY | ZIP_CHECKCONS)) {
    const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
    std::set<std::string> seen;
    for (zip_int64_t n = 0; n < count; ++n) {
      const char* raw = zip_get_name(archive.get(), static_cast<zip_uint64_t>(n), 0);
      if (raw == nullptr)
        throw FileError(fmt::format("Npz: {} has an entry without a name; it is damaged, fetch it again", path));
      names.push_back(without_suffix(raw));
      if (!seen.insert(names.back()).second) {
        throw FileError(fmt::format("Npz: {} has the name '{}' twice, and no rule says which is meant; save it again",
                                    path, names.back()));
      }
    }
  }

  size_t index_of(std::string_view name) const {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at != names.end()) return static_cast<size_t>(at - names.begin());
    const size_t shown = std::min<size_t>(names.size(), 12);
    throw FileError(fmt::format("Npz: {} has no array '{}'; it has: {}{}", path, name,
                                fmt::join(names.begin(), names.begin() + shown, ", "),
                                shown < names.size() ? ", ..." : ""));
  }

  zip_stat_t facts_of(size_t index, const std::string& label) const {
    zip_stat_t facts;
    zip_stat_init(&facts);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(archive.get(), index, 0, &facts) != 0 || (facts.valid & kNeeded) != kNeeded) {
      throw FileError(fmt::format("Npz: {} is damaged: {}; fetch the file again", label, zip_strerror(archive.get())));
    }
    if ((facts.valid & ZIP_STAT_ENCRYPTION_METHOD) != 0 && facts.encryption_method != ZIP_EM_NONE) {
      throw FileError(fmt::format("Npz: {} is encrypted; save it with np.savez", label));
    }
    if (facts.comp_method != ZIP_CM_STORE && facts.comp_method != ZIP_CM_DEFLATE) {
      throw FileError(
          fmt::format("Npz: {} is compressed by method {}, expected stored (0) or deflate (8); save it with np.savez",
                      label, facts.comp_method));
    }
    return facts;
  }

  /// What an entry claims must be allowed, and possible: deflate never reaches more than 1032 to 1 (RFC 1951: 258 bytes
  /// from at least 2 bits).
  void check_claim(const zip_stat_t& facts, const std::string& label) const {
    const bool stored = facts.comp_method == ZIP_CM_STORE;
    if (facts.size > limits.entry_bytes) {
      throw FileError(
          fmt::format("Npz: {} claims {} bytes, more than the {} that are allowed; raise the limit if that is meant",
                      label, facts.size, limits.entry_bytes));
    }
    if (stored ? facts.size != facts.comp_size : facts.size / 1032 > facts.comp_size) {
      throw FileError(fmt::format(
          "Npz: {} claims {} bytes from {} compressed ones, which cannot be; the file is damaged, fetch it again",
          label, facts.size, facts.comp_size));
    }
  }

  Array read(std::string_view name) const {
    const size_t index = index_of(name);
    const std::string label = fmt::format("{} in {}", name, path);
    const zip_stat_t facts = facts_of(index, label);
    check_claim(facts, label);
    Entry entry(zip_fopen_index(archive.get(), index, 0));
    if (!entry)
      throw FileError(
          fmt::format("Npz: {} cannot be read: {}; fetch the file again", label, zip_strerror(archive.get())));
    EntrySource source(std::move(entry), label, facts.size, facts.comp_method == ZIP_CM_STORE);
    return io::parse_npy(source, label, limits.entry_bytes);
  }
};

Npz::Npz(const std::string& path, const NpzLimits& limits) : impl_(std::make_unique<Impl>(path, limits)) {}
Npz::~Npz() = default;
Npz::Npz(Npz&&) noexcept = default;
Npz& Npz::operator=(Npz&&) noexcept = default;

const std::vector<std::string>& Npz::names() const { return impl_->names; }
bool Npz::contains(std::string_view name) const {
  return std::find(names().begin(), names().end(), name) != names().end();
}
Array Npz::read(std::string_view name) const { return impl_->read(name); }

namespace {

[[noreturn]] void fail_writing(const std::string& path, zip_t* archive) {
  throw FileError(
      fmt::format("write_npz: {} cannot be written: {}; choose another place", path, zip_strerror(archive)));
}

/// Adds one entry; `image` has to live until the archive is closed.
void add_entry(zip_t* archive, const std::string& path, const std::string& name, const io::NpyImage& image,
               Compression compression) {
  zip_buffer_fragment_t parts[2];
  parts[0] = {reinterpret_cast<zip_uint8_t*>(const_cast<char*>(image.preamble.data())), image.preamble.size()};
  parts[1] = {reinterpret_cast<zip_uint8_t*>(const_cast<std::byte*>(image.elements.data.data())),
              image.elements.data.size()};
  zip_source_t* source = zip_source_buffer_fragment(archive, parts, image.elements.data.empty() ? 1 : 2, 0);
  if (source == nullptr) fail_writing(path, archive);
  const zip_int64_t index = zip_file_add(archive, (name + std::string(kSuffix)).c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    fail_writing(path, archive);
  }
  const auto at = static_cast<zip_uint64_t>(index);
  const auto method = compression == Compression::kDeflate ? ZIP_CM_DEFLATE : ZIP_CM_STORE;
  constexpr zip_uint16_t kFirstOf1980 = 1 << 5 | 1;  // the date that np.savez writes: equal tensors, equal bytes
  if (zip_set_file_compression(archive, at, method, 0) != 0 ||
      zip_file_set_dostime(archive, at, 0, kFirstOf1980, 0) != 0) {
    fail_writing(path, archive);
  }
}

}  // namespace

void write_npz(const std::string& path, std::span<const NamedTensor> tensors, Compression compression,
               std::stop_token stop) {
  io::check_names("write_npz", tensors);
  if (tensors.empty()) throw ArgumentError("write_npz: tensors is empty; a zip without entries is no file");
  std::vector<io::NpyImage> images;
  for (const NamedTensor& t : tensors) images.push_back(io::npy_image(t.view));
  io::OutputFile file("write_npz", path);
  Archive archive = open_archive("write_npz", file.temporary(), ZIP_CREATE | ZIP_TRUNCATE);
  for (size_t n = 0; n < tensors.size(); ++n) add_entry(archive.get(), path, tensors[n].name, images[n], compression);
  const auto stopped = [](zip_t*, void* token) {
    return static_cast<std::stop_token*>(token)->stop_requested() ? 1 : 0;
  };
  zip_register_cancel_callback_with_state(archive.get(), stopped, nullptr, &stop);
  if (zip_close(archive.get()) != 0) {
    if (stop.stop_requested()) throw Cancelled(fmt::format("write_npz: stopped before {} was complete", path));
    fail_writing(path, archive.get());
  }
  (void)archive.release();  // closed
  file.commit();
}

}  // namespace qkv
