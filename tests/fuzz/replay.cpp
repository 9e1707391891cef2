// Runs a fuzz target without libFuzzer, under any compiler, sanitizer or emulator: every file of a
// corpus, then inputs made of them by a seeded generator (the same ones every time).
//
//   norm_replay CORPUS_FOLDER MADE_INPUTS
//   norm_replay --call 'norm kind=layer x,y=bf16[2,64]'
//
// The second says what a dry run of one call gives: that of a finding, of any family but peers.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "support/call_functions.h"
#include "support/call_text.h"

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

int say(const char* text) {
  try {
    fastnorm::support::Call call(text);
    const std::string family = call.family().name;
    if (family.starts_with("peer_"))
      throw fastnorm::support::CallTextError("a dry run has no peers");
    const auto* const functions = fastnorm::support::find_functions(family);
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    options.flags = FASTNORM_CONTEXT_DRY_RUN;
    options.dry_run_capability = call.device().device_type == FASTNORM_DEVICE_CUDA ? 90 : 0;
    fastnorm_context* context = nullptr;
    fastnorm_status status = fastnorm_context_create(call.device(), &options, &context);
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    if (status == FASTNORM_OK) {
      const fastnorm::support::GivenCall given = {call.args<void>(), call.parts<void>(),
                                                  call.count()};
      status = functions->query(context, given, &info);
    }
    std::printf("%s\n%s: %s\n", call.text().c_str(), fastnorm_status_name(status),
                status == FASTNORM_OK ? info.kernel : fastnorm_last_error());
    fastnorm_context_destroy(context);
    return status == FASTNORM_OK ? 0 : 1;
  } catch (const fastnorm::support::CallTextError& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--call") return say(argv[2]);
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
