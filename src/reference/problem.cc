#include "reference/problem.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "core/parallel.h"
#include "qkv/dropout.h"
#include "reference/specification.h"

namespace qkv::reference {
namespace {

class HeapArena final : public passes::Arena {
 public:
  ~HeapArena() override {
    while (!objects_.empty()) {
      objects_.back().destroy(objects_.back().place);
      ::operator delete(objects_.back().place, objects_.back().alignment);
      objects_.pop_back();
    }
  }

 private:
  struct Object {
    void* place;
    std::align_val_t alignment;
    void (*destroy)(void*);
  };
  void* allocate(size_t bytes, size_t alignment) override {
    objects_.push_back(
        {::operator new (bytes, std::align_val_t{alignment}), std::align_val_t{alignment}, [](void*) {}});
    return objects_.back().place;
  }
  void own(void* object, void (*destroy)(void*)) override {
    const auto at = std::find_if(objects_.begin(), objects_.end(), [&](const Object& o) { return o.place == object; });
    at->destroy = destroy;
  }
  std::vector<Object> objects_;
};

int64_t entry(const View<const int32_t>& numbers, int64_t b) { return numbers(numbers.shape[0] == 1 ? 0 : b); }

/// Elements along an axis, from the one at `first` on.
template <class T> std::vector<double> widened(const View<const void>& x, int64_t first, size_t axis) {
  std::vector<double> row(size_t(x.shape[axis]));
  const T* at = static_cast<const T*>(x.data) + first;
  for (double& value : row) {
    value = double(*at);
    at += x.strides[axis];
  }
  return row;
}

}  // namespace

Problem::Problem(const Attention& attention, const Inputs& in)
    : attention_(attention), in_(in), arena_(std::make_unique<HeapArena>()) {
  for (const auto& pattern : attention.patterns()) patterns_.push_back(specification_of(pattern)->bind(in, *arena_));
  for (const auto& score : attention.scores()) modifiers_.push_back(modifier_of(*score, in, *arena_));
}
Problem::~Problem() = default;

int64_t Problem::batches() const { return packed() ? in_.cumulative_query_lengths.shape[0] - 1 : in_.query.shape[0]; }

int64_t Problem::queries(int64_t b) const {
  if (!packed()) return in_.query.shape[2];
  return in_.cumulative_query_lengths(b + 1) - in_.cumulative_query_lengths(b);
}

int64_t Problem::columns(int64_t b) const {
  if (!packed()) return in_.key.shape[2];
  return in_.cumulative_key_lengths(b + 1) - in_.cumulative_key_lengths(b);
}

int64_t Problem::valid_keys(int64_t b) const { return in_.key_lengths ? in_.key_lengths(b) : columns(b); }

std::vector<double> Problem::row(const View<const void>& x, const View<const int32_t>& starts, int64_t b, int64_t h,
                                 int64_t i) const {
  stop_point(stop_);
  const int64_t first = packed() ? x.offset(starts(b) + i, h) : x.offset(b, h, i);
  const auto last_axis = size_t(x.rank - 1);
  switch (x.dtype) {
    case DType::kFloat64: return widened<double>(x, first, last_axis);
    case DType::kFloat16: return widened<float16>(x, first, last_axis);
    case DType::kBFloat16: return widened<bfloat16>(x, first, last_axis);
    default: return widened<float>(x, first, last_axis);
  }
}
std::vector<double> Problem::query(int64_t b, int64_t h, int64_t i) const {
  return row(in_.query, in_.cumulative_query_lengths, b, h, i);
}
std::vector<double> Problem::key(int64_t b, int64_t h, int64_t j) const {
  return row(in_.key, in_.cumulative_key_lengths, b, key_head(h), j);
}
std::vector<double> Problem::value(int64_t b, int64_t h, int64_t j) const {
  return row(in_.value, in_.cumulative_key_lengths, b, key_head(h), j);
}

int64_t Problem::key_head(int64_t h) const {
  const int64_t key_heads = in_.key.shape[1];
  return attention_.heads() == HeadMapping::kTiled ? h % key_heads : h / (query_heads() / key_heads);
}

double Problem::scale() const {
  if (const auto asked = attention_.scale()) return *asked;
  return head_dim() == 0 ? 1.0 : 1.0 / std::sqrt(double(head_dim()));
}

int64_t Problem::key_start(int64_t b) const { return in_.key_start ? entry(in_.key_start, b) : 0; }

int64_t Problem::offset(int64_t b) const {
  if (in_.query_offset) return entry(in_.query_offset, b);
  return attention_.align() == Align::kBottomRight ? key_start(b) + valid_keys(b) - queries(b) : 0;
}

Site Problem::site(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return {int32_t(b), int32_t(h), int32_t(i), int32_t(j), int32_t(i + offset(b)), int32_t(j + key_start(b))};
}

bool Problem::sees(Site at) const {
  if (at.column >= valid_keys(at.batch)) return false;
  for (const auto* pattern : patterns_)
    if (!pattern->sees(at)) return false;
  for (const auto& modifier : modifiers_)
    if (modifier->hides(at)) return false;
  return true;
}

double Problem::dropout(Site at) const {
  const double p = attention_.dropout();
  if (p == 0 || !(in_.dropout_seed || in_.dropout_keep)) return 1;
  bool keeps;
  if (in_.dropout_keep) {
    Parameter keep{"dropout_keep"};
    keep.view = in_.dropout_keep;
    keeps = keep.get<bool>(at.batch, at.head, at.row, at.column);
  } else {
    keeps = dropout_keeps(*in_.dropout_seed, dropout_threshold(p), at);
  }
  return keeps && p < 1 ? 1 / (1 - p) : 0;
}

std::vector<double> Problem::keyless_scores(int64_t h) const {
  std::vector<double> scores;
  if (attention_.has_sinks()) {
    Parameter sinks{"sinks"};
    sinks.view = in_.sinks;
    scores.push_back(sinks.get<double>(h));
  }
  if (attention_.has_zero_key()) scores.push_back(0);
  return scores;
}

}  // namespace qkv::reference
