#include "core/norm_backward/choice.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/common/choice_text.h"
#include "core/norm_backward/rows.h"

namespace fastnorm {
namespace {

constexpr ChoiceWord kJobs[] = {{"few", 1 << static_cast<int>(BackwardJob::kFew)},
                                {"many", 1 << static_cast<int>(BackwardJob::kMany)},
                                {"alone", 1 << static_cast<int>(BackwardJob::kAlone)},
                                {"any", 1 << static_cast<int>(BackwardJob::kAny)}};
constexpr uint8_t kF32Bit = 1 << static_cast<int>(Dtype::kF32),
                  kF16Bit = 1 << static_cast<int>(Dtype::kF16),
                  kBF16Bit = 1 << static_cast<int>(Dtype::kBF16);
constexpr ChoiceWord kElements[] = {{"f32", kF32Bit},
                                    {"f16", kF16Bit},
                                    {"bf16", kBF16Bit},
                                    {"b16", kF16Bit | kBF16Bit},
                                    {"all", kF32Bit | kF16Bit | kBF16Bit}};
constexpr ChoiceWord kStats[] = {{"rms", 1}, {"layer", 2}, {"either", 3}};
constexpr ChoiceWord kInputs[] = {{"plain", 1}, {"add", 2},    {"both", 3},
                                  {"gated", 4}, {"branch", 8}, {"modulated", 16}};

struct KindText {
  char c[40] = {};
};

// The word of one bit.
constexpr std::string_view word_of(std::span<const ChoiceWord> words, int bit) {
  for (const ChoiceWord& word : words) {
    if (word.bits == 1 << bit) return word.text;
  }
  return {};
}

constexpr KindText make_kind_text(const NormBackwardKind& kind) {
  KindText text;
  char* to = text.c;
  const auto put = [&to](std::string_view more) { to = std::copy(more.begin(), more.end(), to); };
  put("KIND("), put(word_of(kJobs, static_cast<int>(kind.job)));
  put(", "), put(word_of(kElements, static_cast<int>(kind.dtype)));
  put(", "), put(word_of(kStats, static_cast<int>(kind.stat)));
  put(", "), put(word_of(kInputs, static_cast<int>(kind.input))), put(")");
  return text;
}

constexpr auto kKindTexts = [] {
  std::array<KindText, NormBackwardKind::kCount> texts = {};
  for (int32_t i = 0; i < NormBackwardKind::kCount; ++i)
    texts[static_cast<size_t>(i)] = make_kind_text(NormBackwardKind::of(i));
  return texts;
}();

constexpr bool parse_kinds(std::string_view rest, NormBackwardKinds* kinds) {
  if (!take_words(&rest, kJobs, &kinds->jobs) || !take_words(&rest, kElements, &kinds->dtypes) ||
      !take_words(&rest, kStats, &kinds->stats) || !take_words(&rest, kInputs, &kinds->inputs)) {
    return false;
  }
  // General kernels with a gate or a branch have no lines of their own.
  constexpr uint8_t kOwnForms = 4 | 8 | 16, kAny = 1 << static_cast<int>(BackwardJob::kAny);
  return rest.empty() && ((kinds->inputs & kOwnForms) == 0 || (kinds->jobs & kAny) == 0);
}

constexpr bool parse_line(std::string_view rest, NormBackwardChoice* line) {
  int64_t least_n = 0, most_n = 0, least_rows = 0, most_rows = 0;
  if (!take_number(&rest, "", 0, 1, &least_n) ||
      !take_number(&rest, "kAll", kNoLimit, 1, &most_n) ||
      !take_number(&rest, "", 0, 1, &least_rows) ||
      !take_number(&rest, "kAll", kNoLimit, 1, &most_rows) || least_n > most_n ||
      least_rows > most_rows) {
    return false;
  }
  // The largest numbers that a variant's word holds.
  constexpr int64_t kMost[] = {1024, 15, 15, kBackwardMaxLanes, 7};
  constexpr int64_t kLeast[] = {1, 0, 1, 1, 0};
  int64_t numbers[5] = {};
  for (int i = 0; i < 5; ++i) {
    if (!take_number(&rest, "", 0, kLeast[i], &numbers[i]) || numbers[i] > kMost[i]) return false;
  }
  *line = {static_cast<int32_t>(least_n),
           static_cast<int32_t>(most_n),
           static_cast<int32_t>(least_rows),
           static_cast<int32_t>(most_rows),
           {static_cast<int16_t>(numbers[0]), static_cast<int8_t>(numbers[1]),
            static_cast<int8_t>(numbers[2]), static_cast<int8_t>(numbers[3]),
            static_cast<int8_t>(numbers[4])},
           ""};
  return rest.empty();
}

constexpr bool parse(std::string_view text, ParsedBackwardChoice* parsed) {
  std::string_view rest;
  const std::string_view name = take_name(text, &rest);
  parsed->is_kind = name == "KIND";
  if (parsed->is_kind) return parse_kinds(rest, &parsed->kinds);
  return name == "ROWS" && parse_line(rest, &parsed->choice);
}

// The lines of the lists as text.
#define KIND(...) "KIND(" #__VA_ARGS__ ")",
#define ROWS(...) "ROWS(" #__VA_ARGS__ ")",
constexpr const char* kSm90Texts[] = {
#include "core/norm_backward/choice_sm90.inc"
};
constexpr const char* kDefaultTexts[] = {
#include "core/norm_backward/choice_default.inc"
};
#undef KIND
#undef ROWS

// Lines of a list ascend, and do not overlap.
constexpr bool follows(const NormBackwardChoice& a, const NormBackwardChoice& b) {
  if (a.most_vectors < b.least_vectors) return true;
  return a.least_vectors == b.least_vectors && a.most_vectors == b.most_vectors &&
         a.most_rows != kNoLimit && a.most_rows + 1 == b.least_rows;
}

// A file becomes one array of lines, and lists that name where theirs begin and end. A wrong line
// does not compile.
template <size_t kCount>
struct File {
  struct Head {
    NormBackwardKinds kinds;
    const char* text;
    size_t first, end;  // lines
  };
  std::array<NormBackwardChoice, kCount> lines = {};
  std::array<Head, kCount> heads = {};
  size_t count = 0, lists = 0;

  consteval explicit File(const char* const (&texts)[kCount]) {
    for (const char* const text : texts) {
      ParsedBackwardChoice parsed;
      if (!parse(text, &parsed)) throw "no line of a list";
      if (parsed.is_kind) {
        heads[lists++] = {parsed.kinds, text, count, count};
        continue;
      }
      if (lists == 0) throw "a line before the first list";
      Head& head = heads[lists - 1];
      if (head.end != head.first && !follows(lines[count - 1], parsed.choice))
        throw "a list does not ascend, or has lines that overlap";
      lines[count] = parsed.choice;
      lines[count].text = text;
      head.end = ++count;
    }
  }
};

constexpr File<std::size(kSm90Texts)> kSm90(kSm90Texts);
constexpr File<std::size(kDefaultTexts)> kDefault(kDefaultTexts);

template <size_t kLists, size_t kCount>
constexpr auto lists_of(const File<kCount>& file) {
  std::array<NormBackwardList, kLists> lists = {};
  for (size_t i = 0; i < kLists; ++i) {
    const auto& head = file.heads[i];
    lists[i] = {head.kinds, head.text,
                std::span(file.lines).subspan(head.first, head.end - head.first)};
  }
  return lists;
}
constexpr auto kSm90Lists = lists_of<kSm90.lists>(kSm90);
constexpr auto kDefaultLists = lists_of<kDefault.lists>(kDefault);

}  // namespace

const NormBackwardChoices kNormBackwardChoicesSm90 = {kSm90Lists};
const NormBackwardChoices kNormBackwardChoicesDefault = {kDefaultLists};

NormBackwardDecision find_norm_backward_choice(const NormBackwardChoices& choices,
                                               const NormBackwardKind& kind, int64_t n,
                                               int64_t shared_rows) {
  for (const NormBackwardList& list : choices.lists) {
    if (!kind.is_in(list.kinds)) continue;
    const NormBackwardChoice* const line = find_choice(list.lines, line_length(n), shared_rows,
                                                       [](const NormBackwardChoice&) { return 1; });
    if (line != nullptr) return {list.text, line};
  }
  return {};
}

const char* text_of(const NormBackwardKind& kind) {
  return kKindTexts[static_cast<size_t>(kind.number())].c;
}

bool parse_choice(std::string_view text, ParsedBackwardChoice* parsed) {
  return parse(text, parsed);
}

int32_t find_norm_backward_entry(std::span<const NormBackwardEntry> table,
                                 const NormBackwardKind& kind, BackwardForm form,
                                 const NormBackwardPick& pick) {
  // Its details are 0. The general form and kFew ask for dresidual_in at run time.
  const bool asks = form == BackwardForm::kRows || form == BackwardForm::kGatedRows ||
                    form == BackwardForm::kBranchRows;
  const bool few = form == BackwardForm::kFew;
  const uint64_t least = packed({.dtype = kind.dtype,
                                 .stat = kind.stat,
                                 .input = asks  ? BackwardInput::kPlain
                                          : few ? BackwardInput::kAdd
                                                : kind.input,
                                 .form = form,
                                 .threads = pick.threads,
                                 .vectors = pick.vectors,
                                 .blocks = pick.blocks,
                                 .lanes = pick.lanes,
                                 .stages = pick.stages,
                                 .per_sm = 0});
  const auto entry =
      std::lower_bound(table.begin(), table.end(), least,
                       [](const NormBackwardEntry& e, uint64_t order) { return e.order < order; });
  if (entry == table.end() || entry->order >> kBackwardDetailBits != least >> kBackwardDetailBits)
    return -1;
  return static_cast<int32_t>(entry - table.begin());
}

bool holds_rows(const NormBackwardVariant& v, int64_t n, int64_t shared_rows, bool sums) {
  if (v.writes_rows()) return true;
  if (n * dtype_bytes(v.dtype) > int64_t{v.row_threads()} * v.vectors * kVectorBytes) return false;
  const NormBackwardRows order = norm_backward_rows(shared_rows, n);
  if (v.form == BackwardForm::kPersistent) return order.split_of(v.lanes) != 0;
  if (v.form != BackwardForm::kFew) return false;
  const int64_t chains =
      order.lanes * static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(order.blocks)));
  return !sums || chains <= int64_t{v.block_threads()} / v.column_vectors * v.chains;
}

}  // namespace fastnorm
