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
    "  --from K                 the first of them, from 0; FASTNORM_CHECK_PART=K/N divides the "
    "cases\n"
    "                           that the options name into N parts, and runs part K\n"
    "  --threads N              threads that compute what is expected (default: all processors)\n"
    "  --call LINE              only this call. What fails prints its command with such a line.\n"
    "                           A line is a family and FIELD=VALUE words: norm seed=7 eps=1e-5\n"
    "                           x=bf16[4,64] y=bf16[4,64]; tests/support/operands.h has the rest\n"
    "  --kernel NAME            the kernel of a GPU that the call runs on (default: as planned)\n"
    "  --wrong-order            expects sums in a wrong order, so that most cases fail\n"
    "  --late                   GPU: another kernel writes a call's tensors after the call's own\n"
    "                           kernel may have started, and a third one, which may start before\n"
    "                           that has ended, reads the results (programmatic dependent "
    "launch)\n"
    "  --late-races             the same, but the third kernel does not wait, so that cases may "
    "fail\n";

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

// "K/N": part K, from 0, of N.
void take_part(const char* text, Options* options) {
  int part = 0, parts = 0, end = 0;
  const bool read = std::sscanf(text, "%d/%d%n", &part, &parts, &end) == 2 && text[end] == '\0';
  if (!read || part < 0 || part >= parts || parts > 1000) {
    stop("FASTNORM_CHECK_PART must be K/N with 0 <= K < N <= 1000, not ", text);
  }
  options->each = options->every == 1 && part == 0;
  options->from += part * options->every;
  options->every *= parts;
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
      {"from", required_argument, nullptr, 'o'},   {"call", required_argument, nullptr, 'c'},
      {"kernel", required_argument, nullptr, 'k'}, {"wrong-order", no_argument, nullptr, 'w'},
      {"late", no_argument, nullptr, 'l'},         {"late-races", no_argument, nullptr, 'x'},
      {"help", no_argument, nullptr, 'h'},         {nullptr, 0, nullptr, 0}};
  Options options;
  for (int c; (c = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
    if (c == 'd') set_device(optarg, &options);
    if (c == 'i') options.isa = optarg;
    if (c == 'f') options.filter = optarg;
    if (c == 'r') options.reduced = true;
    if (c == 'c') options.call = optarg;
    if (c == 'k') options.kernel = optarg;
    if (c == 'w') options.wrong_order = true;
    if (c == 'l' || c == 'x') options.late = true;
    if (c == 'x') options.races = true;
    if (c == 'e') options.every = number(optarg, 1, "every must be at least 1, not ");
    if (c == 'o') options.from = number(optarg, 0, "from must be at least 0, not ");
    if (c == 't') options.threads = number(optarg, 1, "threads must be at least 1, not ");
    if (c == '?') stop("see the options", "");
    if (c == 'h') {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
  }
  if (optind < argc) stop("unknown argument ", argv[optind]);
  options.each = options.every == 1;
  if (const char* part = std::getenv("FASTNORM_CHECK_PART")) take_part(part, &options);
  if (options.threads == 0) {
    options.threads = static_cast<int>(std::thread::hardware_concurrency());
    if (options.threads == 0) options.threads = 1;
  }
  return options;
}

}  // namespace fastnorm::check
