#include "shape.h"

#include <charconv>
#include <optional>

namespace fastnorm::tool {
namespace {

// The bytes of a few matrices with such extents fit into 64 bits.
constexpr SizeRule kMatrix = {1, int64_t{1} << 28, 2, 2};

std::optional<std::vector<int64_t>> numbers_of(const std::string& text, const SizeRule& rule) {
  const char separator = text.find('x') != std::string::npos ? 'x' : ',';
  std::vector<int64_t> numbers;
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < rule.least || number > rule.most ||
        (stop != end && *stop != separator)) {
      return std::nullopt;
    }
    numbers.push_back(number);
    if (stop == end) break;
    at = stop + 1;
  }
  if (numbers.size() < rule.fewest || numbers.size() > rule.most_numbers) return std::nullopt;
  return numbers;
}

std::string words_of(const SizeRule& rule) {
  const bool one = rule.most_numbers == 1, bounded = rule.most_numbers != SIZE_MAX;
  std::string text = one ? "a number" : "numbers";
  if (!one && bounded) {
    text = (rule.fewest == rule.most_numbers ? "" : std::to_string(rule.fewest) + " to ") +
           std::to_string(rule.most_numbers) + " numbers";
  }
  text += " from " + std::to_string(rule.least) +
          (rule.most == INT64_MAX ? " on" : " to " + std::to_string(rule.most));
  return one ? text : text + " with x between them, such as 4096x8192";
}

std::string shape_text(const std::vector<int64_t>& numbers, char separator) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}

}  // namespace

std::vector<int64_t> parse_sizes(const std::string& option, const std::string& text,
                                 const SizeRule& rule) {
  if (auto numbers = numbers_of(text, rule)) return *numbers;
  const std::string given = text.empty() ? "empty" : text;
  throw CLI::ValidationError(option + " is " + given + "; required: " + words_of(rule));
}

CLI::Option* add_sizes(CLI::App& command, const std::string& name, std::vector<int64_t>& value,
                       const std::string& text, const SizeRule& rule) {
  const auto read = [&value, name, rule](const CLI::results_t& given) {
    value = parse_sizes(name, given.back(), rule);
    return true;
  };
  CLI::Option* const option = command.add_option(name, read, text)->type_name("SHAPE");
  if (!value.empty()) option->default_str(shape_text(value, ','));
  return option;
}

CLI::Option* add_matrices(CLI::App& command, const std::string& name,
                          std::vector<std::vector<int64_t>>& value, const std::string& text) {
  const auto read = [&value, name](const CLI::results_t& given) {
    value.clear();
    for (const std::string& shapes : given) {
      const bool one = shapes.find('x') == std::string::npos;
      for (size_t begin = 0; begin <= shapes.size();) {
        const size_t end = one ? shapes.size() : std::min(shapes.find(',', begin), shapes.size());
        value.push_back(parse_sizes(name, shapes.substr(begin, end - begin), kMatrix));
        begin = end + 1;
      }
    }
    return true;
  };
  std::string shown;
  for (const auto& shape : value) shown += (shown.empty() ? "" : ",") + shape_text(shape, 'x');
  return command.add_option(name, read, text)
      ->type_name("SHAPE")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args()
      ->default_str(shown);
}

}  // namespace fastnorm::tool
