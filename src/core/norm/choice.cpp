#include "core/norm/choice.h"

#include <iterator>

#include "core/common/choice_text.h"

namespace fastnorm {
namespace {

constexpr ChoiceWord kWidths[] = {{"b16", NormKind::kB16}, {"f32", NormKind::kF32}};
constexpr ChoiceWord kSources[] = {{"plain", NormKind::kPlain}, {"add", NormKind::kAdd}};
constexpr ChoiceWord kStats[] = {{"rms", NormKind::kRms}, {"layer", NormKind::kLayer}};
constexpr ChoiceWord kWeights[] = {{"own_dtype", NormKind::kOwnDtype},
                                   {"f32_weights", NormKind::kF32Weights},
                                   {"any_weights", NormKind::kAnyWeights}};
constexpr ChoiceWord kOutputs[] = {{"y", NormKind::kY},
                                   {"per_tensor", NormKind::kPerTensor},
                                   {"per_row", NormKind::kPerRow},
                                   {"per_block", NormKind::kPerBlock}};
constexpr ChoiceWord kReaches[] = {{"aligned", NormKind::kAligned},
                                   {"unaligned", NormKind::kUnaligned},
                                   {"any_address", NormKind::kAnyAddress}};
constexpr ChoiceWord kAsks[] = {{"lean", NormKind::kLean},
                                {"llama", NormKind::kLlama},
                                {"full", NormKind::kFull},
                                {"head_weights", NormKind::kHeadWeights}};
constexpr ChoiceWord kIndices[] = {{"rows", NormKind::kRows}, {"heads", NormKind::kHeads}};
constexpr ChoiceWord kFlavours[] = {{"full", static_cast<uint8_t>(PickedFlavour::kFull)},
                                    {"lean", static_cast<uint8_t>(PickedFlavour::kLean)},
                                    {"cached", static_cast<uint8_t>(PickedFlavour::kCached)},
                                    {"streaming", static_cast<uint8_t>(PickedFlavour::kStreaming)},
                                    {"shared", static_cast<uint8_t>(PickedFlavour::kShared)}};

// The words that each of a kind's may be.
constexpr std::span<const ChoiceWord> kWords[NormKind::kWords] = {
    kWidths, kSources, kStats, kWeights, kOutputs, kReaches, kAsks, kIndices};

constexpr bool parse_kind(std::string_view rest, NormKind* kinds) {
  for (int i = 0; i < NormKind::kWords; ++i) {
    if (!take_words(&rest, kWords[i], &kinds->word(i))) return false;
  }
  return rest.empty();
}

// The length of a row in 16-byte vectors.
constexpr int32_t vectors_of(int32_t n, uint8_t width) {
  const int32_t per_vector = width == NormKind::kF32 ? 4 : 8;
  return n == kNoLimit ? kNoLimit : n / per_vector + (n % per_vector != 0);
}

constexpr bool parse_line(std::string_view rest, uint8_t width, NormChoice* line) {
  int64_t least_n = 0, most_n = 0, least_rows = 0, most_rows = 0;
  int64_t threads = 0, vectors = 0, blocks = 0;
  std::string_view flavour;
  if (!take_number(&rest, "", 0, 1, &least_n) ||
      !take_number(&rest, "kAll", INT32_MAX, 1, &most_n) ||
      !take_number(&rest, "", 0, 1, &least_rows) ||
      !take_number(&rest, "kAll", kNoLimit, 1, &most_rows) ||
      !take_number(&rest, "", 0, 1, &threads)) {
    return false;
  }
  if (trimmed_choice(rest.substr(0, rest.find(','))) == "kStreamed") {
    take_word(&rest);
  } else if (!take_number(&rest, "kFit", NormPick::kFit, 1, &vectors)) {
    return false;
  }
  if (!take_number(&rest, "", 0, 1, &blocks)) return false;
  flavour = trimmed_choice(rest);
  for (const ChoiceWord& word : kFlavours) {
    if (word.text != flavour) continue;
    *line = {vectors_of(static_cast<int32_t>(least_n), width),
             vectors_of(static_cast<int32_t>(most_n), width),
             static_cast<int32_t>(least_rows),
             static_cast<int32_t>(most_rows),
             {static_cast<int16_t>(threads), static_cast<int8_t>(vectors),
              static_cast<int8_t>(blocks), static_cast<PickedFlavour>(word.bits)},
             ""};
    return least_n <= most_n && least_rows <= most_rows && threads <= kMaxThreads &&
           vectors <= kMaxVectors && blocks <= kMaxBlocks;
  }
  return false;
}

constexpr bool parse(std::string_view text, ParsedChoice* parsed) {
  std::string_view rest;
  const std::string_view name = take_name(text, &rest);
  parsed->is_kind = name == "KIND";
  if (parsed->is_kind) return parse_kind(rest, &parsed->kinds);
  if (name != "ROWS" && name != "TOKENS") return false;
  if (!parse_line(rest, parsed->kinds.width, &parsed->choice)) return false;
  parsed->choice.pick.tokens = name == "TOKENS";
  return true;
}

// The lines of the lists as text.
#define KIND(...) "KIND(" #__VA_ARGS__ ")",
#define ROWS(...) "ROWS(" #__VA_ARGS__ ")",
#define TOKENS(...) "TOKENS(" #__VA_ARGS__ ")",
constexpr const char* kTextsSm90[] = {
#include "core/norm/choice_sm90.inc"
};
constexpr const char* kTextsDefault[] = {
#include "core/norm/choice_default.inc"
};
#undef KIND
#undef ROWS
#undef TOKENS

// A file's lines as tables. A wrong line does not compile.
template <size_t kListed>
struct Lists {
  std::array<NormChoice, kListed> lines = {};
  std::array<const char*, kListed> texts = {};
  std::array<uint16_t, kListed + 2> first_lines = {};
  std::array<uint8_t, NormKind::kCount> lists = {};
  std::array<uint16_t, NormKind::kCount> kind_texts = {};  // 1 + index of its KIND line
  size_t count = 0;                                        // of lines

  consteval explicit Lists(const char* const (&listed)[kListed]) {
    size_t list = 0;
    uint8_t width = 0;
    ParsedChoice parsed;
    bool begun = false;  // the list has a line
    for (size_t i = 0; i < kListed; ++i) {
      texts[i] = listed[i];
      if (!parse(listed[i], &parsed)) throw "no line of a list";
      if (!parsed.is_kind) {
        parsed.choice.text = listed[i];
        append(parsed.choice, begun);
        begun = true;
        continue;
      }
      const NormKind& kinds = parsed.kinds;
      if (begun || list == 0) {
        first_lines[++list] = static_cast<uint16_t>(count);
      } else if (kinds.width != width) {
        throw "kinds of two widths";
      }
      begun = false;
      width = kinds.width;
      for_each_kind(kinds, [&](const NormKind& kind) {
        uint8_t& of_kind = lists[static_cast<size_t>(kind.number())];
        if (of_kind != 0 && of_kind != list) throw "a kind has two lists";
        of_kind = static_cast<uint8_t>(list);
        kind_texts[static_cast<size_t>(kind.number())] = static_cast<uint16_t>(i + 1);
      });
    }
    if (list > UINT8_MAX || kListed > UINT16_MAX) throw "too many lists";
    first_lines[list + 1] = static_cast<uint16_t>(count);
  }

 private:
  // Within a list, lengths and rows leave no gap and do not overlap.
  consteval void append(const NormChoice& line, bool has_before) {
    if (has_before) {
      const NormChoice& before = lines[count - 1];
      const bool same =
          before.least_vectors == line.least_vectors && before.most_vectors == line.most_vectors;
      if (same ? before.most_rows == kNoLimit || line.least_rows != before.most_rows + 1
               : before.most_rows != kNoLimit || line.least_rows != 1 ||
                     line.least_vectors != before.most_vectors + 1) {
        throw "a list has a gap, or lines that overlap";
      }
    } else if (line.least_rows != 1) {
      throw "a list does not begin with one row";
    }
    lines[count++] = line;
  }
};

constexpr Lists<std::size(kTextsSm90)> kListsSm90(kTextsSm90);
constexpr Lists<std::size(kTextsDefault)> kListsDefault(kTextsDefault);

template <size_t kListed>
constexpr NormChoices choices_of(const Lists<kListed>& lists) {
  return {std::span(lists.lines).first(lists.count), lists.first_lines.data(), lists.lists.data(),
          lists.kind_texts.data(), lists.texts.data()};
}

}  // namespace

constinit const NormChoices kNormChoicesSm90 = choices_of(kListsSm90);
constinit const NormChoices kNormChoicesDefault = choices_of(kListsDefault);

bool parse_choice(std::string_view text, ParsedChoice* parsed) { return parse(text, parsed); }

}  // namespace fastnorm
