// qkv see --html: a page in one file that needs no network.
#pragma once
#include <string>
#include <vector>

#include "qkv/page_cells.h"
#include "qkv/see.h"

namespace qkv::cli {

/// The largest page that is written.
inline constexpr double kLargestPage = 20e6;

/// All chosen layers, heads and batch entries. Throws OptionError, naming sizes and --layer, --head, --batch, where it would
/// be larger than kLargestPage; nothing large has been computed by then.
std::string page_of(const SeeOptions&, const std::vector<Layer>&);

/// Writes it to options.html, and its place and size to stderr.
void write_page(const SeeOptions&, const std::vector<Layer>&);

namespace page {            // made from tools/qkv/page/ by tools/qkv/page/embed.cmake
extern const char kHtml[];  ///< with {{TITLE}}, {{FACTS}} and {{BYTES}} in it
}  // namespace page

}  // namespace qkv::cli
