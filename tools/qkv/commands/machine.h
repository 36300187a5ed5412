// What this machine can do: the yardstick of every speed that qkv reports.
#pragma once
#include <string>

#include "qkv/executor.h"

namespace qkv::cli {

/// Fused multiply-adds of float32 on independent accumulators, all threads of the executor, one short run: GFLOP/s.
double measure_peak(Executor&);
/// Reading 64 MB a thread in order, one run: GB/s.
double measure_bandwidth(Executor&);

std::string processor_name();  ///< "Intel(R) Xeon(R) Processor", or the architecture where the system does not say
std::string compiler_name();

}  // namespace qkv::cli
