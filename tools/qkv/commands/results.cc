#include "qkv/commands/results.h"

#include "qkv/views.h"

namespace qkv::cli {

namespace {

class Request {
 public:
  Request(const Problem& p, const std::string& prefix, Results& results)
      : problem_(p),
        prefix_(prefix),
        results_(results),
        rows_{p.sizes.batch, p.sizes.heads, p.sizes.queries},
        sum_(sum_type(p)) {
    if (p.packed) rows_ = {p.inputs.query.shape[0], p.sizes.heads};
  }

  Requested make(const Wanted& w) {
    const Sizes& s = problem_.sizes;
    Requested r;
    Outputs& out = r.outputs;
    if (problem_.has_values) out.out = add("out", problem_.inputs.query.dtype, with(s.value_dim));
    if (w.lse) out.lse = add("lse", sum_, rows_);
    if (w.weights) out.weights = add("weights", sum_, {s.batch, s.heads, s.queries, s.keys});
    if (w.stats) statistics(out.rows);
    else out.rows.visible_keys = results_.add("", DType::kInt32, rows_).as<int32_t>();  // for the rate
    if (w.top > 0) {
      out.rows.top_weights = add("top_weights", DType::kFloat32, with(w.top)).as<float>();
      out.rows.top_indices = add("top_indices", DType::kInt32, with(w.top)).as<int32_t>();
    }
    if (w.received) {
      r.received = add("received", DType::kFloat64, {s.batch, s.heads, s.keys}).as<double>();
      out.row_max = results_.add("", sum_, rows_);
      out.row_sum = results_.add("", sum_, rows_);
    }
    return r;
  }

 private:
  View<void> add(const char* name, DType dtype, std::vector<int64_t> shape) {
    return results_.add(prefix_ + name, dtype, std::move(shape));
  }
  View<float> floats(const char* name) { return add(name, DType::kFloat32, rows_).as<float>(); }
  View<int32_t> numbers(const char* name) { return add(name, DType::kInt32, rows_).as<int32_t>(); }
  std::vector<int64_t> with(int64_t last) const {
    auto shape = rows_;
    shape.push_back(last);
    return shape;
  }
  void statistics(RowStatistics& r) {
    r.entropy = floats("entropy");
    r.effective_keys = floats("effective_keys");
    r.max_weight = floats("max_weight");
    r.max_index = numbers("max_index");
    r.mean_distance = floats("mean_distance");
    r.visible_keys = numbers("visible_keys");
    if (problem_.attention.has_sinks() || problem_.attention.has_zero_key()) r.sink_share = floats("sink_share");
  }

  const Problem& problem_;
  const std::string& prefix_;
  Results& results_;
  std::vector<int64_t> rows_;
  DType sum_;
};

}  // namespace

View<void> Results::add(std::string name, DType dtype, std::vector<int64_t> shape) {
  arrays_.emplace_back(dtype, std::move(shape));
  names_.push_back(std::move(name));
  return arrays_.back().view();
}

void Results::add(std::string name, Array array) {
  arrays_.push_back(std::move(array));
  names_.push_back(std::move(name));
}

std::vector<NamedTensor> Results::named(int missing_axes) const {
  std::vector<NamedTensor> tensors;
  for (size_t n = 0; n < names_.size(); ++n) {
    if (!names_[n].empty()) tensors.push_back({names_[n], without_first_axes(arrays_[n].view(), missing_axes)});
  }
  return tensors;
}

Requested request(const Problem& p, const Wanted& wanted, const std::string& prefix, Results& results) {
  return Request(p, prefix, results).make(wanted);
}

}  // namespace qkv::cli
