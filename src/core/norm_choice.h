// Which forward kernel a call on a GPU runs on: kinds of calls, and the lists of choices of each architecture.
//
// The lists are norm_choice_*.inc. A list begins with the kinds of calls that it serves:
//
//   KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)
//
// A word is one of those below; a | b means both. Then follow its lines:
//
//   ROWS(5121, 6144, 1, 32, 128, kFit, 4, cached)
//
// Rows of 5121 to 6144 elements, 1 to 32 of them: 128 threads of each of 4 thread blocks share a row, each with as many
// vectors as the row needs, and the kernel is the lean one that reads through L1. TOKENS counts rows of a [tokens,
// heads, n] tensor in tokens. Lines of a list are disjoint; a length without a line is for the kernels of any address.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/choice.h"
#include "core/norm_key.h"

namespace fastnorm {

// What of a call decides which list it goes by. Values of each word are bits, so that a list can name several.
struct NormKind {
  enum Width : uint8_t { kB16 = 1, kF32 = 2 };  // elements of x: bf16 and f16, or f32
  enum From : uint8_t { kPlain = 1, kAdd = 2 };
  enum Of : uint8_t { kRms = 1, kLayer = 2 };
  enum Weights : uint8_t { kOwnDtype = 1, kF32Weights = 2, kAnyWeights = 4 };  // weight and bias
  // y; quantised with a static scale; with dynamic scales, one for each row, or for each block of columns.
  enum Output : uint8_t { kY = 1, kPerTensor = 2, kPerRow = 4, kPerBlock = 8 };
  // Rows begin at multiples of 16 bytes and are as long; or anywhere; or what only kernels of any
  // address take.
  enum Reach : uint8_t { kAligned = 1, kUnaligned = 2, kAnyAddress = 4 };
  // What else the call asks for: nothing, or statistics; Llama's rounding; anything else, such as
  // no weight; a weight for each head.
  enum Ask : uint8_t { kLean = 1, kLlama = 2, kFull = 4, kHeadWeights = 8 };
  enum Index : uint8_t { kRows = 1, kHeads = 2 };  // rows have one index, or several

  uint8_t width = kB16, from = kPlain, of = kRms, weights = kOwnDtype, output = kY;
  uint8_t reach = kAligned, ask = kLean, index = kRows;

  // A number for each kind.
  constexpr int number() const {
    const auto place = [](unsigned bit) { return std::countr_zero(bit); };
    return place(width) | place(from) << 1 | place(of) << 2 | place(index) << 3 |
           place(weights) << 4 | place(output) << 6 | place(reach) << 8 | place(ask) << 10;
  }
  static constexpr int kCount = 1 << 12;

  static constexpr int kWords = 8;
  constexpr uint8_t& word(int i) {
    switch (i) {
      case 0:
        return width;
      case 1:
        return from;
      case 2:
        return of;
      case 3:
        return weights;
      case 4:
        return output;
      case 5:
        return reach;
      case 6:
        return ask;
      default:
        return index;
    }
  }
};

// Calls fn(kind) for each kind that `named`, with several bits to a word, stands for.
template <class Fn>
constexpr void for_each_kind(NormKind named, Fn fn) {
  const auto lowest = [](int bits) { return static_cast<uint8_t>(bits & -bits); };
  NormKind kind;
  for (int i = 0; i < NormKind::kWords; ++i) kind.word(i) = lowest(named.word(i));
  for (bool more = true; more;) {
    fn(static_cast<const NormKind&>(kind));
    // The next bit of the first word that has one; words before it begin anew.
    more = false;
    for (int i = 0; i < NormKind::kWords && !more; ++i) {
      const uint8_t next = lowest(named.word(i) & ~(2 * kind.word(i) - 1));
      more = next != 0;
      kind.word(i) = more ? next : lowest(named.word(i));
    }
  }
}

// Which of the kernels with a tile.
enum class Flavour : uint8_t {
  kFull,    // all that a call may ask for
  kLean,    // what the call asks for and no more, by cached or streaming loads as norm_loads.h says
  kCached,  // the same, always by cached loads
  kStreaming,  // the same, always by streaming loads
  kShared,     // lean; weight and bias wait in shared memory
};

inline constexpr int kVectorBytes = 16;
inline constexpr int kWarpThreads = 32;
// What a line may name at the most.
inline constexpr int kMaxThreads = 1024, kMaxVectors = 8, kMaxBlocks = 16;

// How a row lies over threads, and which kernel of that tile.
struct NormPick {
  static constexpr int8_t kFit = -1;  // vectors: as many as the row needs

  int16_t threads = 0;
  int8_t vectors = kFit;  // 0: the row is streamed
  int8_t blocks = 1;
  Flavour flavour = Flavour::kFull;
  bool tokens = false;  // the line's rows count tokens

  constexpr Tile tile(int64_t row_vectors) const {
    if (vectors != kFit) return {threads, vectors, blocks};
    // Powers of two: a call has no division.
    const int64_t all = int64_t{threads} * blocks;
    const int shift = std::countr_zero(static_cast<uint64_t>(all));
    return {threads, static_cast<int8_t>((row_vectors + all - 1) >> shift), blocks};
  }
};

using NormChoice = Choice<NormPick>;

// The key of the full kernels that calls of a kind run on. Of b16's dtypes this is bf16, which has what f16 has.
constexpr NormKey key_of(NormKind kind) {
  NormKey key;
  key.dtype = kind.width == NormKind::kF32 ? Dtype::kF32 : Dtype::kBF16;
  key.source = kind.from == NormKind::kAdd ? Source::kAdd : Source::kPlain;
  key.stat = kind.of == NormKind::kLayer ? Stat::kLayer : Stat::kRms;
  key.affine = kind.weights == NormKind::kAnyWeights   ? Affine::kAny
               : kind.weights == NormKind::kF32Weights ? Affine::kF32
                                                       : Affine::kOnce;
  key.sink = kind.output == NormKind::kY           ? Sink::kStore
             : kind.output == NormKind::kPerTensor ? Sink::kStatic
                                                   : Sink::kQuant;
  key.access = kind.reach == NormKind::kAligned      ? Access::kVector
               : kind.reach == NormKind::kAnyAddress ? Access::kAny
                                                     : Access::kUnaligned;
  return key;
}

// Calls fn(key) for each key that a line's flavour may mean for a kind. Calls that ask for more take the full kernel.
template <class Fn>
constexpr void for_each_key(NormKind kind, Flavour flavour, Fn fn) {
  const NormKey key = key_of(kind);
  const bool lean_call = kind.ask == NormKind::kLean || kind.ask == NormKind::kLlama;
  if (!lean_call) return fn(key);
  const Beside lean = kind.ask == NormKind::kLlama ? Beside::kRounded : Beside::kNothing;
  const auto with = [&](Beside beside) { fn(bare_key(key, beside)); };
  switch (flavour) {
    case Flavour::kFull:
      return fn(key);
    case Flavour::kLean:
      return with(lean), with(with_streaming_loads(lean));
    case Flavour::kCached:
      return with(lean);
    case Flavour::kStreaming:
      return with(with_streaming_loads(lean));
    case Flavour::kShared:
      return with(Beside::kShared);
  }
}

// The lists of one architecture.
class NormChoices {
 public:
  constexpr NormChoices(std::span<const NormChoice> lines, const uint16_t* first_lines,
                        const uint8_t* lists, const uint16_t* kind_texts, const char* const* texts)
      : lines_(lines),
        first_lines_(first_lines),
        lists_(lists),
        kind_texts_(kind_texts),
        texts_(texts) {}

  // The lines for calls of a kind; none where the architecture has no kernels for it.
  std::span<const NormChoice> lines(NormKind kind) const {
    const size_t list = lists_[kind.number()];
    if (list == 0) return {};
    return {lines_.data() + first_lines_[list], lines_.data() + first_lines_[list + 1]};
  }
  std::span<const NormChoice> all_lines() const { return lines_; }
  // The KIND line that names a kind; "" if none does.
  const char* text(NormKind kind) const {
    const size_t text = kind_texts_[kind.number()];
    return text == 0 ? "" : texts_[text - 1];
  }

 private:
  std::span<const NormChoice> lines_;
  const uint16_t* first_lines_;  // of each list from 1 on, and the end
  const uint8_t* lists_;         // of each kind, 0: none
  const uint16_t* kind_texts_;   // of each kind, one more than its place in texts_
  const char* const* texts_;
};

// The default is for architectures that were not measured, and for devices that cannot schedule
// the cluster that a list asks for.
extern const NormChoices kNormChoicesSm90, kNormChoicesDefault;

// What a line of text says, in the notation of norm_choice_*.inc, for tuning files.
struct ParsedChoice {
  NormKind kinds;  // a KIND line: bits of all that it names
  NormChoice choice = {};
  bool is_kind = false;
};
// False if the text is neither a KIND nor a ROWS nor a TOKENS line.
bool parse_choice(std::string_view text, ParsedChoice* parsed);

}  // namespace fastnorm
