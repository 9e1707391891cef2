// Choices measured on one GPU, which take precedence over the library's. A pure function of a
// file's text and of a table: it reads no file. Tuning never changes results: every tile of a key
// gives the same bits.
//
// The text, line by line. Empty lines and lines that begin with # do not count:
//   fastnorm tuning 2
//   library 0.1.0                       the version that has these kernels
//   arch sm_90
//   KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)
//   ROWS(4096, 4096, 129, 512, 256, kFit, 1, cached)
//
// KIND and ROWS are those of the library's lists, see norm_choice.h. The lists are for rows with
// one index. Query and key heads keep the library's choice, which serves both.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/norm_plan.h"

namespace fastnorm {

class NormTuning {
 public:
  // Reads `text`. Errors name the line. `table` is that of `arch`. A kernel whose cluster a device
  // with these facts cannot schedule is left out.
  static fastnorm_status read(std::string_view text, const char* library,
                              std::span<const NormEntry> table, const DeviceFacts& facts,
                              NormTuning* tuning, Error& error);

  // The line for calls of a kind, or nullptr. It lives as long as this object.
  const NormChoice* find(NormKind kind, int64_t vectors, int64_t rows) const;

  size_t size() const { return lines_.size(); }

 private:
  class Reader;

  std::vector<int32_t> kinds_;     // kind of each line, ascending
  std::vector<NormChoice> lines_;  // of one kind in the order of find_choice()
};

}  // namespace fastnorm
