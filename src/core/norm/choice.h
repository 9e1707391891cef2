// Which forward kernel a call on a GPU runs on: kinds of calls, and each architecture's lists of
// choices.
//
// The lists are choice_*.inc. A list begins with the kinds of calls that it serves:
//
//   KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)
//
// Its words are explained below; a | b means both. Then come its lines:
//
//   ROWS(5121, 6144, 1, 32, 128, kFit, 4, cached)
//
// This line is for 1 to 32 rows of 5121 to 6144 elements. Four thread blocks share a row, with 128
// threads each. A thread holds as many vectors as the row needs. The kernel is the lean one with
// cached loads. TOKENS counts the rows of a [tokens, heads, n] tensor in tokens. Lines of a list
// are disjoint. A length beyond those of a kind's list runs on a line of the same kind with `full`,
// and without such a line on the kernels for any address.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/common/choice.h"
#include "core/common/tile.h"
#include "core/norm/key.h"

namespace fastnorm {

// The kind of a call, which decides its list. The values of each word are bits, so a list can name
// several.
struct NormKind {
  enum Width : uint8_t { kB16 = 1, kF32 = 2 };  // elements of x: bf16 and f16, or f32
  enum From : uint8_t { kPlain = 1, kAdd = 2 };
  enum Of : uint8_t { kRms = 1, kLayer = 2 };
  enum Weights : uint8_t { kOwnDtype = 1, kF32Weights = 2, kAnyWeights = 4 };  // weight and bias
  // y; quantised with a static scale; with dynamic scales, for each row or for each block of
  // columns.
  enum Output : uint8_t { kY = 1, kPerTensor = 2, kPerRow = 4, kPerBlock = 8 };
  // Aligned: rows begin at multiples of 16 bytes, and their length is a multiple too. Unaligned:
  // rows begin anywhere. Any address: what only the kernels for any address support.
  enum Reach : uint8_t { kAligned = 1, kUnaligned = 2, kAnyAddress = 4 };
  // What else the call asks for. Lean: nothing, or only statistics. Llama: rounding before the
  // weight. Full: anything else, such as no weight, or y together with codes. Head weights: rows do
  // not all share a weight, because each head has its own.
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

  // Its words, in the order of a KIND line.
  static constexpr int kWords = 8;
  constexpr uint8_t& word(int i) {
    uint8_t* const words[kWords] = {&width, &from, &of, &weights, &output, &reach, &ask, &index};
    return *words[i];
  }
};

// Calls fn(kind) for each kind that `named` covers. `named` may have several bits in a word.
template <class Fn>
constexpr void for_each_kind(NormKind named, Fn fn) {
  const auto lowest = [](int bits) { return static_cast<uint8_t>(bits & -bits); };
  NormKind kind;
  for (int i = 0; i < NormKind::kWords; ++i) kind.word(i) = lowest(named.word(i));
  for (bool more = true; more;) {
    fn(static_cast<const NormKind&>(kind));
    // The next bit of the first word that has one. The words before it start again.
    more = false;
    for (int i = 0; i < NormKind::kWords && !more; ++i) {
      const uint8_t next = lowest(named.word(i) & ~(2 * kind.word(i) - 1));
      more = next != 0;
      kind.word(i) = more ? next : lowest(named.word(i));
    }
  }
}

// Which of the kernels with the same tile a line picks.
enum class PickedFlavour : uint8_t {
  kFull,       // everything that a call can ask for
  kLean,       // only what the call asks for; loads are cached or streaming as loads.h says
  kCached,     // lean, always with cached loads
  kStreaming,  // lean, always with streaming loads
  kShared,     // lean; weight and bias wait in shared memory
};

// How threads share a row, and which kernel of that tile.
struct NormPick {
  static constexpr int8_t kFit = -1;  // vectors: as many as the row needs

  int16_t threads = 0;
  int8_t vectors = kFit;  // 0: the row is streamed
  int8_t blocks = 1;
  PickedFlavour flavour = PickedFlavour::kFull;
  bool tokens = false;  // the line counts tokens, not rows

  constexpr Tile tile(int64_t row_vectors) const {
    if (vectors != kFit) return {threads, vectors, blocks};
    // Powers of two, so that a call needs no division.
    const int64_t all = int64_t{threads} * blocks;
    const int shift = std::countr_zero(static_cast<uint64_t>(all));
    return {threads, static_cast<int8_t>((row_vectors + all - 1) >> shift), blocks};
  }
};

using NormChoice = Choice<NormPick>;

// The key of the full kernels for calls of a kind. For b16 it is that of bf16; f16 has the same
// kernels.
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

// Calls fn(key) for each key that a line's flavour can mean for a kind. Calls that ask for more run
// on the full kernel.
template <class Fn>
constexpr void for_each_key(NormKind kind, PickedFlavour picked, Fn fn) {
  const NormKey key = key_of(kind);
  const bool lean_call = kind.ask == NormKind::kLean || kind.ask == NormKind::kLlama;
  if (!lean_call || picked == PickedFlavour::kFull) return fn(key);
  if (picked == PickedFlavour::kShared) return fn(lean_key(key, Flavour::kLeanShared));
  const Flavour lean = kind.ask == NormKind::kLlama ? Flavour::kRounded : Flavour::kLean;
  if (picked != PickedFlavour::kStreaming) fn(lean_key(key, lean));
  if (picked != PickedFlavour::kCached) fn(lean_key(key, with_streaming_loads(lean)));
}

// The lists of one architecture.
struct NormChoices {
  constexpr NormChoices(std::span<const NormChoice> lines, const uint16_t* first_lines,
                        const uint8_t* lists, const uint16_t* kind_texts, const char* const* texts)
      : lines_(lines),
        first_lines_(first_lines),
        lists_(lists),
        kind_texts_(kind_texts),
        texts_(texts) {}

  // The lines for calls of a kind. Empty if the architecture has no kernels for it.
  std::span<const NormChoice> lines(NormKind kind) const {
    const size_t list = lists_[kind.number()];
    if (list == 0) return {};
    return {lines_.data() + first_lines_[list], lines_.data() + first_lines_[list + 1]};
  }
  // The KIND line that names a kind; "" if there is none.
  const char* text(NormKind kind) const {
    const size_t text = kind_texts_[kind.number()];
    return text == 0 ? "" : texts_[text - 1];
  }

 private:
  std::span<const NormChoice> lines_;
  const uint16_t* first_lines_;  // first line of each list from 1 on, then the end
  const uint8_t* lists_;         // list of each kind; 0: none
  const uint16_t* kind_texts_;   // 1 + place in texts_, for each kind
  const char* const* texts_;
};

// The default is for architectures that were not measured. It also serves devices that cannot
// schedule the cluster that a list asks for.
extern const NormChoices kNormChoicesSm90, kNormChoicesDefault;

// What a line of text says, in the notation of choice_*.inc. Tuning files use it.
struct ParsedChoice {
  NormKind kinds;  // of a KIND line: bits of all kinds that it names
  NormChoice choice = {};
  bool is_kind = false;
};
// False if the text is neither a KIND nor a ROWS nor a TOKENS line.
bool parse_choice(std::string_view text, ParsedChoice* parsed);

}  // namespace fastnorm
