// Choices measured on one GPU, which take precedence over the library's. A pure function of a
// file's text and of tables: it reads no file. Tuning never changes results: every kernel that can
// serve a call gives the same bits.
//
// The text, line by line. Empty lines and lines that begin with # do not count. `library` is the
// version that has these kernels:
//
//     fastnorm tuning 2
//     library 0.1.0
//     arch sm_90
//     KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)
//     ROWS(4096, 4096, 129, 512, 256, kFit, 1, cached)
//     KIND(many, b16, rms, plain)
//     ROWS(4096, 4096, 513, 4096, 512, 1, 1, 1, 2, 1)
//
// KIND and ROWS are those of the library's lists: of the forward (norm/choice.h) or of the backward
// pass (norm_backward/choice.h). A KIND line says whose lines follow.
#pragma once

#include <span>
#include <string_view>

#include "core/norm/tuning.h"
#include "core/norm_backward/tuning.h"

namespace fastnorm {

// The kernels of an architecture.
struct TuningTables {
  std::span<const NormEntry> norm;
  std::span<const NormBackwardEntry> norm_backward;
};

struct Tuning {
  NormTuning norm;
  NormBackwardTuning norm_backward;

  size_t size() const { return norm.size() + norm_backward.size(); }
};

// Reads `text` into `tuning`, which stays as it is if there is an error. Errors name the line.
fastnorm_status read_tuning(std::string_view text, const char* library, const TuningTables& tables,
                            const DeviceFacts& facts, Tuning* tuning, Error& error);

}  // namespace fastnorm
