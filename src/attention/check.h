// Every check of a call's arguments: sizes, types, options. See bind.h for what comes out.
#pragma once
#include <cstdint>

#include "attention/bind.h"

namespace qkv::check {

/// A view is usable: there is data behind it, aligned to its elements.
void data(const char* function, const char* name, View<const void>);
/// query, key and value: rank, types, heads, sizes. Fills the sizes of `b`. Returns the values: those of the inputs, or, where
/// none are given and none are needed, values without columns.
View<const void> shapes(const char* function, const Inputs&, Values, Bound& b);
/// Where each sequence lies and where it stands. Throws where an alignment is needed and none is given.
std::span<const Entry> entries(const char* function, const Attention&, const Inputs&, const Bound&, CallArena&);
/// Masks, bias, slopes, sinks, documents: type and shape.
void tensors(const char* function, const Inputs&, const Bound&);
/// Dropout acts where the call brings a seed or a keep tensor.
Dropout dropout(const char* function, const Attention&, const Inputs&, const Bound&);
/// A tensor that the attention does not name, or names and does not get.
void names(const char* function, const Attention&, const Inputs&);

}  // namespace qkv::check
