#include "core/norm_backward_choice.h"

#include <array>

namespace fastnorm {
namespace {

namespace words {

constexpr int32_t kAll = kNoLimit;
constexpr BackwardJob few = BackwardJob::kFew, many = BackwardJob::kMany,
                      alone = BackwardJob::kAlone, any = BackwardJob::kAny;
struct Two {
  bool first, second;
};
[[maybe_unused]] constexpr DtypeSet f32 = {true, false, false}, f16 = {false, true, false},
                                    bf16 = {false, false, true}, b16 = {false, true, true},
                                    all = {true, true, true};
[[maybe_unused]] constexpr Two rms = {true, false}, layer = {false, true}, either = {true, true};
[[maybe_unused]] constexpr Two plain = {true, false}, add = {false, true}, both = {true, true};

// A file becomes one array of lines, and lists that name where theirs begin and end.
struct Head {
  BackwardJob job;
  DtypeSet elements;
  Two stats, residuals;
  const char* text;  // of a head; nullptr: a line
  NormBackwardChoice line;
};

#define KIND(job, elements, stats, residuals)                                                    \
  {job, elements, stats, residuals, "KIND(" #job ", " #elements ", " #stats ", " #residuals ")", \
   {}},
#define ROWS(least, most, from, to, threads, vectors, blocks, lanes, unroll, stages)       \
  {any,                                                                                    \
   {},                                                                                     \
   {},                                                                                     \
   {},                                                                                     \
   nullptr,                                                                                \
   {least,                                                                                 \
    most,                                                                                  \
    from,                                                                                  \
    to,                                                                                    \
    {threads, vectors, blocks, lanes, unroll, stages},                                     \
    "ROWS(" #least ", " #most ", " #from ", " #to ", " #threads ", " #vectors ", " #blocks \
    ", " #lanes ", " #unroll ", " #stages ")"}},
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
                     head.residuals.first,
                     head.residuals.second,
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

NormBackwardDecision find_norm_backward_choice(const NormBackwardChoices& choices, BackwardJob job,
                                               Dtype dtype, Stat stat, bool residual, int64_t n,
                                               int64_t shared_rows) {
  for (const NormBackwardList& list : choices.lists) {
    if (list.job != job || !list.dtypes.has(dtype) ||
        !(stat == Stat::kRms ? list.rms : list.layer) || !(residual ? list.add : list.plain)) {
      continue;
    }
    // A length beyond what a line can say is as long as the last one.
    const int64_t length = n < kNoLimit ? n : kNoLimit;
    const NormBackwardChoice* const line =
        find_choice(list.lines, length, shared_rows, [](const NormBackwardChoice&) { return 1; });
    if (line != nullptr) return {&list, line};
  }
  return {};
}

}  // namespace fastnorm
