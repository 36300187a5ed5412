#include "qkv/commands/examples.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

#define QKV_W1 "--q 1,2;2,1 --k 2,1;1,2 --v 3,0;0,3"
#define QKV_W2 "--x 1,0;0,1 --wq 1,0;0,1 --wk 1,0;0,1 --wv 1,0;0,1 --heads 1"
#define QKV_W3 "--q 1,2;2,1;0,1 --k 2,1;1,0;0,3 --v 1,0;0,2;3,3"
#define QKV_UNIT "1,0,0,0;0,1,0,0;0,0,1,0;0,0,0,1"
#define QKV_W21 "--x 1,0,2,0;0,1,0,2;1,1,1,1 --wq " QKV_UNIT " --wk " QKV_UNIT " --wv " QKV_UNIT " --heads 2"
// sin(p / 10000^(2 i / 8)) and its cosine, i = 0 to 3, of the positions p = 3, 20 and 10, 27.
#define QKV_W13                                                                                       \
  "--q 0.1411200081,-0.9899924966,0.2955202067,0.9553364891,0.0299955002,0.9995500337,0.0029999955,"  \
  "0.9999955000;0.9129452507,0.4080820618,0.9092974268,-0.4161468365,0.1986693308,0.9800665778,"      \
  "0.0199986667,0.9998000067 --k -0.5440211109,-0.8390715291,0.8414709848,0.5403023059,0.0998334166," \
  "0.9950041653,0.0099998333,0.9999500004;0.9563759284,-0.2921388087,0.4273798802,-0.9040721420,"     \
  "0.2667314367,0.9637708964,0.0269967196,0.9996355221"

constexpr Example kExamples[] = {
    {"W1", "two tokens with q, k and v", QKV_W1},
    {"W1c", "W1, causal: a token sees itself and what came before", QKV_W1 " --causal"},
    {"W1s", "W1 without the scale", QKV_W1 " --scale 1"},
    {"W2", "two tokens and their projections, all identities", QKV_W2},
    {"W2c", "W2, causal", QKV_W2 " --causal"},
    {"W2i", "W2 with the causal mask the wrong way round: query 1 sees nothing", QKV_W2 " --keep-mask 0,1;0,0"},
    {"W2sa", "W2 with the scale 1", QKV_W2 " --scale 1"},
    {"W2sb", "W2 with the scale 1/2", QKV_W2 " --scale 0.5"},
    {"W2sc", "W2 with the scale sqrt(2), the wrong way round", QKV_W2 " --scale 1.4142135623730951"},
    {"W3", "three tokens without any symmetry, so that it tells faults apart", QKV_W3},
    {"W3c", "W3, causal", QKV_W3 " --causal"},
    {"W3p", "W3, whose last key is padding", QKV_W3 " --lengths 2"},
    {"W4s", "a fault on W3: no scale", QKV_W3 " --scale 1"},
    {"W4d", "a fault on W3: divided by D instead of sqrt(D)", QKV_W3 " --scale 0.5"},
    {"W4q", "a fault on W3: q and k swapped", "--q 2,1;1,0;0,3 --k 1,2;2,1;0,1 --v 1,0;0,2;3,3"},
    {"W4i", "a fault on W3: the causal mask inverted", QKV_W3 " --ignore-mask 1,0,0;1,1,0;1,1,1"},
    {"W4f", "a fault on W3, causal: hidden scores set to 0, not left out",
     "--q 1 --k 2.8284271247461903;0;0 --scale 1"},
    {"W5a", "a key hidden by adding 0: not at all", "--q 1 --k 0.7071067811865476;0 --scale 1 --bias 0,0"},
    {"W5b", "a key hidden by adding -10: it keeps a little", "--q 1 --k 0.7071067811865476;0 --scale 1 --bias 0,-10"},
    {"W5c", "a key hidden by adding -1e4", "--q 1 --k 0.7071067811865476;0 --scale 1 --bias 0,-1e4"},
    {"W5d", "a key hidden by adding -1e9", "--q 1 --k 0.7071067811865476;0 --scale 1 --bias 0,-1e9"},
    {"W6", "scores of ln 4 and 0", "--q 1 --k 1.3862943611198906;0 --scale 1"},
    {"W13", "positions 3 and 10 are as far apart as 20 and 27: their dot products are the same", QKV_W13},
    {"W14", "two keys hidden by adding -1e9 in float16, where that is -inf",
     "--q 1 --k 0.5;0;0 --scale 1 --bias 0,-inf,-inf"},
    {"W21", "three tokens of four numbers, cut into two heads", QKV_W21},
    {"W21c", "W21, causal", QKV_W21 " --causal"},
    {"W22", "a fault on W21: the scale of the whole width, 1/sqrt(4)", QKV_W21 " --scale 0.5"},
    {"W22c", "W22, causal", QKV_W21 " --scale 0.5 --causal"},
};

#undef QKV_W1
#undef QKV_W2
#undef QKV_W3
#undef QKV_W13
#undef QKV_UNIT
#undef QKV_W21

}  // namespace

std::span<const Example> examples() { return kExamples; }

const Example& find_example(const char* name) {
  const auto* found = std::find_if(std::begin(kExamples), std::end(kExamples),
                                   [&](const Example& e) { return std::string_view(e.name) == name; });
  if (found != std::end(kExamples)) return *found;
  std::vector<const char*> names;
  for (const Example& e : kExamples) names.push_back(e.name);
  throw OptionError(fmt::format("--example {}: expected one of {}", name, fmt::join(names, ", ")));
}

}  // namespace qkv::cli
