// Attention over three tokens, where padding hides the last one.
#include <qkv/attention.h>

#include <cstdio>

int main() {
  float q[] = {1, 0, 0, 1, 1, 1};  // {batch 1, heads 1, queries 3, head size 2}
  float k[] = {1, 0, 0, 1, 1, 1};
  float v[] = {10, 20, 30};           // {1, 1, keys 3, value size 1}
  bool keep[] = {true, true, false};  // {1, 1, 1, 3}: true may be attended to; size 1 stands for every query
  float out[3], lse[3];

  qkv::Attention attention;
  attention.visible(qkv::KeepMask{});
  qkv::forward(attention,
               {.query = qkv::View<float>(q, {1, 1, 3, 2}),
                .key = qkv::View<float>(k, {1, 1, 3, 2}),
                .value = qkv::View<float>(v, {1, 1, 3, 1}),
                .keep_mask = qkv::View<bool>(keep, {1, 1, 1, 3})},
               {.out = qkv::View<float>(out, {1, 1, 3, 1}), .lse = qkv::View<float>(lse, {1, 1, 3})});

  for (int i = 0; i < 3; ++i) std::printf("query %d: out %.4f, log-sum-exp %.4f\n", i, double(out[i]), double(lse[i]));
}
