// Models read token by token.
//
//   qkv::nn::Session session(model, {.batch = 1});
//   View<const void> logits = session.read(prompt);                       // prompt {1, n} -> {1, vocabulary}
//   for (...) logits = session.read(one_more);                            // one_more {1, 1}
#pragma once
#include <memory>

#include "qkv/models.h"

namespace qkv::nn {

struct SessionOptions {
  int64_t batch = 1;
  int64_t chunk = 64;               ///< tokens of each entry that are computed together, at most
  int64_t rollback = 0;             ///< how many can be taken back where layers have windows; elsewhere all can
  DType storage = DType::kFloat32;  ///< as TapeOptions
  Call call{};
};

/// What a model has read so far: keys and values of each layer. Logits have the bits of the model's own over all tokens at once,
/// whatever the parts in which they were read, the chunk, and the rest of the batch. Entries of the batch may have different lengths.
/// The model lives longer, stays where it is and is not changed. Not for use by two threads at the same time.
///
/// Beyond the context read() throws, but where every layer has a window and positions are relative or none: then memory does not
/// grow and the text may go on.
class QKV_EXPORT Session {
 public:
  /// Throws OptionError.
  explicit Session(LanguageModel&, const SessionOptions& = {});
  /// Encodes the source once; its entries are the batch, whatever the options say. Tokens are those of the target.
  Session(EncoderDecoder&, const EncoderDecoder::Source&, const SessionOptions& = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Reads ids {B, n}, of entry b the first rows[b] (absent: all), and gives the logits {B, vocabulary} after the last token of each
  /// entry, which hold until the next call; of an entry that has read nothing, numbers without a meaning. Throws ShapeError,
  /// OptionError (an id that there is not, tokens beyond the context) and then has read nothing.
  View<const void> read(View<const int32_t> ids, View<const int32_t> rows = {});

  View<const int32_t> lengths() const;  ///< {B}: tokens that each entry has read
  /// Takes the last tokens back: `steps` of every entry, or steps[b] {B} of each. Logits come with the next read(). Throws
  /// OptionError where there are fewer, or windows have lost what came before.
  void rollback(int64_t steps);
  void rollback(View<const int32_t> steps);
  void clear();  ///< of all tokens, not of the source
  /// Entry b becomes what entry beams[b] was, its source too. Throws ShapeError, OptionError.
  void reorder(View<const int32_t> beams);
  size_t bytes() const;  ///< of caches

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv::nn
