# Turns the sources of the page into a C++ file: cmake -DFOLDER=... -DOUTPUT=... -P embed.cmake
# Style and script stand in the page as they are here, and the page's own policy allows these two and no others, by their
# hashes: text that came from a file can never run.
set(scripts data.js cells.js colors.js painter.js map.js heads.js row.js main.js)  # in this order, in one function

set(script "(() => {\n'use strict';\n")
foreach(name ${scripts})
  file(READ "${FOLDER}/${name}" text)
  string(APPEND script "${text}")
endforeach()
string(APPEND script "})();\n")
file(READ "${FOLDER}/page.css" style)
file(READ "${FOLDER}/page.html" page)

# "sha256-" and the hash in base64, as a Content-Security-Policy writes it.
function(policy_hash text variable)
  string(SHA256 hex "${text}")
  set(letters "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(result "")
  foreach(group RANGE 0 63 6)
    string(SUBSTRING "${hex}00" ${group} 6 digits)  # 32 bytes and one of 0: eleven groups of three
    foreach(shift 18 12 6 0)
      math(EXPR place "(0x${digits} >> ${shift}) & 63")
      string(SUBSTRING "${letters}" ${place} 1 letter)
      string(APPEND result "${letter}")
    endforeach()
  endforeach()
  string(SUBSTRING "${result}" 0 43 result)
  set(${variable} "sha256-${result}=" PARENT_SCOPE)
endfunction()

policy_hash("${style}" style_hash)
policy_hash("${script}" script_hash)
string(REPLACE "{{STYLE_HASH}}" "${style_hash}" page "${page}")
string(REPLACE "{{SCRIPT_HASH}}" "${script_hash}" page "${page}")
string(REPLACE "{{STYLE}}" "${style}" page "${page}")
string(REPLACE "{{SCRIPT}}" "${script}" page "${page}")
file(WRITE "${OUTPUT}" "// Made from tools/qkv/page/ by embed.cmake. Do not edit.
#include \"qkv/see_page.h\"

namespace qkv::cli::page {
const char kHtml[] = R\"qkv_page(${page})qkv_page\";
}  // namespace qkv::cli::page
")
