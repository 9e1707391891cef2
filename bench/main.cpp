// fastnorm_bench: the library against the ceiling of the machine it runs on, in one run.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/devices.h"
#include "bench/mla_decode.h"
#include "bench/norm_heads_backward.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Times libfastnorm against the best plain stream of the same bytes, measured in the same "
      "run."};
  std::string device = "cpu", csv;
  std::vector<std::string> lists = {"large"}, ops = {"rms", "add", "layer"}, dtypes = {"bf16"}, mla,
                           heads, gradients;
  bench::Options options;
  int host_cost = 0;
  app.add_option("--device", device, "cpu or cuda:N")->capture_default_str();
  app.add_option(
         "--shapes", lists,
         "lists (large, decode, middle, small, long, odd, strided, quantised, heads, training, "
         "training_few, training_short, stages, stages_training, cpu) or ROWSxN[+GAP][@SHIFT], "
         "separated by commas: "
         "GAP "
         "elements between rows, the first row "
         "SHIFT "
         "elements behind an aligned address")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option(
         "--ops", ops,
         "rms, layer, add (RMS of a residual sum), add_layer; with _fp8, _row_fp8, "
         "_block_fp8, _mxfp8 or _nvfp4 where codes leave in place of y, before that with _rot16, "
         "_rot32 or _rot128 where blocks of so many columns are rotated first, with _rounded where "
         "the sum and what is normalised are rounded before they are used; qk (query and key "
         "heads of a fused tensor, in place; a shape is TOKENSxHEAD), qk_rounded; rms_backward, "
         "layer_backward (dx, dweight and dbias), add_backward, add_layer_backward (with the "
         "gradient of the stored sum); gated (norm times silu of a gate), gated_before (norm of "
         "x times silu of a gate), sandwich (norm, residual, norm), adaln (gated residual, norm, "
         "scale and shift), each alone or with _backward; adaln_tables (adaln, modulators and "
         "tables of them in f32), modulated (RMS with a weight and a scale)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::operations()))
      ->capture_default_str();
  app.add_option("--mla-decode", mla,
                 "MLA decode in place of norms: lists (page1, long, heads, small) or "
                 "LENGTHS:HEADS[:NEW][c][pPAGE], such as 128x4096:128:2cp64; c: causal")
      ->delimiter(',');
  app.add_option("--norm-heads", heads,
                 "heads with rope and cache in place of norms: lists (qwen3, qwen3-64, olmo2, "
                 "olmo2-32b, mla), TOKENSxQUERY+KEYxHEAD[:CACHE][:across] or TOKENSxmla[:CACHE], "
                 "such as 4096x32+8x128:fp8; CACHE: none (in place), own, fp8; across: of one "
                 "statistic for all heads of a token")
      ->delimiter(',');
  app.add_option("--norm-heads-backward", gradients,
                 "gradients of heads in place of norms: lists (qwen3, qwen3-64, olmo2, "
                 "olmo2-32b) or "
                 "TOKENSxQUERY+KEYxHEAD[:GRADIENTS], such as 4096x32+8x128:dx; GRADIENTS: all (dx "
                 "and dweight), dx, across (all, of one statistic for all heads), rope (without a "
                 "norm)")
      ->delimiter(',');
  app.add_option("--dtypes", dtypes, "bf16, f16, f32")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  app.add_option("--replays", options.replays, "timed replays of each graph; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--f32-parameters", options.f32_parameters,
               "weight and bias, and their gradients, in f32 beside 16-bit rows");
  app.add_flag("--pdl", options.pdl,
               "CUDA: a second column with programmatic dependent launch between the calls");
  app.add_flag("!--no-constant-weights", options.constant_weights,
               "with --pdl: norms have their default flags, and so read weights behind their wait");
  app.add_option(
         "--chain", options.chain,
         "CUDA: only the time of a norm in a chain of so many, each of which reads what the "
         "one before it wrote; in a graph and launched one by one, and with programmatic "
         "dependent launch off, by default, and with weights that are constant")
      ->check(CLI::Range(1, 10000));
  app.add_option("--host-cost", host_cost,
                 "only the nanoseconds of a call without its launch, planned for a compute "
                 "capability such as 90; needs no GPU");
  app.add_option("--csv", csv, "write the results to this file, one line a case");
  CLI11_PARSE(app, argc, argv);
  try {
    bool written = true;
    options.save = [&](const nlohmann::json& document) {
      if (!csv.empty() && written) written = bench::write_results(csv, document);
    };
    int failed = 0;
    if (host_cost != 0) {
      options.save(bench::bench_host_cost(host_cost));
    } else {
      const auto on_device = [&](auto on_cpu, auto on_cuda) {
        if (device != "cpu") return on_cuda(std::stoi(device.substr(5)));
        if (options.pdl) throw std::invalid_argument("--pdl needs --device cuda:N");
        if (options.chain != 0) throw std::invalid_argument("--chain needs --device cuda:N");
        return on_cpu();
      };
      if (device == "cpu" || device.starts_with("cuda:")) {
        const int families =
            (mla.empty() ? 0 : 1) + (heads.empty() ? 0 : 1) + (gradients.empty() ? 0 : 1);
        if (families > 1) {
          throw std::invalid_argument(
              "--mla-decode, --norm-heads and --norm-heads-backward exclude each other");
        }
        if (families != 0 && (options.chain != 0 || options.f32_parameters))
          throw std::invalid_argument("--chain and --f32-parameters are of norms");
        if (!heads.empty()) {
          const auto cases = bench::make_norm_heads_cases(heads, dtypes);
          failed =
              on_device([&] { return bench::bench_norm_heads_cpu(cases, options); },
                        [&](int id) { return bench::bench_norm_heads_cuda(id, cases, options); });
        } else if (!gradients.empty()) {
          const auto cases = bench::make_norm_heads_backward_cases(gradients, dtypes);
          failed = on_device(
              [&] { return bench::bench_norm_heads_backward_cpu(cases, options); },
              [&](int id) { return bench::bench_norm_heads_backward_cuda(id, cases, options); });
        } else if (!mla.empty()) {
          const auto cases = bench::make_mla_decode_cases(mla, dtypes);
          failed =
              on_device([&] { return bench::bench_mla_decode_cpu(cases, options); },
                        [&](int id) { return bench::bench_mla_decode_cuda(id, cases, options); });
        } else {
          const auto cases = bench::make_cases(lists, ops, dtypes);
          failed = on_device([&] { return bench::bench_cpu(cases, options); },
                             [&](int id) {
                               return options.chain != 0
                                          ? bench::bench_chain_cuda(id, cases, options)
                                          : bench::bench_cuda(id, cases, options);
                             });
        }
      } else {
        throw std::invalid_argument("--device is " + device + "; required: cpu or cuda:N");
      }
    }
    if (!written || failed != 0) return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fastnorm_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}
