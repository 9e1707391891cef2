// What the lists of choices say, read from text: words and numbers between commas. All families
// read their lists with it when they are compiled, and the lines of tuning files.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fastnorm {

// A word of the lists, and the bits that it means.
struct ChoiceWord {
  std::string_view text;
  uint8_t bits;
};

constexpr std::string_view trimmed_choice(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// The text before `separator`, trimmed. `rest` then begins after the separator.
constexpr std::string_view take_word(std::string_view* rest, char separator = ',') {
  const size_t end = rest->find(separator);
  const std::string_view word = trimmed_choice(rest->substr(0, end));
  *rest = end == std::string_view::npos ? std::string_view{} : rest->substr(end + 1);
  return word;
}

// One or more words with | between. `bits` gets the bits of all of them.
constexpr bool take_words(std::string_view* rest, std::span<const ChoiceWord> words,
                          uint8_t* bits) {
  std::string_view all = take_word(rest);
  *bits = 0;
  do {
    const std::string_view wanted = take_word(&all, '|');
    bool known = false;
    for (const ChoiceWord& word : words) {
      if (word.text == wanted) *bits |= word.bits, known = true;
    }
    if (!known) return false;
  } while (!all.empty());
  return true;
}

// A number, `least` or more, or the word `name`, which stands for `named`.
constexpr bool take_number(std::string_view* rest, std::string_view name, int64_t named,
                           int64_t least, int64_t* value) {
  const std::string_view word = take_word(rest);
  if (!name.empty() && word == name) {
    *value = named;
    return true;
  }
  *value = 0;
  for (const char c : word) {
    if (c < '0' || c > '9' || *value > INT32_MAX) return false;
    *value = *value * 10 + (c - '0');
  }
  return !word.empty() && *value >= least && *value <= INT32_MAX;
}

// The name of a line NAME(rest), and its rest. Empty if the text is no such line.
constexpr std::string_view take_name(std::string_view text, std::string_view* rest) {
  text = trimmed_choice(text);
  const size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') return {};
  *rest = text.substr(open + 1, text.size() - open - 2);
  return text.substr(0, open);
}

}  // namespace fastnorm
