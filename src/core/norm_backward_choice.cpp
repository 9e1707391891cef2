#include "core/norm_backward_choice.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/choice_text.h"
#include "core/norm_backward_rows.h"

namespace fastnorm {
namespace {

namespace words {

constexpr int32_t kAll = kNoLimit;
constexpr BackwardJob few = BackwardJob::kFew, many = BackwardJob::kMany,
                      alone = BackwardJob::kAlone, any = BackwardJob::kAny;
struct Two {
  bool first, second;
};
struct Inputs {
  bool of[kBackwardInputs];
};
[[maybe_unused]] constexpr DtypeSet f32 = {true, false, false}, f16 = {false, true, false},
                                    bf16 = {false, false, true}, b16 = {false, true, true},
                                    all = {true, true, true};
[[maybe_unused]] constexpr Two rms = {true, false}, layer = {false, true}, either = {true, true};
[[maybe_unused]] constexpr Inputs plain = {{true}}, add = {{false, true}}, both = {{true, true}},
                                  gated = {{false, false, true}},
                                  branch = {{false, false, false, true}},
                                  modulated = {{false, false, false, false, true}};

// A file becomes one array of lines, and lists that name where theirs begin and end.
struct Head {
  BackwardJob job;
  DtypeSet elements;
  Two stats;
  Inputs inputs;
  const char* text;  // of a head; nullptr: a line
  NormBackwardChoice line;
};

#define KIND(job, elements, stats, inputs) \
  {job, elements, stats, inputs, "KIND(" #job ", " #elements ", " #stats ", " #inputs ")", {}},
#define ROWS(least, most, from, to, threads, vectors, blocks, lanes, stages)               \
  {any,                                                                                    \
   {},                                                                                     \
   {},                                                                                     \
   {},                                                                                     \
   nullptr,                                                                                \
   {least,                                                                                 \
    most,                                                                                  \
    from,                                                                                  \
    to,                                                                                    \
    {threads, vectors, blocks, lanes, stages},                                             \
    "ROWS(" #least ", " #most ", " #from ", " #to ", " #threads ", " #vectors ", " #blocks \
    ", " #lanes ", " #stages ")"}},
constexpr Head kSm90[] = {
#include "core/norm_backward_choice_sm90.inc"
};
constexpr Head kDefault[] = {
#include "core/norm_backward_choice_default.inc"
};
#undef KIND
#undef ROWS

}  // namespace words

using words::Head;

template <size_t kCount>
constexpr size_t count_heads(const Head (&file)[kCount]) {
  size_t count = 0;
  for (const Head& line : file) count += line.text != nullptr ? 1 : 0;
  return count;
}

// Lines of a list ascend, and do not overlap.
constexpr bool follows(const NormBackwardChoice& a, const NormBackwardChoice& b) {
  if (a.most_vectors < b.least_vectors) return true;
  return a.least_vectors == b.least_vectors && a.most_vectors == b.most_vectors &&
         a.most_rows != kNoLimit && a.most_rows + 1 == b.least_rows;
}

template <size_t kCount>
constexpr bool is_ordered(const Head (&file)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    const NormBackwardChoice& line = file[i].line;
    if (file[i].text != nullptr) continue;
    if (i == 0 || line.least_vectors > line.most_vectors || line.least_rows > line.most_rows)
      return false;
    if (file[i - 1].text == nullptr && !follows(file[i - 1].line, line)) return false;
  }
  return true;
}
static_assert(is_ordered(words::kSm90) && is_ordered(words::kDefault));

template <size_t kCount>
constexpr auto lines_of(const Head (&file)[kCount]) {
  std::array<NormBackwardChoice, kCount> lines = {};
  for (size_t i = 0; i < kCount; ++i) lines[i] = file[i].line;
  return lines;
}

constexpr auto kSm90Lines = lines_of(words::kSm90);
constexpr auto kDefaultLines = lines_of(words::kDefault);

template <size_t kHeads, size_t kCount>
constexpr std::array<NormBackwardList, kHeads> lists_of(
    const Head (&file)[kCount], const std::array<NormBackwardChoice, kCount>& lines) {
  std::array<NormBackwardList, kHeads> lists = {};
  size_t list = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const Head& head = file[i];
    if (head.text == nullptr) continue;
    size_t end = i + 1;
    while (end < kCount && file[end].text == nullptr) ++end;
    lists[list++] = {head.job,
                     head.elements,
                     head.stats.first,
                     head.stats.second,
                     {head.inputs.of[0], head.inputs.of[1], head.inputs.of[2], head.inputs.of[3],
                      head.inputs.of[4]},
                     head.text,
                     std::span<const NormBackwardChoice>(lines.data() + i + 1, end - i - 1)};
  }
  return lists;
}

constexpr auto kSm90Lists = lists_of<count_heads(words::kSm90)>(words::kSm90, kSm90Lines);
constexpr auto kDefaultLists =
    lists_of<count_heads(words::kDefault)>(words::kDefault, kDefaultLines);

}  // namespace

const NormBackwardChoices kNormBackwardChoicesSm90 = {kSm90Lists};
const NormBackwardChoices kNormBackwardChoicesDefault = {kDefaultLists};

NormBackwardDecision find_norm_backward_choice(const NormBackwardChoices& choices,
                                               const NormBackwardKind& kind, int64_t n,
                                               int64_t shared_rows) {
  for (const NormBackwardList& list : choices.lists) {
    if (list.job != kind.job || !list.dtypes.has(kind.dtype) ||
        !(kind.stat == Stat::kRms ? list.rms : list.layer) ||
        !list.inputs[static_cast<int>(kind.input)]) {
      continue;
    }
    const NormBackwardChoice* const line = find_choice(list.lines, line_length(n), shared_rows,
                                                       [](const NormBackwardChoice&) { return 1; });
    if (line != nullptr) return {list.text, line};
  }
  return {};
}

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

bool parse_kinds(std::string_view rest, NormBackwardKinds* kinds) {
  if (!take_words(&rest, kJobs, &kinds->jobs) || !take_words(&rest, kElements, &kinds->dtypes) ||
      !take_words(&rest, kStats, &kinds->stats) || !take_words(&rest, kInputs, &kinds->inputs)) {
    return false;
  }
  // General kernels with a gate or a branch have no lines of their own.
  constexpr uint8_t kOwnForms = 4 | 8 | 16, kAny = 1 << static_cast<int>(BackwardJob::kAny);
  return rest.empty() && ((kinds->inputs & kOwnForms) == 0 || (kinds->jobs & kAny) == 0);
}

bool parse_line(std::string_view rest, NormBackwardChoice* line) {
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

}  // namespace

const char* text_of(const NormBackwardKind& kind) {
  return kKindTexts[static_cast<size_t>(kind.number())].c;
}

bool parse_backward_choice(std::string_view text, ParsedBackwardChoice* parsed) {
  std::string_view rest;
  const std::string_view name = take_name(text, &rest);
  parsed->is_kind = name == "KIND";
  if (parsed->is_kind) return parse_kinds(rest, &parsed->kinds);
  return name == "ROWS" && parse_line(rest, &parsed->choice);
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
                                 .blocks_per_sm = 0});
  const auto entry =
      std::lower_bound(table.begin(), table.end(), least,
                       [](const NormBackwardEntry& e, uint64_t order) { return e.order < order; });
  if (entry == table.end() || entry->order >> kBackwardDetailBits != least >> kBackwardDetailBits)
    return -1;
  return static_cast<int32_t>(entry - table.begin());
}

bool holds_rows(const NormBackwardVariant& v, int64_t n, int64_t shared_rows, bool sums) {
  if (v.writes_rows()) return true;
  constexpr int64_t kVectorBytes = 16;
  if (n * dtype_bytes(v.dtype) > int64_t{v.row_threads()} * v.vectors * kVectorBytes) return false;
  const NormBackwardRows order = norm_backward_rows(shared_rows, n);
  if (v.form == BackwardForm::kPersistent) return order.split_of(v.lanes) != 0;
  if (v.form != BackwardForm::kFew) return false;
  const int64_t chains =
      order.lanes * static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(order.blocks)));
  return !sums || chains <= int64_t{v.block_threads()} / v.column_vectors * v.chains;
}

}  // namespace fastnorm
