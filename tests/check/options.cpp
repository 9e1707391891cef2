#include "check/options.h"

#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace fastnorm::check {
namespace {

constexpr char kHelp[] =
    "usage: fastnorm_check [options]\n"
    "Runs every kernel of every table and compares each result with the specification, bit for "
    "bit.\n"
    "  --device cpu|cuda:N|simt|all  what to test (default: cpu and cuda; simt is the CUDA\n"
    "                           kernels on a SIMT machine in software)\n"
    "  --isa NAME               only this CPU instruction set\n"
    "  --filter SUBSTRING       only kernels whose name contains it; ^TEXT: begins with TEXT;\n"
    "                           mla_decode: that family alone; mla_decode GROUP\n"
    "  --reduced                fewer sizes and rows, for sanitizers and emulators\n"
    "  --every N                only every N-th case of each kernel, one at the least\n"
    "  --threads N              threads that compute what is expected (default: all processors)\n";

[[noreturn]] void stop(const char* message, const char* value) {
  std::fprintf(stderr, "fastnorm_check: %s%s\n%s", message, value, kHelp);
  std::exit(2);
}

// A whole number, at least `least`.
int number(const char* text, int least, const char* option) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > 1 << 20) stop(option, text);
  return static_cast<int>(value);
}

void set_device(const char* text, Options* options) {
  const bool all = std::strcmp(text, "all") == 0;
  options->cpu = all || std::strcmp(text, "cpu") == 0;
  options->cuda = all || std::strncmp(text, "cuda", 4) == 0;
  options->simt = all || std::strcmp(text, "simt") == 0;
  if (!options->cpu && !options->cuda && !options->simt) stop("unknown device ", text);
  if (std::strncmp(text, "cuda:", 5) == 0) {
    options->cuda_device = number(text + 5, 0, "unknown device cuda:");
  }
}

}  // namespace

Options parse_options(int argc, char** argv) {
  static const option kOptions[] = {
      {"device", required_argument, nullptr, 'd'}, {"isa", required_argument, nullptr, 'i'},
      {"filter", required_argument, nullptr, 'f'}, {"reduced", no_argument, nullptr, 'r'},
      {"every", required_argument, nullptr, 'e'},  {"threads", required_argument, nullptr, 't'},
      {"help", no_argument, nullptr, 'h'},         {nullptr, 0, nullptr, 0}};
  Options options;
  for (int c; (c = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
    if (c == 'd') set_device(optarg, &options);
    if (c == 'i') options.isa = optarg;
    if (c == 'f') options.filter = optarg;
    if (c == 'r') options.reduced = true;
    if (c == 'e') options.every = number(optarg, 1, "every must be at least 1, not ");
    if (c == 't') options.threads = number(optarg, 1, "threads must be at least 1, not ");
    if (c == '?') stop("see the options", "");
    if (c == 'h') {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
  }
  if (optind < argc) stop("unknown argument ", argv[optind]);
  if (options.threads == 0) {
    options.threads = static_cast<int>(std::thread::hardware_concurrency());
    if (options.threads == 0) options.threads = 1;
  }
  return options;
}

}  // namespace fastnorm::check
