// The operations of the schema on tokens and files: display_labels, row_labels, byte_offsets, html_text, safetensors.
#pragma once
#include "run_cases/runner.h"

namespace run_cases {

Answer run_display_labels(const Json& inputs, const Json& options);
Answer run_row_labels(const Json& inputs, const Json& options);
Answer run_byte_offsets(const Json& inputs, const Json& options);
Answer run_html_text(const Json& inputs, const Json& options);
Answer run_safetensors(const Json& inputs, const Json& options);

}  // namespace run_cases
