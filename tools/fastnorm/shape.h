// Shapes, lists of sizes and single numbers as they are typed. All options read them here, so that
// 4096x8192 and 4096,8192 are the same everywhere and a mistake is told in the same words.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace fastnorm::tool {

// What an option takes: how many whole numbers, and which.
struct SizeRule {
  int64_t least = 0, most = INT64_MAX;
  size_t fewest = 1, most_numbers = SIZE_MAX;
};

// The most of one extent, where an option has no reason for another bound.
inline constexpr int64_t kMostExtent = int64_t{1} << 24;

// The numbers of one text. Throws CLI::ValidationError, which names the option and the rule.
std::vector<int64_t> parse_sizes(const std::string& option, const std::string& text,
                                 const SizeRule& rule);

// An option whose value is a shape, or another list of numbers.
CLI::Option* add_sizes(CLI::App& command, const std::string& name, std::vector<int64_t>& value,
                       const std::string& text, const SizeRule& rule);
// An option with [rows, n] of several matrices: "1x4096,128x8192", or one as "4096,8192".
CLI::Option* add_matrices(CLI::App& command, const std::string& name,
                          std::vector<std::vector<int64_t>>& value, const std::string& text);

// An option whose value is one number. Its help shows the default unless the text tells it.
template <typename Whole>
CLI::Option* add_number(CLI::App& command, const std::string& name, Whole& value,
                        const std::string& text, int64_t least, int64_t most) {
  const SizeRule rule = {least, most, 1, 1};
  const auto read = [&value, name, rule](const CLI::results_t& given) {
    value = static_cast<Whole>(parse_sizes(name, given.back(), rule).front());
    return true;
  };
  CLI::Option* const option = command.add_option(name, read, text)->type_name("NUMBER");
  if (text.find("default: ") == std::string::npos) option->default_str(std::to_string(value));
  return option;
}

}  // namespace fastnorm::tool
