#include "core/norm_tuning.h"

#include <algorithm>
#include <cinttypes>
#include <deque>
#include <string>
#include <tuple>

#include "core/check.h"

namespace fastnorm {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// How much of a text an error message shows.
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
        "options.tuning_file ends after %d of the %d lines that come before its choices; "
        "required: \"fastnorm tuning 2\", \"library %s\" and \"arch %s\"",
        heads_, kHeads, library_, facts_.arch->name);
    FASTNORM_TRY(sort());
    for (const Rule& rule : rules_) {
      tuning->kinds_.push_back(rule.kind);
      tuning->lines_.push_back(rule.line);
      tuning->lines_.back().text = "a line of the tuning file";
    }
    return FASTNORM_OK;
  }

 private:
  static constexpr int kHeads = 3;

  struct Rule {
    int32_t kind;
    NormChoice line;
  };

  // `wanted`: what the line must be.
  fastnorm_status head(std::string_view line, const char* name, const char* value) {
    Error& error = error_;
    const std::string wanted = std::string(name) + " " + value;
    FASTNORM_REQUIRE(line == wanted, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: \"%s %s\"; a file of "
                     "another library or GPU does not fit: \"fastnorm tune\" writes one",
                     number_, shown(line), line.data(), name, value);
    ++heads_;
    return FASTNORM_OK;
  }

  fastnorm_status read_line(std::string_view line) {
    if (heads_ == 0) return head(line, "fastnorm", "tuning 2");
    if (heads_ == 1) return head(line, "library", library_);
    if (heads_ == 2) return head(line, "arch", facts_.arch->name);
    Error& error = error_;
    FASTNORM_REQUIRE(parse_choice(line, &parsed_), FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: KIND(width, source, "
                     "statistic, weights, output, reach, ask, index) or ROWS(least n, most n, "
                     "least rows, most rows, threads, vectors, blocks, flavour)",
                     number_, shown(line), line.data());
    if (parsed_.is_kind) {
      has_kind_ = true;
      FASTNORM_REQUIRE((parsed_.kinds.index & NormKind::kHeads) == 0, FASTNORM_ERROR_ARGUMENT,
                       "options.tuning_file, line %d is for heads; required: rows", number_);
      return FASTNORM_OK;
    }
    FASTNORM_REQUIRE(has_kind_ && !parsed_.choice.pick.tokens, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: ROWS, after a KIND",
                     number_, shown(line), line.data());
    return read_choice(line);
  }

  fastnorm_status read_choice(std::string_view text) {
    NormChoice line = parsed_.choice;
    fastnorm_status status = FASTNORM_OK;
    for_each_kind(parsed_.kinds, [&](const NormKind& kind) {
      if (status == FASTNORM_OK) status = has_kernels(kind, line, text);
    });
    FASTNORM_TRY(status);
    if (line.pick.blocks > facts_.max_cluster_blocks) return FASTNORM_OK;
    line.text = texts_.emplace_back(text).c_str();
    for_each_kind(parsed_.kinds, [&](const NormKind& kind) {
      rules_.push_back({kind.number(), line});
    });
    return FASTNORM_OK;
  }

  // Checks that the kernel exists for every length of a line.
  fastnorm_status has_kernels(const NormKind& kind, const NormChoice& line, std::string_view text) {
    Error& error = error_;
    const NormPick& pick = line.pick;
    const int64_t step = int64_t{pick.threads} * pick.blocks;
    const int64_t most = std::min<int64_t>(line.most_vectors, step * kMaxVectors + 1);
    for (int64_t vectors = line.least_vectors;;
         vectors = std::min(most, (vectors + step - 1) / step * step + 1)) {
      const Tile tile = pick.tile(vectors);
      bool found = false;
      for_each_key(kind, pick.flavour, [&](NormKey key) {
        const int32_t index = find_entry(table_, key, tile);
        if (index < 0) return;
        const VectorRange held = vectors_held(table_[static_cast<size_t>(index)]);
        found |= vectors >= held.least && vectors <= held.most;
      });
      FASTNORM_REQUIRE(found, FASTNORM_ERROR_ARGUMENT,
                       "options.tuning_file, line %d is \"%.*s\"; required: a kernel that %s has "
                       "for rows of %" PRId64
                       " vectors of 16 bytes; \"fastnorm info --kernels\" lists them",
                       number_, shown(text), text.data(), facts_.arch->name, vectors);
      if (vectors >= most) return FASTNORM_OK;
    }
  }

  // Two lines for the same rows contradict each other, so neither is taken.
  fastnorm_status sort() {
    Error& error = error_;
    const auto order = [](const Rule& r) {
      return std::tuple(r.kind, r.line.least_vectors, r.line.least_rows);
    };
    std::sort(rules_.begin(), rules_.end(),
              [&](const Rule& a, const Rule& b) { return order(a) < order(b); });
    for (size_t i = 1; i < rules_.size(); ++i) {
      const NormChoice &a = rules_[i - 1].line, &b = rules_[i].line;
      const bool same_n = a.least_vectors == b.least_vectors && a.most_vectors == b.most_vectors;
      const bool apart = rules_[i - 1].kind != rules_[i].kind ||
                         (same_n ? a.most_rows < b.least_rows && a.most_rows != kNoLimit
                                 : a.most_vectors < b.least_vectors);
      FASTNORM_REQUIRE(apart, FASTNORM_ERROR_ARGUMENT,
                       "options.tuning_file has \"%s\" and \"%s\" for one kind of call; required: "
                       "lengths that are equal or disjoint, and rows that are disjoint",
                       a.text, b.text);
    }
    return FASTNORM_OK;
  }

  const char* const library_;
  const std::span<const NormEntry> table_;
  const DeviceFacts& facts_;
  Error& error_;
  std::deque<std::string> texts_;
  std::vector<Rule> rules_;
  ParsedChoice parsed_;
  bool has_kind_ = false;
  int heads_ = 0, number_ = 0;
};

fastnorm_status NormTuning::read(std::string_view text, const char* library,
                                 std::span<const NormEntry> table, const DeviceFacts& facts,
                                 NormTuning* tuning, Error& error) {
  return Reader(library, table, facts, error).read(text, tuning);
}

const NormChoice* NormTuning::find(NormKind kind, int64_t vectors, int64_t rows) const {
  const auto [first, last] = std::equal_range(kinds_.begin(), kinds_.end(), kind.number());
  const std::span<const NormChoice> lines(lines_.data() + (first - kinds_.begin()),
                                          static_cast<size_t>(last - first));
  return find_choice(lines, vectors, rows, [](const NormChoice&) { return int64_t{1}; });
}

}  // namespace fastnorm
