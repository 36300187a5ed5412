// The operations of the schema on positions, caches and first weights: rope, rope_calls, rope_shift, rope_table, sinusoidal,
// t5_bucket, rel_shift, position_ids, sliding_cache, beam_reorder, init_bound.
#pragma once
#include "run_cases/runner.h"

namespace run_cases {

Answer run_rope(const Json& inputs, const Json& options);
Answer run_rope_calls(const Json& inputs, const Json& options);
Answer run_rope_shift(const Json& inputs, const Json& options);
Answer run_rope_table(const Json& inputs, const Json& options);
Answer run_sinusoidal(const Json& inputs, const Json& options);
Answer run_t5_bucket(const Json& inputs, const Json& options);
Answer run_rel_shift(const Json& inputs, const Json& options);
Answer run_position_ids(const Json& inputs, const Json& options);
Answer run_sliding_cache(const Json& inputs, const Json& options);
Answer run_beam_reorder(const Json& inputs, const Json& options);
Answer run_init_bound(const Json& inputs, const Json& options);

}  // namespace run_cases
