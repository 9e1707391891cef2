// What somebody who mistyped a word may have meant.
#pragma once

#include <string>
#include <vector>

namespace fastnorm::tool {

// The word that is nearest to `typed`, where one of three letters at the most is wrong, and two
// in all; "" where none is.
std::string nearest_word(const std::string& typed, const std::vector<std::string>& words);

}  // namespace fastnorm::tool
