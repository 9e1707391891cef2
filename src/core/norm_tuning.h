// What was measured on one GPU: kernels that are faster there than the ladder's choice. A pure function of a file's text and of a
// table; no file is read here. Whatever a tuning says, results have the same bits: every tile of a key gives the same.
//
// The text, a line each; what begins with # and what is empty does not count:
//   fastnorm tuning 1
//   library 0.1.0                       the version that has these kernels
//   arch sm_90
//   norm ROWS N KERNEL                  calls of ROWS rows (a number, LEAST-MOST, or LEAST-) of N elements run on KERNEL, a name
//                                       of fastnorm_kernel_describe(), where it is of the same key as the ladder's choice, but for
//                                       whether it is bare, keeps its columns or is for wide rows: of rules for the same calls one
//                                       with a bare kernel counts before one with kept columns, a wide one and the others. A kernel
//                                       that keeps its columns takes those of x's dtype by this rule, and
//   norm-f32 ROWS N KERNEL              f32 columns by this; and one that makes scales from the values makes one a row by a rule of
//                                       the first kind, and
//   norm-blocks ROWS N KERNEL           scales of blocks of columns by this
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
  // Reads `text`, with errors that name its line. `table` is the one of `arch`; kernels whose clusters a device with these facts cannot
  // schedule do not count there.
  static fastnorm_status read(std::string_view text, const char* library,
                              std::span<const NormEntry> table, const DeviceFacts& facts,
                              NormTuning* tuning, Error& error);

  // Index in the table of the kernel for a call with this key, or -1. Calls of one index of a row alone: query and key heads keep the
  // ladder's tile, which is the same for both.
  int32_t find(const NormDesc& desc, NormKey key) const;

  size_t size() const { return rules_.size(); }

 private:
  struct Rule {
    uint32_t key;  // packed, and which calls a kernel takes that takes both kinds
    int64_t n;
    int64_t least_rows, most_rows;
    int32_t index;

    friend bool operator<(const Rule& a, const Rule& b) {
      if (a.key != b.key) return a.key < b.key;
      if (a.n != b.n) return a.n < b.n;
      return a.least_rows < b.least_rows;
    }
  };

  class Reader;

  std::vector<Rule> rules_;  // in order; none has rows of another of the same key and n
};

}  // namespace fastnorm
