// A test that draws its inputs at random, or goes through a long range, takes a share of them where
// each takes long: FASTNORM_TEST_SHARE=7 is every seventh. Sanitizers and emulators look for faults
// of the code, which a share finds. The values are those of the build without them.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace fastnorm::support {

// 1 without the variable.
inline int share() {
  static const int of = [] {
    const char* const text = std::getenv("FASTNORM_TEST_SHARE");
    return text == nullptr ? 1 : std::max(1, std::atoi(text));
  }();
  return of;
}

inline int share_of(int all) { return std::max(1, all / share()); }

}  // namespace fastnorm::support
