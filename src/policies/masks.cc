// Keep and ignore masks: bytes that are read where they lie.
#include "policies/expect_name.h"
#include "qkv/policies.h"

namespace qkv {
namespace {

template <class M> class MaskPass final : public passes::Pattern {
 public:
  explicit MaskPass(M m) : Pattern(detail::describe(m)), mask_(m.mask) {}
  MaskPass(const Parameter& mask, const Inputs& in) : Pattern(flags(find_tensor(in, mask.name))), mask_(mask) {
    mask_.view = find_tensor(in, mask.name);
  }
  bool exact() const override { return false; }
  KeyRange keys(const Row& r) const override { return r.present; }
  bool sees(Site at) const override { return mask_.get<bool>(at.batch, at.head, at.row, at.column) == kKeep; }
  const Pattern* bind(const Inputs& in, passes::Arena& arena) const override { return arena.make(MaskPass(mask_, in)); }

  void hide(const Sites& t, uint8_t* visible) const override {
    const uint8_t* bytes = static_cast<const uint8_t*>(mask_.view.data);
    const int64_t step = mask_.view.shape[3] == 1 ? 0 : mask_.view.strides[3];
    for (int r = 0; r < t.rows; ++r) {
      const uint8_t* row = bytes + mask_.view.broadcast_offset(t.batch, t.head[r], t.row[r]);
      uint8_t* to = visible + int64_t{r} * t.row_stride;
      if (step == 1 && t.key_stride == 1) and_row(row + t.column[0], t.keys, to);
      else
        for (int j = 0; j < t.keys; ++j)
          to[int64_t{j} * t.key_stride] &= uint8_t((row[t.column[j] * step] != 0) == kKeep);
    }
  }

 private:
  static constexpr bool kKeep = std::is_same_v<M, KeepMask>;
  static passes::About flags(View<const void> mask) {
    passes::About a = detail::flags<M>();
    a.reads_head = mask.shape[1] != 1;
    return a;
  }
  /// The columns of a tile of the library follow each other.
  static void and_row(const uint8_t* row, int keys, uint8_t* to) {
    for (int j = 0; j < keys; ++j) to[j] &= uint8_t((row[j] != 0) == kKeep);
  }
  Parameter mask_;
};

}  // namespace

std::shared_ptr<const passes::Pattern> adapt_pattern(KeepMask p) {
  policies::expect_name(p.mask, "keep_mask");
  return std::make_shared<MaskPass<KeepMask>>(p);
}
std::shared_ptr<const passes::Pattern> adapt_pattern(IgnoreMask p) {
  policies::expect_name(p.mask, "ignore_mask");
  return std::make_shared<MaskPass<IgnoreMask>>(p);
}

}  // namespace qkv
