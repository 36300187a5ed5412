// The operations sdpa, sdpa_strided and sdpa_error of the schema.
#pragma once
#include "run_cases/runner.h"

namespace run_cases {

Answer run_sdpa(const Json& inputs, const Json& options);
Answer run_sdpa_strided(const Json& inputs, const Json& options);
Answer run_sdpa_error(const Json& inputs, const Json& options);

}  // namespace run_cases
