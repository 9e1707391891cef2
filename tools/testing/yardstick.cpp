// What the times of stages are multiples of: a file that takes a second to compile, and a program
// that runs for one. It stays as it is; a change of it changes every number of tools/stages.csv.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <string>
#include <vector>

int main() {
  uint64_t state = 1;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  };
  std::vector<uint32_t> numbers(1 << 21);
  uint64_t sum = 0;
  for (int round = 0; round < 5; ++round) {
    for (uint32_t& number : numbers) number = next();
    std::sort(numbers.begin(), numbers.end());
    for (size_t i = 0; i < numbers.size(); i += 1000) sum += numbers[i];
  }
  std::map<std::string, int> words;
  const std::regex word("[0-9]+7");
  for (int i = 0; i < 100000; ++i) {
    const std::string text = std::to_string(next());
    if (std::regex_match(text, word)) ++words[text.substr(0, 3)];
  }
  std::printf("%llu %zu\n", static_cast<unsigned long long>(sum), words.size());
}
