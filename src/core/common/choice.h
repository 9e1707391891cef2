// Which kernel a call runs on, as data. Each list holds rectangles of row length and number of
// rows. All families search their lists this way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace fastnorm {

// One line of a list: calls with these row lengths and numbers of rows run on `pick`.
template <class Pick>
struct Choice {
  int32_t least_vectors, most_vectors;  // of a row, 16 bytes each
  int32_t least_rows, most_rows;
  Pick pick;
  const char* text;  // the line as written
};

inline constexpr int32_t kNoLimit = INT32_MAX;

// The line for rows of `vectors`, or nullptr. Lines ascend by length, and lines of equal length by
// rows. The lengths of two lines are equal or disjoint. A line counts rows in units of
// `unit_of(line)` rows.
template <class Pick, class UnitOf>
[[gnu::always_inline]] inline const Choice<Pick>* find_choice(std::span<const Choice<Pick>> lines,
                                                              int64_t vectors, int64_t rows,
                                                              UnitOf unit_of) {
  const auto is_before = [&](const Choice<Pick>& line) {
    if (line.most_vectors < vectors) return true;
    if (line.least_vectors > vectors || line.most_rows == kNoLimit) return false;
    return rows >= (line.most_rows + int64_t{1}) * unit_of(line);
  };
  const auto line = std::partition_point(lines.begin(), lines.end(), is_before);
  if (line == lines.end() || line->least_vectors > vectors) return nullptr;
  return rows >= line->least_rows * unit_of(*line) ? &*line : nullptr;
}

}  // namespace fastnorm
