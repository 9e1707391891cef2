// The completion script of bash.
#include "completion_table.h"

namespace fastnorm::tool {
namespace {

// What a case of the script says before it looks at the option.
std::string bash_case(const CompletedCommand& command) {
  std::vector<std::string> names;
  for (const CompletedOption& o : command.options) {
    names.insert(names.end(), o.names.begin(), o.names.end());
  }
  std::string text = "    " + quoted(command.path, "") + ")\n";
  text += "      options=" + quoted(spaced(names), "") + "\n";
  if (!command.commands.empty()) {
    text += "      commands=" + quoted(spaced(command.commands), "") + "\n";
  }
  if (!command.arguments.empty()) {
    const std::vector<std::string>& words = command.arguments.front().words;
    text += "      arguments=1 choices=" + quoted(spaced(words), "") + "\n";
  }
  text += "      case $previous in\n";
  for (const CompletedOption& o : command.options) {
    if (o.value == CompletedOption::kNone) continue;
    std::string name = o.names.front();
    for (size_t i = 1; i < o.names.size(); ++i) name += " | " + o.names[i];
    text += "        " + name + ") value=1";
    if (o.value == CompletedOption::kFile) text += " files=1";
    if (!o.words.empty()) text += " words=" + quoted(spaced(o.words), "");
    if (o.value == CompletedOption::kList) text += " list=1";
    text += " ;;\n";
  }
  return text + "      esac\n      ;;\n";
}

}  // namespace

std::string bash_script(const std::vector<CompletedCommand>& commands) {
  // The words are those of the line: bash's own are cut at each colon of "cuda:0" and each "=".
  std::string text = R"(# Completion of fastnorm in bash. "fastnorm completion bash" prints it.
_fastnorm() {
  local line=${COMP_LINE:0:COMP_POINT} typed=() path=fastnorm i
  read -ra typed <<<"$line"
  [[ $line == *[[:space:]] ]] && typed+=('')
  local count=${#typed[@]} word previous
  word=${typed[count - 1]} previous=${typed[count - 2]}
  if [[ $word == --*=* ]]; then
    previous=${word%%=*} word=${word#*=}
  fi
  for ((i = 1; i < count - 1; ++i)); do
    case "$path ${typed[i]}" in
      )";
  for (size_t i = 1; i < commands.size(); ++i) {
    text += (i == 1 ? "" : " | \\\n      ") + quoted(commands[i].path, "");
  }
  text += R"() path+=" ${typed[i]}" ;;
    esac
  done
  local options='' commands='' arguments='' choices='' value='' files='' words='' list=''
  case $path in
)";
  for (const CompletedCommand& command : commands) text += bash_case(command);
  text += R"(  esac
  if [[ ! $value ]]; then
    if [[ $word == -* || ! $commands$arguments ]]; then
      words=$options
    elif [[ $commands ]]; then
      words=$commands
    elif [[ $choices ]]; then
      words=$choices
    else
      files=1
    fi
  fi
  COMPREPLY=()
  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  elif [[ $list ]]; then
    local before=''
    [[ $word == *,* ]] && before=${word%,*},
    compopt -o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "${word##*,}")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
  local piece=${COMP_WORDS[COMP_CWORD]}
  [[ $piece == [:=] ]] && piece=''
  COMPREPLY=("${COMPREPLY[@]#"${word%"$piece"}"}")
}
complete -F _fastnorm fastnorm
)";
  return text;
}

}  // namespace fastnorm::tool
