// The command line of fastnorm_check.
#pragma once

#include <string>

namespace fastnorm::check {

struct Options {
  bool cpu = true, cuda = true, simt = false;
  int cuda_device = -1;  // -1 = the first one, if there is any
  std::string isa;       // only this CPU instruction set; empty = all
  std::string
      filter;  // only kernels whose name contains this; ^ means that the name begins with it
  bool reduced = false;  // fewer sizes and rows: sanitizers, emulators
  int every = 1;         // N: every N-th case of a kernel, but at least one
  int threads = 0;       // for expected results; 0 = all processors

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
