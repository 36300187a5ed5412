// Which instruction sets the kernels are compiled for: the newest that is common (AVX3), what most machines have (AVX2),
// SSE4, the compiler's own baseline, and NEON. The rest of Highway's list would only cost build time.
// Include before hwy/foreach_target.h.
#pragma once
// AVX3_ZEN4, AVX3_SPR and AVX10_2 by number: Highway 1.0.3 does not know their names.
#define QKV_NEWER_X86_TARGETS ((1LL << 6) | (1LL << 4) | (1LL << 3))
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | QKV_NEWER_X86_TARGETS | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
