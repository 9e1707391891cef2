// The command line of fastnorm_check.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace fastnorm::check {

struct Options {
  bool cpu = true, cuda = true, simt = false;
  int cuda_device = -1;  // -1 = the first one, if there is any
  std::string isa;       // only this CPU instruction set; empty = all
  std::string
      filter;  // only kernels whose name contains this; ^ means that the name begins with it
  bool reduced = false;      // fewer sizes and rows: sanitizers, emulators
  int every = 1;             // N: every N-th case of a kernel, but at least one
  int from = 0;              // the first one of these, counted from 0
  bool each = true;          // also calls for each kernel of a family: of N = 1, one part has them
  int threads = 0;           // for expected results; 0 = all processors
  std::string call;          // only this call, as a line of tests/support/operands.h
  std::string kernel;        // the kernel of a GPU that `call` runs on; empty: planning chooses
  bool wrong_order = false;  // of expected sums: shows what a failure looks like
  bool late = false;         // of a GPU: calls between kernels that start and write early and late
  bool races = false;        // with `late`: what reads the results does not wait for them

  // The first of `count` cases.
  uint64_t first(uint64_t count) const {
    const uint64_t last = std::min(static_cast<uint64_t>(every), count);
    return last == 0 ? 0 : static_cast<uint64_t>(from) % last;
  }
  // The filter may select one other family. Their names have a _, and those of norm's kernels none.
  bool wants_norm() const { return filter.find('_') == std::string::npos; }
  bool wants(const std::string& kernel) const {
    return filter.starts_with('^') ? kernel.starts_with(filter.substr(1))
                                   : kernel.find(filter) != std::string::npos;
  }
};

// Ends the program if arguments are wrong or help is requested.
Options parse_options(int argc, char** argv);

}  // namespace fastnorm::check
