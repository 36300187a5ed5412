// Views of tensors with other axes, and their elements as numbers.
#pragma once
#include <initializer_list>
#include <vector>

#include "qkv/io.h"
#include "qkv/view.h"

namespace qkv::cli {

/// The same elements with other axes: each says which old one it is, -1 for a new one of size 1.
View<const void> with_axes(View<const void>, std::initializer_list<int> axes);
/// {H, L, D} and {L, D} as one batch entry (and one head).
View<const void> as_four_axes(View<const void>);
/// Without the first `count` axes, which have size 1; at least one axis stays.
View<const void> without_first_axes(View<const void>, int count);

/// One element of a floating tensor. Throws DtypeError for others.
double element(View<const void>, int64_t a, int64_t b, int64_t c, int64_t d);
/// One row {n} of {.., .., .., n}.
std::vector<double> as_doubles(View<const void>, int64_t a, int64_t b, int64_t c);
/// How many elements of a floating tensor are NaN.
int64_t count_nan(View<const void>);
/// All of it, contiguous, rounded to that floating type.
Array to_type(View<const void>, DType);
/// Whether two floating tensors of one shape have the same numbers; NaN equals NaN.
bool same_numbers(View<const void>, View<const void>);

}  // namespace qkv::cli
