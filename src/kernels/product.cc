// A tile of the result stays in registers while the summed index runs: rows by broadcast, columns from a packed panel.
// See product.h.
#include "kernels/product.h"

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/product.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

/// The most rows of a tile of nv vectors: all sums fit the registers, and are enough to hide the latency of an addition.
constexpr int MostRows(int nv) { return kManyRegisters ? 8 : nv == 3 ? 4 : 6; }
constexpr int kSlab = kManyRegisters ? 24 : 12;  // a multiple of MostRows() of any panel
constexpr int64_t kLine = 64;
constexpr int64_t kAhead = 1536;  // bytes of a panel that one or two rows ask for before they need them

constexpr int64_t kPackRows = 8, kPackAhead = 16;

/// A tile of the result, or the same rows of neighbouring panels.
template <class T> struct TileOf {
  const T* a;                       // first row
  int64_t a_stride, a_step, depth;  // from row to row, along the summed index, its length
  const T* b;                       // panel
  int64_t b_step;                   // to the next panel
  const T* bias;                    // of its first column
  int64_t bias_step;                // to that of the next panel
  T* c;
  int64_t c_stride;
  int64_t columns;  // that exist, from the first of the panel on
  bool add;
};

HWY_INLINE void PrefetchBytes(const void* from, int64_t first, int64_t last) {
  for (int64_t at = first; at < last; at += kLine) hwy::Prefetch(static_cast<const char*>(from) + at);
}

/// The same for columns that end inside a panel; sums {rows, width}.
template <class T>
HWY_NOINLINE void StorePart(const T* sums, int64_t rows, int64_t width, const T* bias, T* c, int64_t c_stride,
                            int64_t columns, bool add) {
  for (int64_t r = 0; r < rows; ++r, sums += width, c += c_stride) {
    for (int64_t i = 0; i < columns; ++i) {
      const T sum = sums[i] + bias[i];
      c[i] = add ? sum + c[i] : sum;
    }
  }
}

/// c = sums + bias (+ c) for rows of a panel.
template <int kRows, int nv, class T>
HWY_INLINE void StoreRows(const hn::Vec<Full<T>> (&sums)[kRows][nv], const T* bias, T* c, int64_t c_stride,
                          int64_t columns, bool add) {
  const Full<T> d;
  constexpr int64_t n = HWY_LANES(T);
  if (HWY_UNLIKELY(columns < nv * n)) {
    HWY_ALIGN T lines[kRows * nv * n];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) hn::Store(sums[r][v], d, lines + (r * nv + v) * n);
    return StorePart(lines, kRows, nv * n, bias, c, c_stride, columns, add);
  }
  hn::Vec<decltype(d)> shift[nv];
#pragma GCC unroll 3
  for (int v = 0; v < nv; ++v) shift[v] = hn::LoadU(d, bias + v * n);
  if (add) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, c += c_stride)
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v)
        hn::StoreU(hn::Add(hn::Add(sums[r][v], shift[v]), hn::LoadU(d, c + v * n)), d, c + v * n);
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, c += c_stride)
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) hn::StoreU(hn::Add(sums[r][v], shift[v]), d, c + v * n);
  }
}

/// kRows rows of one panel.
template <int kRows, int nv, class T> void Tile(const TileOf<T>& t) {
  const Full<T> d;
  const int64_t n = int64_t(hn::Lanes(d));
  for (int r = 0; r < kRows; ++r) PrefetchBytes(t.c + r * t.c_stride, 0, nv * n * int64_t{sizeof(T)});
  hn::Vec<decltype(d)> sum[kRows][nv];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) sum[r][v] = hn::Zero(d);
  const T* HWY_RESTRICT a = t.a;
  const T* HWY_RESTRICT b = t.b;
  const int64_t stride = t.a_stride, step = t.a_step;
  for (int64_t k = t.depth; k != 0; --k) {
    hn::Vec<decltype(d)> row[nv];
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) row[v] = hn::Load(d, b + v * n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, a[r * stride]);
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) sum[r][v] = hn::MulAdd(x, row[v], sum[r][v]);
    }
    b += nv * n;
    a += step;
  }
  StoreRows(sum, t.bias, t.c, t.c_stride, t.columns, t.add);
}

/// One or two rows of kPanels neighbouring panels: alone, a panel has too few sums to hide their latency. The matrix comes
/// from memory, so it is asked for early.
template <int kRows, int kPanels, int nv, class T> void FewRows(const TileOf<T>& t) {
  const Full<T> d;
  const int64_t n = int64_t(hn::Lanes(d)), width = nv * n;
  hn::Vec<decltype(d)> sum[kPanels][kRows][nv];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) sum[p][r][v] = hn::Zero(d);
  const T* b[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) b[p] = t.b + p * t.b_step;
  const auto step = [&](int64_t k) {
    hn::Vec<decltype(d)> x[kRows];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) x[r] = hn::Set(d, t.a[r * t.a_stride + k]);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) {
        const auto row = hn::Load(d, b[p] + v * n);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sum[p][r][v] = hn::MulAdd(x[r], row, sum[p][r][v]);
      }
      b[p] += width;
    }
  };
  constexpr int64_t kBytes = 2 * nv * int64_t{sizeof(T)} * HWY_LANES(T);
  int64_t k = 0;
  for (; k + 2 <= t.depth; k += 2) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) PrefetchBytes(b[p], kAhead, kAhead + kBytes);
    step(k);
    step(k + 1);
  }
  if (k < t.depth) step(k);
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
    StoreRows(sum[p], t.bias + p * t.bias_step, t.c + p * width, t.c_stride, t.columns - p * width, t.add);
}

template <int nv, int kRows, class T> HWY_INLINE void TileOfRows(int64_t rows, const TileOf<T>& t) {
  if (rows == kRows) return Tile<kRows, nv>(t);
  if constexpr (kRows > 1) TileOfRows<nv, kRows - 1>(rows, t);
}

/// All rows of one panel, in tiles of nearly equal size. Each asks for its share of the next panel.
template <int nv, class T> HWY_INLINE void PanelTiles(TileOf<T> t, int64_t rows, const T* next, int64_t next_bytes) {
  constexpr int kMost = MostRows(nv);
  const int64_t tiles = ceil_div(rows, kMost), small = rows / tiles, large = rows % tiles;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t here = small + (i < large);
    PrefetchBytes(next, next_bytes * i / tiles / kLine * kLine, next_bytes * (i + 1) / tiles);
    TileOfRows<nv, kMost>(here, t);
    t.a += here * t.a_stride;
    t.c += here * t.c_stride;
  }
}

/// Calls f with the number of vectors of a panel, as a constant.
template <class F> HWY_INLINE void WithVectors(int64_t vectors, F f) {
  if (vectors == 3) return f(std::integral_constant<int, 3>());
  if (vectors == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}

template <class T> HWY_ALIGN constexpr T kZeros[3 * HWY_LANES(T)] = {};  // where there is no bias

template <class T> HWY_INLINE TileOf<T> AtPanel(const Product<T>& p, int64_t panel, int64_t a_stride, int64_t a_step) {
  const int64_t column = p.panels.first_column(panel), inside = column - p.panels.first_column(p.first);
  return {p.x,
          a_stride,
          a_step,
          p.depth,
          p.b + column * p.pitch,
          (p.panels.first_column(panel + 1) - column) * p.pitch,
          p.bias ? p.bias + inside : kZeros<T>,
          p.bias ? p.panels.first_column(panel + 1) - column : 0,
          p.y + inside,
          p.y_stride,
          p.panels.columns - column,
          p.add};
}
template <class T> HWY_INLINE int64_t VectorsOf(const Product<T>& p, int64_t panel) {
  return p.panels.vectors_before(panel + 1) - p.panels.vectors_before(panel);
}

/// Panels [panel, returned) of rows that are one or two.
template <int kRows, class T> int64_t FewRowsOfPanels(const Product<T>& p, int64_t panel) {
  const int64_t vectors = VectorsOf(p, panel);
  const TileOf<T> t = AtPanel(p, panel, p.x_stride, 1);
  constexpr int kMost = 4 / kRows;
  int64_t alike = 1;
  while (alike < kMost && panel + alike < p.last && VectorsOf(p, panel + alike) == vectors) ++alike;
  WithVectors(vectors, [&](auto nv) {
    if (alike == 4) FewRows<kRows, kMost, nv>(t);
    else if (alike >= 2) FewRows<kRows, 2, nv>(t), alike = 2;
    else FewRows<kRows, 1, nv>(t);
  });
  return panel + alike;
}

template <class T> void Multiply(const Product<T>& p) {
  if (p.rows <= 2) {
    for (int64_t i = p.first; i < p.last;)
      i = p.rows == 1 ? FewRowsOfPanels<1>(p, i) : p.rows == 2 ? FewRowsOfPanels<2>(p, i) : p.last;
    return;
  }
  for (int64_t i = p.first; i < p.last; ++i) {
    const int64_t next = i + 1 < p.last ? VectorsOf(p, i + 1) * p.panels.vector * p.depth : 0;
    WithVectors(VectorsOf(p, i), [&](auto nv) {
      const TileOf<T> t = AtPanel(p, i, p.x_stride, 1);
      PanelTiles<nv>(t, p.rows, t.b + t.b_step, next * int64_t{sizeof(T)});
    });
  }
}

template <class T> void MultiplySlabs(const Product<T>& p) {
  for (int64_t i = p.first; i < p.last; ++i) {
    WithVectors(VectorsOf(p, i), [&](auto nv) {
      TileOf<T> t = AtPanel(p, i, 1, kSlab);
      for (int64_t r = 0; r < p.rows; r += kSlab) {
        PanelTiles<nv>(t, std::min<int64_t>(kSlab, p.rows - r), t.b, 0);
        t.a += kSlab * p.pitch;
        t.c += kSlab * p.y_stride;
      }
    });
  }
}

/// to[r][c] = from[r][c] for kMoves vectors of columns.
template <int kMoves, class D, class T = hn::TFromD<D>>
HWY_INLINE void CopyRows(D d, const T* from, int64_t stride, int64_t rows, T* to) {
  const int64_t n = int64_t(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r, from += stride, to += kMoves * n)
#pragma GCC unroll 3
    for (int v = 0; v < kMoves; ++v) hn::StoreU(hn::LoadU(d, from + v * n), d, to + v * n);
}
template <class T>
HWY_INLINE void CopySlab(const T* from, int64_t stride, int64_t rows, int64_t columns, int64_t width, T* to) {
  const Full<T> d;
  const int64_t n = int64_t(hn::Lanes(d));
  if (columns >= width) {
    if (width == 3 * n) return CopyRows<3>(d, from, stride, rows, to);
    if (width == 2 * n) return CopyRows<2>(d, from, stride, rows, to);
    if (2 * width == 3 * n) return CopyRows<3>(hn::CappedTag<T, (HWY_LANES(T) + 1) / 2>(), from, stride, rows, to);
  }
  for (int64_t r = 0; r < rows; ++r, from += stride, to += width)
    for (int64_t c = 0; c < width; ++c) to[c] = c < columns ? from[c] : T(0);
}

/// A few rows of all slabs at a time, so that a line that two slabs share is read once; later rows are asked for early, since
/// they are too far apart for the processor to guess them.
template <class T>
void PackSlabs(const T* from, int64_t stride, int64_t rows, int64_t columns, int64_t width, T* to, int64_t pitch) {
  for (int64_t r = 0; r < rows; r += kPackRows) {
    const int64_t here = std::min(kPackRows, rows - r);
    const T* row = from + r * stride;
    for (int64_t i = kPackAhead; i < kPackAhead + here && r + i < rows; ++i)
      PrefetchBytes(row + i * stride, 0, columns * int64_t{sizeof(T)});
    for (int64_t c = 0; c < columns; c += width)
      CopySlab(row + c, stride, here, columns - c, width, to + c * pitch + r * width);
  }
}

/// Columns of nv vectors.
template <int nv, class D, class T>
HWY_INLINE void SumVectors(D d, const T* from, int64_t stride, int64_t rows, T* sums) {
  const int64_t n = int64_t(hn::Lanes(d));
  hn::Vec<D> sum[nv];
#pragma GCC unroll 4
  for (int v = 0; v < nv; ++v) sum[v] = hn::Zero(d);
  for (int64_t r = 0; r < rows; ++r, from += stride)
#pragma GCC unroll 4
    for (int v = 0; v < nv; ++v) sum[v] = hn::Add(sum[v], hn::LoadU(d, from + v * n));
#pragma GCC unroll 4
  for (int v = 0; v < nv; ++v) hn::StoreU(sum[v], d, sums + v * n);
}

template <class T> void ColumnSums(const T* from, int64_t stride, int64_t rows, int64_t columns, T* sums) {
  const Full<T> d;
  const hn::CappedTag<T, 1> d1;
  const int64_t n = int64_t(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 4 * n <= columns; c += 4 * n) SumVectors<4>(d, from + c, stride, rows, sums + c);
  for (; c + n <= columns; c += n) SumVectors<1>(d, from + c, stride, rows, sums + c);
  for (; c < columns; ++c) SumVectors<1>(d1, from + c, stride, rows, sums + c);
}

template <class T> ProductKernels<T> ProductTable() {
  return {hwy::TargetName(HWY_TARGET),
          int(hn::Lanes(Full<T>())),
          kSlab,
          Multiply<T>,
          MultiplySlabs<T>,
          PackSlabs<T>,
          ColumnSums<T>};
}

}  // namespace

const ProductKernels<float>* ProductFloat() {
  static const ProductKernels<float> table = ProductTable<float>();
  return &table;
}
const ProductKernels<double>* ProductDouble() {
  static const ProductKernels<double> table = ProductTable<double>();
  return &table;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(ProductFloat);
HWY_EXPORT(ProductDouble);
template <> const ProductKernels<float>& product_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(ProductFloat)(); }
template <> const ProductKernels<double>& product_kernels<double>() { return *HWY_DYNAMIC_DISPATCH(ProductDouble)(); }
}  // namespace qkv::kernels
#endif
