// Printing JSON, with keys in the order in which they were set.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fastnorm::tool {

using Json = nlohmann::ordered_json;

// Prints to stdout with a newline.
void print_json(const Json& document);
// Before work is done whose results are to go there: throws CommandError if they could not. Makes
// an empty file where there is none.
void require_writable(const std::string& path);
// Writes a file; throws CommandError.
void write_json(const std::string& path, const Json& document);

}  // namespace fastnorm::tool
