#include "help.h"

#include <algorithm>
#include <memory>
#include <sstream>

namespace fastnorm::tool {
namespace {

constexpr size_t kColumn = 36, kWidth = 100;
constexpr size_t kShort = 50;  // of words that stand beside an option's name

std::string wrapped(const std::string& text, size_t width) {
  std::istringstream words(text);
  std::string lines;
  size_t used = 0;
  for (std::string word; words >> word;) {
    const bool fits = used == 0 || used + 1 + word.size() <= width;
    if (used != 0) lines += fits ? ' ' : '\n';
    used = fits ? used + (used != 0) + word.size() : word.size();
    lines += word;
  }
  return lines;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

// "rms,add" where CLI11 says "[rms,add]".
std::string default_of(const CLI::Option& option) {
  const std::string value = option.get_default_str();
  const bool list = value.size() > 1 && value.front() == '[';
  return list ? value.substr(1, value.size() - 2) : value;
}

class ExamplesFirst : public CLI::Formatter {
 public:
  explicit ExamplesFirst(const std::vector<std::string>& lines) {
    column_width(kColumn);
    text_ = "Examples:\n";
    for (const std::string& line : lines) text_ += "  " + line + "\n";
    text_ += "\n";
  }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return CLI::Formatter::make_help(app, name, mode);
    return text_ + CLI::Formatter::make_help(app, full_name(*app), mode);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::string name = "  " + command->get_name();
    name.resize(std::max(name.size() + 1, kColumn), ' ');
    std::string text = wrapped(command->get_description(), kWidth - kColumn);
    const std::string next_line = "\n" + std::string(kColumn, ' ');
    for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 2)) {
      text.replace(at, 1, next_line);
    }
    return name + text + "\n";
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";  // a flag
    const std::string words = joined(choices_of(*option)), value = default_of(*option);
    std::string text = " " + option->get_type_name();
    if (!words.empty()) text = words.size() <= kShort ? " {" + words + "}" : " WORD";
    if (!value.empty() && value.size() <= kShort) text += "=" + value;
    return text + (option->get_required() ? " REQUIRED" : "");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    const auto excluded = option->get_excludes();
    if (excluded.size() == 1) text += "; not with " + (*excluded.begin())->get_name();
    if (const std::string value = default_of(*option); value.size() > kShort) {
      text += "; default: ";
      for (const char c : value) text += c == ',' ? ", " : std::string(1, c);
    }
    return wrapped(text, kWidth - kColumn);
  }

 private:
  std::string text_;
};

}  // namespace

void set_examples(CLI::App& command, const std::vector<std::string>& lines) {
  command.formatter(std::make_shared<ExamplesFirst>(lines));
}

std::string full_name(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return (parent != nullptr ? full_name(*parent) + " " : "") + command.get_name();
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // "TEXT:{f32,f16}"
  const size_t begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  std::vector<std::string> words;
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

}  // namespace fastnorm::tool
