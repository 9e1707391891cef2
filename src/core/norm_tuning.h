// What was measured on one GPU: choices that go before the library's. A pure function of a file's text and of a table;
// no file is read here. Whatever a tuning says, results have the same bits: every tile of a key gives the same.
//
// The text, a line each; what begins with # and what is empty does not count:
//   fastnorm tuning 2
//   library 0.1.0                       the version that has these kernels
//   arch sm_90
//   KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)
//   ROWS(4096, 4096, 129, 512, 256, kFit, 1, cached)
// KIND and ROWS are those of the library's own lists: see norm_choice.h. Lists are for rows of one index: query and
// key heads keep the library's choice, which is the same for both.
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
  // Reads `text`, with errors that name its line. `table` is the one of `arch`; kernels whose clusters a device with
  // these facts cannot schedule do not count there.
  static fastnorm_status read(std::string_view text, const char* library,
                              std::span<const NormEntry> table, const DeviceFacts& facts,
                              NormTuning* tuning, Error& error);

  // The line for calls of a kind, or nullptr. It lives as long as this.
  const NormChoice* find(NormKind kind, int64_t vectors, int64_t rows) const;

  size_t size() const { return lines_.size(); }

 private:
  class Reader;

  std::vector<int32_t> kinds_;     // of each line, ascending
  std::vector<NormChoice> lines_;  // of one kind in the order of find_choice()
};

}  // namespace fastnorm
