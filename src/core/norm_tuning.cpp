#include "core/norm_tuning.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>

#include "core/check.h"

namespace fastnorm {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// Beside a packed key: what a call of it asks for where kernels serve both and other ones may be the fastest.
constexpr uint32_t kF32Columns = 1u << 31, kBlockScales = 1u << 30;

// Rules of a kind that only some kernels have.
struct RuleKind {
  std::string_view name;
  uint32_t bit;
  bool (*fits)(NormKey key);
  const char* required;
};

constexpr RuleKind kKinds[] = {
    {"norm", 0, [](NormKey) { return true; }, ""},
    {"norm-f32", kF32Columns, [](NormKey key) { return key.affine == Affine::kKept; },
     "one that keeps its columns"},
    {"norm-blocks", kBlockScales, [](NormKey key) { return key.sink == Sink::kQuant; },
     "one that makes scales from the values (\"quant\")"},
};

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// The first word of `text`, which then begins behind it.
std::string_view take_word(std::string_view* text) {
  const size_t length = std::min(text->find_first_of(kBlanks), text->size());
  const std::string_view word = text->substr(0, length);
  *text = trimmed(text->substr(length));
  return word;
}

bool parse_number(std::string_view text, int64_t* value) {
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return problem == std::errc() && stop == text.data() + text.size() && *value >= 1;
}

// "512", "129-512", or "513-" for all from there on.
bool parse_range(std::string_view text, int64_t* least, int64_t* most) {
  const size_t dash = std::min(text.find('-'), text.size());
  const std::string_view rest = text.substr(dash);  // "", "-" or "-512"
  if (!parse_number(text.substr(0, dash), least)) return false;
  *most = rest.empty() ? *least : INT64_MAX;
  return (rest.size() <= 1 || parse_number(rest.substr(1), most)) && *least <= *most;
}

// A part of a file in an error text: as much of it as one reads.
int shown(std::string_view text) { return static_cast<int>(std::min<size_t>(text.size(), 80)); }

}  // namespace

// One file, line after line.
class NormTuning::Reader {
 public:
  Reader(const char* library, std::span<const NormEntry> table, const DeviceFacts& facts,
         Error& error)
      : library_(library), table_(table), facts_(facts), error_(error) {}

  fastnorm_status read(std::string_view text, NormTuning* tuning) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = trimmed(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number_;
      if (line.empty() || line.front() == '#') continue;
      FASTNORM_TRY(read_line(line));
    }
    Error& error = error_;
    FASTNORM_REQUIRE(
        heads_ == kHeads, FASTNORM_ERROR_ARGUMENT,
        "options.tuning_file ends after %d of the %d lines that come before its rules; "
        "required: \"fastnorm tuning 1\", \"library %s\" and \"arch %s\"",
        heads_, kHeads, library_, facts_.arch->name);
    FASTNORM_TRY(sort());
    tuning->rules_.swap(rules_);
    return FASTNORM_OK;
  }

 private:
  static constexpr int kHeads = 3;

  // `wanted` is what the line has to be.
  fastnorm_status head(std::string_view line, const char* name, const char* value) {
    Error& error = error_;
    std::string_view rest = line;
    const bool same = take_word(&rest) == name && rest == value;
    FASTNORM_REQUIRE(same, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: \"%s %s\"; a file of "
                     "another library or GPU does not fit: \"fastnorm tune\" writes one",
                     number_, shown(line), line.data(), name, value);
    ++heads_;
    return FASTNORM_OK;
  }

  fastnorm_status read_line(std::string_view line) {
    if (heads_ == 0) return head(line, "fastnorm", "tuning 1");
    if (heads_ == 1) return head(line, "library", library_);
    if (heads_ == 2) return head(line, "arch", facts_.arch->name);
    return read_rule(line);
  }

  fastnorm_status read_rule(std::string_view line) {
    Error& error = error_;
    std::string_view rest = line;
    Rule rule = {};
    const std::string_view word = take_word(&rest);
    const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                          [&](const RuleKind& k) { return k.name == word; });
    const bool whole = kind != std::end(kKinds) &&
                       parse_range(take_word(&rest), &rule.least_rows, &rule.most_rows) &&
                       parse_number(take_word(&rest), &rule.n) && !rest.empty();
    FASTNORM_REQUIRE(whole, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: norm ROWS N KERNEL, "
                     "norm-f32 or norm-blocks in place of norm, with ROWS a number, LEAST-MOST or "
                     "LEAST-, and N a number, all from 1 on",
                     number_, shown(line), line.data());
    const auto found = std::find_if(table_.begin(), table_.end(),
                                    [&](const NormEntry& entry) { return rest == entry.name; });
    FASTNORM_REQUIRE(found != table_.end(), FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d names kernel \"%.*s\"; required: one of those "
                     "for %s, which \"fastnorm info --kernels\" lists",
                     number_, shown(rest), rest.data(), facts_.arch->name);
    FASTNORM_REQUIRE(kind->fits(found->key), FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d names kernel \"%s\" after %s; required: "
                     "%s, or norm",
                     number_, found->name, kind->name.data(), kind->required);
    const VectorRange range = vectors_held(*found);
    const int64_t per_vector = 16 / dtype_bytes(found->key.dtype);
    const int64_t vectors = rule.n / per_vector + (rule.n % per_vector != 0);
    FASTNORM_REQUIRE(vectors >= range.least && vectors <= range.most, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d has rows of %" PRId64
                     " elements for kernel \"%s\"; required: %" PRId64 " to %" PRId64,
                     number_, rule.n, found->name, (range.least - 1) * per_vector + 1,
                     range.most > INT64_MAX / per_vector ? INT64_MAX : range.most * per_vector);
    rule.key = found->key.packed() | kind->bit;
    rule.index = static_cast<int32_t>(found - table_.begin());
    if (found->tile.blocks <= facts_.max_cluster_blocks) rules_.push_back(rule);
    return FASTNORM_OK;
  }

  // Where two rules are for the same rows, neither is meant.
  fastnorm_status sort() {
    Error& error = error_;
    std::sort(rules_.begin(), rules_.end());
    for (size_t i = 1; i < rules_.size(); ++i) {
      const Rule &a = rules_[i - 1], &b = rules_[i];
      FASTNORM_REQUIRE(a.key != b.key || a.n != b.n || a.most_rows < b.least_rows,
                       FASTNORM_ERROR_ARGUMENT,
                       "options.tuning_file has kernels \"%s\" and \"%s\" for %" PRId64
                       " rows of %" PRId64 " elements; required: one",
                       table_[static_cast<size_t>(a.index)].name,
                       table_[static_cast<size_t>(b.index)].name, b.least_rows, a.n);
    }
    return FASTNORM_OK;
  }

  const char* const library_;
  const std::span<const NormEntry> table_;
  const DeviceFacts& facts_;
  Error& error_;
  std::vector<Rule> rules_;
  int heads_ = 0, number_ = 0;
};

fastnorm_status NormTuning::read(std::string_view text, const char* library,
                                 std::span<const NormEntry> table, const DeviceFacts& facts,
                                 NormTuning* tuning, Error& error) {
  return Reader(library, table, facts, error).read(text, tuning);
}

int32_t NormTuning::find(const NormDesc& desc, NormKey key) const {
  if (desc.outer_rank != 1) return -1;
  const bool f32 = key.affine == Affine::kKept && f32_columns(desc),
             blocks = key.sink == Sink::kQuant && desc.quant.block != 0;
  const uint32_t packed = key.packed() | (f32 ? kF32Columns : 0) | (blocks ? kBlockScales : 0);
  const Rule wanted = {packed, desc.n, desc.rows, desc.rows, 0};
  // The last rule that begins at these rows or before them.
  const auto after = std::upper_bound(rules_.begin(), rules_.end(), wanted);
  if (after == rules_.begin()) return -1;
  const Rule& rule = after[-1];
  const bool fits = rule.key == wanted.key && rule.n == desc.n && desc.rows <= rule.most_rows;
  return fits ? rule.index : -1;
}

}  // namespace fastnorm
