// What the drivers call: plain functions over arrays, one set an instruction set and an arithmetic type T (float, also for
// the 16-bit storage types, or double). No threads, no policies, no knowledge of attention's options.
//
// Legend. lanes: rows of a tile, padded to a multiple of 8 and of the vector; the stride of everything transposed.
//   s, p   scores, then unnormalised weights, of a tile of queries against some keys of one block
//   m      running maximum of the scores (a true -inf at first)     } Milakov & Gimelshein 2018
//   l      running sum of exp(s - m)                                }
//   o      running sum of exp(s - m) * value
// Scores stay in natural units: log2 e meets the difference s - m inside the exponential, where near scores leave no rounding
// error. Folded into the query it would round scores of 60000 to 1/128, and weights to 1e-3.
// All orders of summation are fixed: along d in order within a lane; along keys in order, block by block. That is what
// makes prefill, chunks and decode equal to the last bit.
#pragma once
#include <cstdint>

#include "qkv/pass.h"

namespace qkv::kernels {

inline constexpr int kKeyBlock = 128;  ///< keys of a block, at absolute positions
inline constexpr int kChunk =
    2048;  ///< keys after which running sums start afresh and are merged, at absolute positions
inline constexpr int kMaxLanes = 48;  ///< no tile is wider; words of masks have 64 bits

/// Bit r of word j: row r sees key j. One word a key of the part of a block that is visited. Null: everybody sees everything.
using Words = const uint64_t*;

/// Moves rows between storage and arithmetic.
template <class T> struct RowKernels {
  /// dst {rows, columns}, contiguous columns, from any type and strides. float16 and bfloat16 widen exactly.
  void (*load)(const void* src, DType type, int64_t row_stride, int64_t column_stride, int rows, int columns, T* dst,
               int64_t dst_stride);
  /// The reverse; to nearest even.
  void (*store)(const T* src, int64_t src_stride, int rows, int columns, void* dst, DType type, int64_t row_stride,
                int64_t column_stride);
  /// dst[c * dst_stride + r] = src[r * src_stride + c] * factor.  src {rows, columns}, dst {columns, >= rows}
  void (*transpose)(const T* src, int64_t src_stride, int rows, int columns, T factor, T* dst, int64_t dst_stride);
};

/// Lanes are queries.
template <class T> struct PrefillKernels {
  const char* instruction_set;
  int vector;      ///< elements of a vector
  int query_tile;  ///< most rows of a tile

  /// s[j][r] = sum over d of q[d][r] * k[j][d].   q {head_dim, lanes}, k {keys, head_dim}, s {keys, lanes}
  void (*scores)(const T* q, int lanes, const T* k, int64_t k_stride, int keys, int head_dim, T* s);
  /// -inf where hidden; m, and alpha = exp(old m - m), which scales what was summed before.
  void (*raise_max)(T* s, int keys, int lanes, Words visible, T* m, T* alpha);
  /// s becomes p = exp(s - m), exactly 0 where s is -inf; l = l * alpha + sum of p.
  void (*exponentiate)(T* s, int keys, int lanes, const T* m, const T* alpha, T* l);
  /// o[e][r] = o[e][r] * alpha[r] + sum over j of p[j][r] * v[j][e].   v {keys, value_dim}, o {value_dim, lanes}
  /// Where `visible` is given, v[j] is not read into rows that do not see j: for values that are not finite.
  void (*accumulate)(T* o, const T* p, int lanes, const T* v, int64_t v_stride, int keys, int value_dim, const T* alpha,
                     Words visible);
  bool (*all_finite)(const T* v, int64_t v_stride, int keys, int value_dim);
  /// p[j][r] times `factor` where bit r of keep[j] is set, 0 elsewhere.
  void (*drop)(T* p, int keys, int lanes, Words keep, T factor);

  /// (m, l, o) := those of the earlier keys and of the later ones together. An empty side changes nothing.
  void (*merge)(T* m, T* l, T* o, const T* later_m, const T* later_l, const T* later_o, int value_dim, int lanes);
  /// One more term exp(sink) that belongs to no key; sink {lanes}.
  void (*merge_sink)(T* m, T* l, T* o, const T* sink, int value_dim, int lanes);
  /// o = o / l, +0 where l is 0.
  void (*normalise)(const T* l, T* o, int value_dim, int lanes);
  /// w[j][r] = exp(s[j][r] - m[r]) / l[r], 0 where l is 0.
  void (*weights)(T* s, int keys, int lanes, const T* m, const T* l);
};

/// Few rows: lanes are keys in the scores and value dimensions in the sums, so each key and value is read once for all
/// rows. The same operations on every number in the same order as PrefillKernels.
template <class T> struct DecodeKernels {
  /// s[r][j].   q {rows, head_dim}, k {keys, head_dim}, s {rows, kKeyBlock}; keys are padded to a multiple of 8
  void (*scores)(const T* q, int rows, const T* k, int64_t k_stride, int keys, int head_dim, T* s, T* scratch);
  void (*raise_max)(T* s, int rows, int keys, Words visible, T* m, T* alpha);
  void (*exponentiate)(T* s, int rows, int keys, const T* m, const T* alpha, T* l);
  /// o {rows, value_dim}
  void (*accumulate)(T* o, const T* p, int rows, const T* v, int64_t v_stride, int keys, int value_dim, const T* alpha,
                     Words visible);
  static constexpr int kMaxRows = 8;
  /// Elements that scores() needs as scratch.
  static constexpr int64_t scratch(int head_dim) { return int64_t{16} * head_dim; }
};

/// The backward pass; lanes are keys. Its products of scores and of dk, dv are those of PrefillKernels with the roles of queries
/// and keys exchanged: s {rows, lanes} = scores(k^T, q), dv^T += accumulate(p, dout).
/// `seen` has the roles exchanged too: bit j of word r says whether row r sees the key of lane j.
template <class T> struct BackwardKernels {
  /// s = -inf where hidden.
  void (*hide)(T* s, int rows, int lanes, Words seen);
  /// s becomes p = exp(s - m) * share, and dp becomes ds = p * (dp - delta), exactly +0 where s is -inf.  m, share, delta {rows}
  /// Where `keep` is given, p and dp are what dropout leaves of them: times `factor` where bit j of keep[r] is set, else 0.
  void (*gradients)(T* s, T* dp, int rows, int lanes, const T* m, const T* share, const T* delta, Words keep, T factor);
  /// o[r][e] += sum over j of ds[r][j] * k[j][e].   ds {rows, lanes}, k {keys, dim}, o {rows, dim}
  /// Where `seen` is given, k[j] is not read into rows that do not see it: for keys that are not finite.
  void (*add_rows)(T* o, int64_t o_stride, const T* ds, int lanes, int rows, const T* k, int64_t k_stride, int keys,
                   int dim, Words seen);
  /// dots[r] = sum over e of x[r][e] * y[r][e]
  void (*dot_rows)(const T* x, int64_t x_stride, const T* y, int64_t y_stride, int rows, int dim, T* dots);
  /// to[i * step] += from[i] of n numbers.
  void (*add)(T* to, int64_t step, const T* from, int n);
};

/// Rows of queries whose weights are dropped or kept; keys from position `key` on, a multiple of 8.
struct Draws {
  uint64_t seed, threshold;  // see dropout_keeps()
  int32_t batch, key;
  int rows;
  const int32_t *head, *query;  // {rows}
};
/// Bit j of keep[r * words + n]: dropout_keeps() for row r and the key at position key + 64 n + j.
using DropoutKernel = void (*)(const Draws&, int words, uint64_t* keep);

/// The functions for the best instruction set of this machine.
template <class T> const RowKernels<T>& row_kernels();
template <class T> const PrefillKernels<T>& prefill_kernels();
template <class T> const DecodeKernels<T>& decode_kernels();
template <class T> const BackwardKernels<T>& backward_kernels();
DropoutKernel dropout_kernel();

}  // namespace qkv::kernels
