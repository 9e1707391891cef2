// Runs a fuzz target without libFuzzer, under any compiler, sanitizer or emulator: every file of a
// corpus, then inputs made of them by a seeded generator (the same ones every time).
//
//   norm_replay CORPUS_FOLDER MADE_INPUTS
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

uint64_t next_random(uint64_t* state) {  // splitmix64
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

std::vector<Input> read_corpus(const char* folder) {
  std::vector<std::filesystem::path> paths;
  if (!std::filesystem::is_directory(folder)) return {};
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// A file of the corpus with some bytes changed, or fresh random bytes.
Input make_input(const std::vector<Input>& corpus, uint64_t* state) {
  Input input;
  if (next_random(state) % 4 != 0) {
    input = corpus[next_random(state) % corpus.size()];
  } else {
    input.resize(next_random(state) % 512);
    for (uint8_t& b : input) b = static_cast<uint8_t>(next_random(state));
  }
  for (uint64_t i = next_random(state) % 8; i > 0 && !input.empty(); --i) {
    input[next_random(state) % input.size()] = static_cast<uint8_t>(next_random(state));
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<Input> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::printf("FAIL no corpus in %s\n0 passed, 1 failed, 0 skipped\n", argv[1]);
    return 1;
  }
  for (const Input& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  const long made = std::atol(argv[2]);
  uint64_t state = 1;
  for (long i = 0; i < made; ++i) {
    const Input input = make_input(corpus, &state);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  // A fault ends the program, so whoever gets here has passed; the files count, not what they
  // became.
  std::printf("%zu passed, 0 failed, 0 skipped\n", corpus.size());
  return 0;
}
