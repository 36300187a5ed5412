#include "autograd/parameter_rows.h"

#include "core/format.h"

namespace qkv::nn {

Variable rows_of(Tape& tape, const char* function, const char* name, const Rows& rows, int rank) {
  if (!rows.of) return {};
  const Variable all = tape.use(*rows.of);
  if (all.layout().rank != rank) shape_error("{}: {} is {}, expected {} axes", function, name, all.layout(), rank);
  const int64_t count = rows.count < 0 ? all.shape(0) - rows.first : rows.count;
  if (rows.first < 0 || count < 0 || rows.first + count > all.shape(0))
    shape_error("{}: {} {} has no rows {} to {}", function, name, all.layout(), rows.first, rows.first + count);
  Layout part = all.layout();
  part.shape[0] = count;
  return all.seen_as(part, rows.first * part.strides[0]);
}

}  // namespace qkv::nn
