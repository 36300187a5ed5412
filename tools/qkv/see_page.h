// qkv see --html: a page in one file that needs no network.
#pragma once
#include <stop_token>
#include <string>
#include <vector>

#include "qkv/page_cells.h"
#include "qkv/see.h"

namespace qkv::cli {

/// The largest page that is written.
inline constexpr double kLargestPage = 20e6;

/// All chosen layers, heads and batch entries; of one head a query can be pinned. Throws OptionError, naming sizes and --layer, --head, --batch, where it would
/// be larger than kLargestPage; nothing large has been computed by then.
std::string page_of(const SeeOptions&, const std::vector<Layer>&);

/// The file appears complete or not at all. Throws FileError, Cancelled.
void write_page(const std::string& path, const std::string& page, const std::stop_token& stop = {});

namespace page {            // made from tools/qkv/page/ by tools/qkv/page/embed.cmake
extern const char kHtml[];  ///< with {{TITLE}}, {{FACTS}} and {{BYTES}} in it
}  // namespace page

}  // namespace qkv::cli
