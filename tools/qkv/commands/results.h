// What attend computes and writes.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/io.h"
#include "qkv/problem.h"

namespace qkv::cli {

/// What is asked for beside out.
struct Wanted {
  /// Whether more than the output is asked for.
  bool anything_else() const { return lse || weights || stats || received || top > 0; }
  bool lse = false, weights = false, stats = false, received = false;
  int top = 0;
};

/// Arrays that the library writes into, with the names they get in the file; of an empty name they are not written.
class Results {
 public:
  View<void> add(std::string name, DType dtype, std::vector<int64_t> shape);
  void add(std::string name, Array array);
  /// Files get as many axes as q had.
  std::vector<NamedTensor> named(int missing_axes) const;

 private:
  std::deque<Array> arrays_;
  std::vector<std::string> names_;
};

/// The arrays of one layer.
struct Requested {
  Outputs outputs;
  View<double> received{};  ///< {B, H, S}
};
/// Their names begin with `prefix`: "layer4.".
Requested request(const Problem&, const Wanted&, const std::string& prefix, Results&);

}  // namespace qkv::cli
