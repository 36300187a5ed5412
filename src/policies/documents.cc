// Packed documents. Where every document is one run of keys, which is the rule, a query sees one range: exact tiles, no mask.
#include <algorithm>
#include <span>

#include "policies/expect_name.h"
#include "qkv/policies.h"

namespace qkv {
namespace {

struct Run {
  int32_t document, first, last;  // columns [first, last)
};
bool by_document(const Run& a, const Run& b) { return a.document < b.document; }

class DocumentsPass final : public passes::Pattern {
 public:
  explicit DocumentsPass(Documents p) : Pattern(detail::describe(p)), p_(p) {}
  DocumentsPass(const Documents& p, const Inputs& in, passes::Arena& arena)
      : Pattern(detail::flags<Documents>()), p_(detail::bound(p, in)) {
    find_runs(arena);
  }
  bool exact() const override { return contiguous_; }
  KeyRange keys(const Row& r) const override {
    if (!contiguous_) return r.present;
    const std::span<const Run> runs = runs_of(r.batch);
    const Run wanted{p_.query_documents.get<int32_t>(r.batch, r.row), 0, 0};
    const auto run = std::lower_bound(runs.begin(), runs.end(), wanted, by_document);
    if (run == runs.end() || run->document != wanted.document) return {0, 0};
    return {run->first, run->last};
  }
  bool sees(Site at) const override { return p_.sees(at); }
  void hide(const Sites& t, uint8_t* visible) const override {
    for (int r = 0; r < t.rows; ++r) {
      const int32_t document = p_.query_documents.get<int32_t>(t.batch, t.row[r]);
      for (int j = 0; j < t.keys; ++j)
        visible[t.at(r, j)] &= uint8_t(p_.key_documents.get<int32_t>(t.batch, t.column[j]) == document);
    }
  }
  const Pattern* bind(const Inputs& in, passes::Arena& arena) const override {
    return arena.make(DocumentsPass(p_, in, arena));
  }

 private:
  /// Runs of equal ids of each batch entry, sorted by id; contiguous_ where no id has two.
  void find_runs(passes::Arena& arena) {
    const View<const void>& ids = p_.key_documents.view;
    const int64_t batches = ids.shape[0], keys = ids.shape[1];
    int64_t n = 0;
    for_each_run(batches, keys, [&](int64_t, const Run&) { ++n; });
    runs_ = arena.array_of<Run>(size_t(n));
    starts_ = arena.array_of<int64_t>(size_t(batches) + 1);
    n = 0;
    int64_t batch = 0;
    for_each_run(batches, keys, [&](int64_t b, const Run& run) {
      for (; batch < b;) starts_[++batch] = n;
      runs_[n++] = run;
    });
    while (batch < batches) starts_[++batch] = n;
    for (int64_t b = 0; b < batches && contiguous_; ++b) {
      Run* first = runs_ + starts_[b];
      Run* last = runs_ + starts_[b + 1];
      std::sort(first, last, by_document);
      const auto same = [](const Run& x, const Run& y) { return x.document == y.document; };
      contiguous_ = std::adjacent_find(first, last, same) == last;
    }
  }
  template <class F> void for_each_run(int64_t batches, int64_t keys, F f) const {
    for (int64_t b = 0; b < batches; ++b)
      for (int64_t j = 0; j < keys;) {
        const int32_t id = p_.key_documents.get<int32_t>(b, j);
        int64_t last = j + 1;
        while (last < keys && p_.key_documents.get<int32_t>(b, last) == id) ++last;
        f(b, Run{id, int32_t(j), int32_t(last)});
        j = last;
      }
  }
  std::span<const Run> runs_of(int32_t batch) const {
    const int64_t b = p_.key_documents.view.shape[0] == 1 ? 0 : batch;
    return {runs_ + starts_[b], size_t(starts_[b + 1] - starts_[b])};
  }

  Documents p_;
  Run* runs_ = nullptr;
  int64_t* starts_ = nullptr;
  bool contiguous_ = true;
};

}  // namespace

std::shared_ptr<const passes::Pattern> adapt_pattern(Documents p) {
  policies::expect_name(p.query_documents, "query_documents");
  policies::expect_name(p.key_documents, "key_documents");
  return std::make_shared<DocumentsPass>(p);
}

}  // namespace qkv
