#include "suggest.h"

#include <algorithm>
#include <numeric>

namespace fastnorm::tool {
namespace {

// Letters to insert, remove or change; two neighbours in the wrong order count as one.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = last;
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_word(const std::string& typed, const std::vector<std::string>& words) {
  std::string nearest;
  const size_t letters = typed.size() - std::min(typed.size(), typed.find_first_not_of('-'));
  size_t least = std::min<size_t>(letters / 3, 2) + 1;
  for (const std::string& word : words) {
    const size_t count = edits(typed, word);
    if (count < least) {
      least = count;
      nearest = word;
    }
  }
  return nearest;
}

}  // namespace fastnorm::tool
