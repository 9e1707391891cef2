// Which kernel a call runs on, as data: lists of rectangles of row length and number of rows, which every family
// searches alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace fastnorm {

// One line of a list: calls with rows of these lengths, and so many of them, run on `pick`.
template <class Pick>
struct Choice {
  int32_t least_vectors, most_vectors;  // of a row, 16 bytes each
  int32_t least_rows, most_rows;
  Pick pick;
  const char* text;  // the line, as it is written
};

inline constexpr int32_t kNoLimit = INT32_MAX;

// The line for rows of `vectors`, or nullptr. Lines ascend by length, and by rows where lengths are equal; lengths of
// two lines are equal or disjoint. `rows_of(line)` is the number that the line's rows are compared with.
template <class Pick, class RowsOf>
const Choice<Pick>* find_choice(std::span<const Choice<Pick>> lines, int64_t vectors,
                                RowsOf rows_of) {
  const auto first =
      std::partition_point(lines.begin(), lines.end(),
                           [=](const Choice<Pick>& line) { return line.most_vectors < vectors; });
  for (auto line = first; line != lines.end() && line->least_vectors <= vectors; ++line) {
    const int64_t rows = rows_of(*line);
    if (rows <= line->most_rows || line->most_rows == kNoLimit)
      return rows >= line->least_rows ? &*line : nullptr;
  }
  return nullptr;
}

}  // namespace fastnorm
