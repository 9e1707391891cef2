// MLA decode on a GPU: results against double, bits of two runs, plans, graphs; and times.
//
//   mla_decode_gpu check [few]       all comparisons; few: small shapes, for sanitizers
//   mla_decode_gpu bench [ids]       times in graphs, cold caches, beside the ceilings of the run
//   mla_decode_gpu profile ID PATH   a profile of a shape, as the kernel writes it
#include <map>
#include <set>

#include "core/mla_decode/profile.h"
#include "support/mla_decode_work.h"
#include "world.cuh"

namespace fastnorm::cuda {

// The library's is in device.cpp, with all other kernels.
fastnorm_status device_error(const char* expression, cudaError_t code, Error& error) {
  return error.set(FASTNORM_ERROR_DEVICE, "%s: %s", expression, cudaGetErrorString(code));
}

}  // namespace fastnorm::cuda

namespace fastnorm::mla_gpu {
namespace {

std::vector<int> repeated(int count, int value) {
  return std::vector<int>(static_cast<size_t>(count), value);
}

std::vector<int> drawn(int count, int below, unsigned seed, int least = 0) {
  std::mt19937 random(seed);
  std::vector<int> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(least + static_cast<int>(random() % static_cast<unsigned>(below)));
  }
  return values;
}

// ---- comparisons

float number(const uint8_t* at, bool f16) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (f16) {
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// Bytes of an output row and of its LSE behind the guard.
size_t row_at(const World& w, int token, int head) {
  return w.c.o == Layout::kHeadsFirst ? static_cast<size_t>(head) * w.tokens + token
                                      : static_cast<size_t>(token) * w.c.heads + head;
}

// Samples rows; all where there are few. Returns an empty text if all agree.
std::string compare(const World& w, const std::vector<uint8_t>& bytes, int samples, double* worst) {
  std::vector<Row> rows;
  std::mt19937 random(3);
  const int all = w.owned * w.c.heads;
  const auto add = [&](int k) {
    Row row = {};
    row.token = k / w.c.heads, row.head = k % w.c.heads;
    while (w.qo_starts[static_cast<size_t>(row.request) + 1] <= row.token) ++row.request;
    row.in_request = row.token - w.qo_starts[static_cast<size_t>(row.request)];
    row.s_q = w.s_q_of(row.request);
    row.length = w.c.lengths[static_cast<size_t>(row.request)];
    rows.push_back(row);
  };
  for (int i = 0; i < std::min(samples, all); ++i) {
    add(samples >= all ? i : i == 0 ? 0 : i == 1 ? all - 1 : static_cast<int>(random() % all));
  }
  if (rows.empty()) return "";
  Row* device = nullptr;
  CHECK_CUDA(cudaMalloc(&device, rows.size() * sizeof(Row)));
  CHECK_CUDA(cudaMemcpy(device, rows.data(), rows.size() * sizeof(Row), cudaMemcpyHostToDevice));
  const auto kernel = w.c.f16 ? reference<__half> : reference<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(rows.size()), 512>>>(w.view(0), device);
  CHECK_CUDA(cudaMemcpy(rows.data(), device, rows.size() * sizeof(Row), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device));
  const uint8_t* const o = bytes.data() + World::kGuard;
  const uint8_t* const lse = bytes.data() + w.o_bytes + 3 * World::kGuard;
  const double unit = w.c.f16 ? 1.0 / 1024 : 1.0 / 256;
  for (const Row& row : rows) {
    const size_t at = row_at(w, row.token, row.head);
    float got_lse;
    std::memcpy(&got_lse, lse + at * 4, 4);
    const double want_lse = w.c.base_2 ? row.lse / std::log(2.0) : row.lse;
    const bool lse_right =
        std::isinf(want_lse) ? got_lse == static_cast<float>(want_lse)
                             : std::fabs(got_lse - want_lse) <= 1e-4 + 1.2e-4 * std::fabs(want_lse);
    double error = 0;
    for (int i = 0; i < 512; ++i) {
      const double got = number(o + at * 1024 + static_cast<size_t>(i) * 2, w.c.f16);
      // Half a unit for P against sum p |v|, half for o, and as much again.
      const double bound = (std::fabs(row.o[i]) + row.magnitude[i]) * unit + 1e-6;
      const double share = std::fabs(got - row.o[i]) / bound;
      error = share == share ? std::max(error, share) : 1e9;
    }
    *worst = std::max(*worst, error);
    if (!lse_right || error > 1) {
      char text[200];
      std::snprintf(text, sizeof text,
                    "request %d (length %d, s_q %d) token %d head %d: error %.3g of the bound, lse "
                    "%.7g for %.7g",
                    row.request, row.length, row.s_q, row.in_request, row.head, error, got_lse,
                    want_lse);
      return text;
    }
  }
  return "";
}

// Guards, and rows that no request owns.
bool untouched(const World& w, const std::vector<uint8_t>& bytes) {
  const auto is = [&](size_t from, size_t count, uint8_t value) {
    for (size_t i = from; i < from + count; ++i) {
      if (bytes[i] != value) return false;
    }
    return true;
  };
  const size_t g = World::kGuard, lse = w.o_bytes + 2 * g;
  bool good = is(0, g, 0xa5) && is(g + w.o_bytes, g, 0xa5) && is(lse, g, 0xa5) &&
              is(lse + g + w.lse_bytes, g, 0xa5);
  for (int token = w.owned; token < w.tokens; ++token) {
    for (int head = 0; head < w.c.heads; ++head) {
      const size_t at = row_at(w, token, head);
      good = good && is(g + at * 1024, 1024, 0xff) && is(lse + g + at * 4, 4, 0xff);
    }
  }
  return good;
}

// The device's plan is the host's.
std::string compare_plan(const World& w) {
  std::vector<MlaDecodeLength> lengths;
  for (size_t b = 0; b < w.c.lengths.size(); ++b) {
    lengths.push_back({w.c.lengths[b], w.s_q_of(static_cast<int>(b))});
  }
  std::vector<MlaDecodePart> parts(static_cast<size_t>(w.plan.parts)), got(parts.size());
  std::vector<MlaDecodeSplit> splits(static_cast<size_t>(w.plan.max_splits) + 1);
  MlaDecodePlanHeader header, got_header;
  mla_decode_work(lengths, w.c.heads, w.plan.split_tiles, parts, splits, &header);
  CHECK_CUDA(cudaMemcpy(&got_header, w.workspace, sizeof header, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(got.data(), w.workspace + w.plan.parts_offset,
                        got.size() * sizeof(MlaDecodePart), cudaMemcpyDeviceToHost));
  if (got_header.splits != header.splits || got_header.units != header.units ||
      got_header.pieces != header.pieces) {
    return "plan header " + std::to_string(got_header.splits) + " splits for " +
           std::to_string(header.splits) + ", pieces " + std::to_string(got_header.pieces) +
           " for " + std::to_string(header.pieces);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (std::memcmp(&parts[i], &got[i], sizeof(MlaDecodePart)) != 0) {
      char text[200];
      std::snprintf(text, sizeof text,
                    "part %zu: device (%d,%d)-(%d,%d) piece %d length %d, host (%d,%d)-(%d,%d) "
                    "piece %d length %d",
                    i, got[i].first_request, got[i].first_tile, got[i].last_request,
                    got[i].last_tile, got[i].first_piece, got[i].first_length,
                    parts[i].first_request, parts[i].first_tile, parts[i].last_request,
                    parts[i].last_tile, parts[i].first_piece, parts[i].first_length);
      return text;
    }
  }
  std::vector<MlaDecodeSplit> got_splits(static_cast<size_t>(header.splits));
  if (!got_splits.empty()) {
    CHECK_CUDA(cudaMemcpy(got_splits.data(), w.workspace + w.plan.splits_offset,
                          got_splits.size() * sizeof(MlaDecodeSplit), cudaMemcpyDeviceToHost));
    if (std::memcmp(got_splits.data(), splits.data(), got_splits.size() * sizeof(MlaDecodeSplit)) !=
        0) {
      return "list of splits";
    }
  }
  return "";
}

struct Tally {
  int passed = 0, failed = 0;
  void note(const std::string& id, const std::string& complaint) {
    if (complaint.empty()) {
      ++passed;
    } else {
      ++failed;
      std::printf("FAIL %s: %s\n", id.c_str(), complaint.c_str());
    }
  }
};

std::string check_case(const Case& c, int samples, double* worst) {
  World w(c, 1, 1, true);
  std::vector<uint8_t> first, second;
  for (auto* bytes : {&first, &second}) {
    w.poison();
    w.poison_workspace();
    w.run(0, false, nullptr);
    CHECK_CUDA(cudaDeviceSynchronize());
    *bytes = w.outputs();
  }
  if (const std::string text = compare_plan(w); !text.empty()) return text;
  if (!untouched(w, first)) return "wrote outside of its rows";
  if (const std::string text = compare(w, first, samples, worst); !text.empty()) return text;
  if (first != second) return "two runs differ in bits";
  w.poison();
  w.poison_workspace(w.plan.partial_lse_offset);
  w.run(0, true, nullptr);
  CHECK_CUDA(cudaDeviceSynchronize());
  if (w.outputs() != first) return "differs in bits with reuse_plan";
  return "";
}

// Lengths change between replays of one graph; two calls back to back.
std::string check_graph(const Case& c, const std::vector<std::vector<int>>& lengths) {
  World w(c, 1, 1, false);
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  w.run(0, false, stream);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  w.run(0, false, stream);
  w.run(0, true, stream);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  std::string complaint;
  for (const std::vector<int>& now : lengths) {
    w.set_lengths(now);
    w.poison();
    w.poison_workspace();
    CHECK_CUDA(cudaGraphLaunch(replay, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    const std::vector<uint8_t> of_graph = w.outputs();
    double worst = 0;
    complaint = compare(w, of_graph, 100, &worst);
    if (!complaint.empty()) break;
    w.poison();
    w.run(0, false, stream);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    if (w.outputs() != of_graph) complaint = "a replay differs in bits";
  }
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return complaint;
}

// With split_tokens a request has the bits that it has alone and on other grids.
std::string check_fixed_split(Case c) {
  std::vector<uint8_t> all;
  for (const int parts : {0, 7, 1}) {
    c.parts = parts;
    World w(c, 1, 1, true);
    w.poison();
    w.poison_workspace();
    w.run(0, false, nullptr);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (const std::string text = compare_plan(w); !text.empty()) return text;
    std::vector<uint8_t> now = w.outputs();
    if (all.empty()) all = now;
    if (now != all) return "bits depend on the number of parts";
    if (parts != 0) continue;
    for (int b = 0; b < static_cast<int>(c.lengths.size()); ++b) {
      // Request b alone: all others are empty.
      std::vector<int> alone(c.lengths.size(), 0);
      alone[static_cast<size_t>(b)] = c.lengths[static_cast<size_t>(b)];
      w.set_lengths(alone);
      w.poison();
      w.run(0, false, nullptr);
      CHECK_CUDA(cudaDeviceSynchronize());
      now = w.outputs();
      const size_t rows = static_cast<size_t>(w.s_q_of(b)) * c.heads;
      const size_t at =
          World::kGuard + static_cast<size_t>(w.qo_starts[static_cast<size_t>(b)]) * c.heads * 1024;
      if (std::memcmp(now.data() + at, all.data() + at, rows * 1024) != 0) {
        return "bits of request " + std::to_string(b) + " depend on the others";
      }
      w.set_lengths(c.lengths);
    }
  }
  return "";
}

std::vector<Case> few_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* id, std::vector<int> lengths, int heads, int s_q) -> Case& {
    cases.push_back({});
    cases.back().id = id;
    cases.back().lengths = std::move(lengths);
    cases.back().heads = heads;
    cases.back().s_q = s_q;
    cases.back().causal = s_q > 1;
    return cases.back();
  };
  add("one", {64}, 64, 1);
  add("two", {128}, 64, 1);
  add("three", {192}, 64, 1).f16 = true;
  add("tail", {17, 100, 129, 200, 1, 0}, 16, 1);
  add("page16", {17, 300, 0, 65}, 16, 2).page = 16;
  add("page1", {17, 300, 0, 65}, 16, 2).page = 1;
  Case& ragged = add("ragged", {90, 10, 3, 200}, 9, 1);
  ragged.tokens = {3, 0, 5, 1}, ragged.causal = true, ragged.page = 48, ragged.csr = true;
  Case& fixed = add("fixed", {500, 64, 128}, 16, 1);
  fixed.split_tokens = 128, fixed.parts = 4;
  Case& layouts = add("heads first", {130, 70}, 24, 2);
  layouts.q = layouts.o = Layout::kHeadsFirst, layouts.fused_cache = false;
  add("grow", {300, 77}, 16, 1).q_scale = 10;
  return cases;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = few_cases();
  const auto add = [&](std::string id, std::vector<int> lengths, int heads, int s_q) -> Case& {
    cases.push_back({});
    cases.back().id = std::move(id);
    cases.back().lengths = std::move(lengths);
    cases.back().heads = heads;
    cases.back().s_q = s_q;
    cases.back().causal = s_q > 1;
    return cases.back();
  };
  add("four", {256, 256}, 64, 1);
  add("h128", {1000, 33, 4096}, 128, 1);
  add("h16q4", {1000, 2, 0, 65, 3000}, 16, 4);
  add("h9q3", {500, 1, 64, 128, 2}, 9, 3);
  add("h128q2", {4097, 1, 700, 63}, 128, 2);
  add("h1", {513, 64}, 1, 1);
  add("h1q5", {513, 3}, 1, 5);
  add("h3q2 not causal", {513, 64, 7}, 3, 2).causal = false;
  add("many", drawn(300, 900, 5), 64, 1);
  add("mixed", drawn(40, 5000, 6, 1), 128, 1);
  add("grow many", drawn(60, 1500, 7, 1), 64, 1).q_scale = 10;
  add("grow q2", {4000, 777, 64, 2500}, 128, 2).q_scale = 10;
  add("many q4", drawn(64, 600, 8), 32, 4);
  add("long", {40000}, 16, 1);
  add("long q4", {4641, 45118, 1730, 1696}, 16, 4);
  add("all empty", repeated(5, 0), 16, 2);
  add("much", drawn(5000, 80, 9), 16, 1);
  add("many heads", {300, 1200}, 1000, 17);
  for (const int page : {1, 2, 3, 8, 16, 17, 32, 48, 64, 96, 128, 192, 512}) {
    for (const bool csr : {false, true}) {
      Case& c = add("page " + std::to_string(page) + (csr ? " csr" : ""),
                    {700, 1, 0, 64, 1345, 333}, csr ? 128 : 16, csr ? 1 : 3);
      c.page = page, c.csr = csr, c.f16 = csr, c.fused_cache = !csr, c.base_2 = csr;
    }
  }
  for (const Layout q : {Layout::kFused, Layout::kSeparate, Layout::kHeadsFirst}) {
    for (const Layout o : {Layout::kSeparate, Layout::kHeadsFirst}) {
      for (const int heads : {8, 24, 64, 126, 128}) {
        for (const int s_q : {1, 3}) {
          Case& c =
              add("layout h" + std::to_string(heads) + " q" + std::to_string(s_q) + " " +
                      std::to_string(static_cast<int>(q)) + std::to_string(static_cast<int>(o)),
                  {200, 0, 77, 1500}, heads, s_q);
          c.q = q, c.o = o;
        }
      }
    }
  }
  for (const int heads : {8, 9, 16, 64, 126}) {
    for (const int page : {1, 64}) {
      Case& c = add("ragged h" + std::to_string(heads) + " page " + std::to_string(page),
                    {200, 17, 77, 1500, 40, 0, 900}, heads, 1);
      c.tokens = {1, 30, 0, 7, 3, 2, 1};
      c.causal = true, c.page = page, c.csr = page == 1;
      c.o = heads == 9 ? Layout::kHeadsFirst : Layout::kSeparate;
      c.q = heads == 16 ? Layout::kHeadsFirst : Layout::kSeparate;
    }
  }
  for (const int split : {64, 128, 1024}) {
    for (const int heads : {16, 128}) {
      Case& c = add("split " + std::to_string(split) + " h" + std::to_string(heads),
                    {3000, 0, 64, 65, 12000, 900}, heads, 1);
      c.split_tokens = split;
    }
  }
  return cases;
}

// FlashMLA's and FlashInfer's own matrices, thinned by `step`.
std::vector<Case> peer_cases(int step) {
  std::vector<Case> cases;
  int count = 0;
  const auto add = [&](Case c) {
    if (count++ % step == 0) cases.push_back(std::move(c));
  };
  for (const int b : {1, 2, 6, 64}) {
    for (const int s_q : {1, 2, 4}) {
      for (const int s_k : {20, 140, 4096}) {
        for (const int heads : {1, 3, 9, 63, 64, 126, 128}) {
          for (const bool varied : {false, true}) {
            for (const bool causal : {false, true}) {
              for (const bool f16 : {false, true}) {
                Case c;
                c.id = "matrix b" + std::to_string(b) + " q" + std::to_string(s_q) + " k" +
                       std::to_string(s_k) + " h" + std::to_string(heads) +
                       (varied ? " varied" : "") + (causal ? " causal" : "") + (f16 ? " f16" : "");
                c.lengths = repeated(b, s_k);
                std::mt19937 random(static_cast<unsigned>(b * 7 + s_k));
                std::normal_distribution<double> normal(s_k, s_k / 2.0);
                for (int& length : c.lengths) {
                  if (varied) length = std::max(static_cast<int>(normal(random)), s_q);
                }
                c.heads = heads, c.s_q = s_q, c.causal = causal, c.f16 = f16;
                add(c);
              }
            }
          }
        }
      }
    }
  }
  const int lengths[4][4] = {
      {0, 1, 3, 11}, {17, 33, 79, 114}, {514, 2743, 8736, 96}, {97, 1024, 75, 197}};
  for (const int b : {1, 3, 5, 7, 157}) {
    for (const int s_q : {1, 3, 5, 7, 9, 11, 13, 15, 17}) {
      for (const int heads : {16, 64}) {
        for (const int page : {1, 16, 32}) {
          for (const bool causal : {false, true}) {
            for (int shift = 0; shift < 4; ++shift) {
              Case c;
              c.id = "varied b" + std::to_string(b) + " q" + std::to_string(s_q) + " h" +
                     std::to_string(heads) + " page " + std::to_string(page) +
                     (causal ? " causal " : " ") + std::to_string(shift);
              for (int i = 0; i < b; ++i) {
                c.lengths.push_back(lengths[b == 157 ? 1 : i % 3][(i + shift) % 4]);
              }
              c.heads = heads, c.s_q = s_q, c.page = page, c.causal = causal;
              c.f16 = true, c.csr = true, c.fused_cache = false, c.base_2 = true;
              c.q = Layout::kSeparate;
              add(c);
            }
          }
        }
      }
    }
  }
  Case zeros;
  zeros.id = "half empty";
  zeros.lengths = repeated(128, 0);
  for (size_t i = 0; i < 128; i += 2) zeros.lengths[i] = static_cast<int>(20 + 30 * i);
  zeros.heads = 128, zeros.s_q = 2, zeros.causal = true;
  cases.push_back(zeros);
  return cases;
}

int check(bool few, int step) {
  Tally tally;
  double worst = 0;
  for (const Case& c : few ? few_cases() : all_cases()) {
    tally.note(c.id, check_case(c, few ? 60 : 300, &worst));
  }
  std::printf("cases: %d passed, %d failed, worst error %.2f of the bound\n", tally.passed,
              tally.failed, worst);
  if (!few) {
    worst = 0;
    for (const Case& c : peer_cases(step)) tally.note(c.id, check_case(c, 40, &worst));
    std::printf("with the peers' matrices: %d passed, %d failed, worst error %.2f\n", tally.passed,
                tally.failed, worst);
  }
  Case graph;
  graph.id = "graph";
  graph.lengths = {3000, 64, 800, 4000}, graph.heads = 16, graph.s_q = 2, graph.causal = true;
  tally.note(
      "graph",
      check_graph(graph,
                  {{3000, 64, 800, 4000}, {5, 0, 800, 3999}, {0, 0, 0, 0}, {3000, 1, 63, 64}}));
  graph.page = 1, graph.heads = 128;
  tally.note("graph page 1", check_graph(graph, {{3000, 64, 800, 4000}, {1, 60, 0, 129}}));
  Case split;
  split.lengths = {3000, 0, 64, 65, 1200, 900}, split.split_tokens = 128;
  tally.note("fixed split", check_fixed_split(split));
  split.heads = 100, split.s_q = 2, split.causal = true, split.page = 7;
  tally.note("fixed split page 7", check_fixed_split(split));
  std::printf("%d passed, %d failed, 0 skipped\n", tally.passed, tally.failed);
  return tally.failed != 0;
}

// ---- times

std::vector<Case> bench_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* id, std::vector<int> lengths, int heads, int s_q,
                       bool causal) -> Case& {
    cases.push_back({});
    cases.back().id = id;
    cases.back().lengths = std::move(lengths);
    cases.back().heads = heads, cases.back().s_q = s_q, cases.back().causal = causal;
    return cases.back();
  };
  add("D1", repeated(1, 4096), 128, 1, false);
  add("D2", repeated(1, 131072), 16, 1, false);
  add("D3", repeated(32, 4096), 128, 1, false);
  add("D4", {4641, 45118, 1730, 1696}, 16, 4, true);
  add("D5", repeated(64, 1024), 64, 1, false);
  add("C1a", repeated(128, 4096), 64, 1, false);
  add("C1b", repeated(128, 8192), 64, 1, false);
  add("C2", repeated(128, 8192), 32, 1, false);
  add("C3a", repeated(128, 4096), 16, 1, false);
  add("C3b", repeated(128, 4096), 16, 2, true);
  add("C4", repeated(768, 8192), 64, 1, false);
  add("B1", repeated(128, 4096), 128, 1, false);
  add("B2", repeated(128, 8192), 128, 1, false);
  add("B3", repeated(128, 32768), 128, 1, false);
  add("B4a", repeated(128, 4096), 128, 2, true);
  add("B4b", repeated(128, 8192), 128, 2, true);
  for (const int mean : {4096, 8192, 16384}) {
    for (const int s_q : {1, 2}) {
      static std::vector<std::string> names;
      names.push_back("B5_" + std::to_string(mean / 1024) + "k_q" + std::to_string(s_q));
      Case& c = add(names.back().c_str(), {}, 128, s_q, true);
      std::mt19937 random(static_cast<unsigned>(1234 + mean + s_q));
      std::normal_distribution<double> normal(mean, mean / 2.0);
      for (int i = 0; i < 128; ++i) {
        c.lengths.push_back(static_cast<int>(std::max(normal(random), double(s_q))));
      }
    }
  }
  int a = 0;
  for (const int length : {1024, 2048, 8192}) {
    for (const int batch : {64, 128, 768}) {
      for (const int heads : {64, 128}) {
        static std::vector<std::string> names;
        names.push_back("A" + std::to_string(++a));
        for (const int page : {64, 1, 16}) {
          Case& c = add((names.back() + "p" + std::to_string(page)).c_str(),
                        repeated(batch, length), heads, 1, false);
          c.page = page, c.f16 = true;
        }
      }
    }
  }
  return cases;
}

__global__ void read_all(const uint4* data, size_t count, uint4* out) {
  uint4 x = {0, 0, 0, 0};
  const size_t first = blockIdx.x * size_t{blockDim.x} * 8 + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const size_t at = first + static_cast<size_t>(k) * blockDim.x;
    if (at >= count) continue;
    const uint4 v = data[at];
    x.x ^= v.x, x.y ^= v.y, x.z ^= v.z, x.w ^= v.w;
  }
  if ((x.x & x.y & x.z & x.w) == 0x12345678) *out = x;
}

struct Timer {
  cudaEvent_t start, stop;
  cudaStream_t stream;
  Timer() {
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&stop));
    CHECK_CUDA(cudaStreamCreate(&stream));
  }
  template <class Work>
  float milliseconds(Work work) {
    CHECK_CUDA(cudaEventRecord(start, stream));
    work();
    CHECK_CUDA(cudaEventRecord(stop, stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, stop));
    return ms;
  }
  template <class Work>
  cudaGraphExec_t captured(Work work) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    work();
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return replay;
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_ceilings(Timer& timer) {
  const size_t bytes = size_t{4} << 30;
  char *from = nullptr, *to = nullptr;
  CHECK_CUDA(cudaMalloc(&from, bytes));
  CHECK_CUDA(cudaMalloc(&to, bytes));
  fill_normal<<<2048, 256>>>(reinterpret_cast<__nv_bfloat16*>(from), bytes / 2, 5, 1.0f);
  std::vector<double> reads, copies;
  for (int i = 0; i < 12; ++i) {
    reads.push_back(timer.milliseconds([&] {
      read_all<<<static_cast<unsigned>((bytes / 16 + 2047) / 2048), 256, 0, timer.stream>>>(
          reinterpret_cast<uint4*>(from), bytes / 16, reinterpret_cast<uint4*>(to));
    }));
    copies.push_back(timer.milliseconds([&] {
      CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, timer.stream));
    }));
  }
  std::printf("ceilings: read %.3f TB/s, copy %.3f TB/s\n", bytes / median(reads) * 1e-9,
              2.0 * bytes / median(copies) * 1e-9);
  CHECK_CUDA(cudaFree(from));
  CHECK_CUDA(cudaFree(to));
}

struct Work {
  double flop = 0, bytes = 0;
};
Work work_of(const Case& c) {
  double pairs = 0, tokens = 0;
  for (const int length : c.lengths) {
    tokens += length;
    for (int i = 0; i < c.s_q; ++i) {
      pairs += c.causal ? std::max(0, length - c.s_q + i + 1) : length;
    }
  }
  const double rows = static_cast<double>(c.lengths.size()) * c.s_q * c.heads;
  return {2.0 * c.heads * 1088 * pairs, 2.0 * (rows * 1088 + 576 * tokens)};
}

// us of one call: calls over rotating caches in a graph, plan made before; the second half of each
// burst, since the first brings the card to this load's clocks.
void bench_case(Timer& timer, const Case& c, double burst_ms) {
  World w(c, 2e9, 256, false);
  w.poison();
  w.run(0, false, timer.stream);
  CHECK_CUDA(cudaStreamSynchronize(timer.stream));
  double worst = 0;
  const std::string complaint = compare(w, w.outputs(), c.lengths[0] > 40000 ? 4 : 12, &worst);
  cudaGraphExec_t replay = timer.captured([&] {
    for (int copy = 0; copy < w.copies; ++copy) w.run(copy, true, timer.stream);
  });
  cudaGraphExec_t planned = timer.captured([&] {
    for (int i = 0; i < 20; ++i) {
      MlaDecodeDesc d = w.desc(0);
      Error error;
      cuda::launch_mla_decode_plan(d, w.plan, w.workspace, timer.stream, error);
    }
  });
  const auto launch = [&](cudaGraphExec_t graph) {
    return [&, graph] { CHECK_CUDA(cudaGraphLaunch(graph, timer.stream)); };
  };
  timer.milliseconds(launch(replay));
  const double once = timer.milliseconds(launch(replay));
  const int count = std::max(4, static_cast<int>(std::ceil(burst_ms / once)));
  std::vector<double> times;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < count; ++i) {
      const double ms = timer.milliseconds(launch(replay));
      if (i >= count / 2) times.push_back(ms / w.copies * 1e3);
    }
  }
  timer.milliseconds(launch(planned));
  const double plan_us = timer.milliseconds(launch(planned)) / 20 * 1e3;
  cudaGraphExec_t single = timer.captured([&] { w.run(0, true, timer.stream); });
  char* flushed = nullptr;
  CHECK_CUDA(cudaMalloc(&flushed, 256 << 20));
  std::vector<double> isolated;
  for (int i = 0; i < (c.lengths.size() < 100 ? 20 : 6); ++i) {
    CHECK_CUDA(cudaMemsetAsync(flushed, i, 256 << 20, timer.stream));
    isolated.push_back(timer.milliseconds(launch(single)) * 1e3);
  }
  CHECK_CUDA(cudaFree(flushed));
  const Work work = work_of(c);
  const double us = median(times);
  std::printf("%-10s %8.1f us %5.0f TF %5.2f TB/s  isolated %7.1f  plan %5.1f us  %s\n",
              c.id.c_str(), us, work.flop / us * 1e-6, work.bytes / us * 1e-6, median(isolated),
              plan_us, complaint.empty() ? "right" : complaint.c_str());
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphExecDestroy(planned));
  CHECK_CUDA(cudaGraphExecDestroy(single));
}

int bench(const std::string& ids, double burst_ms) {
  cudaDeviceProp properties;
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  Timer timer;
  print_ceilings(timer);
  for (const Case& c : bench_cases()) {
    if (ids != "all" && ("," + ids + ",").find("," + c.id + ",") == std::string::npos) continue;
    bench_case(timer, c, burst_ms);
  }
  return 0;
}

int profile(const std::string& id, const char* path) {
  for (const Case& c : bench_cases()) {
    if (c.id != id) continue;
    World w(c, 1, 1, false);
    constexpr int kEvents = 4096;
    const uint64_t writers = static_cast<uint64_t>(w.plan.m_tiles) * w.plan.parts * kMlaGroups;
    const uint64_t bytes = profile_bytes(writers, kEvents);
    std::byte* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(&buffer, bytes));
    CHECK_CUDA(cudaMemset(buffer, 0xff, bytes));
    for (int i = 0; i < 3; ++i) w.run(0, false, nullptr, buffer, kEvents);
    CHECK_CUDA(cudaDeviceSynchronize());
    double worst = 0;
    const std::string complaint = compare(w, w.outputs(), 12, &worst);
    Timer timer;
    std::vector<double> plain, profiled;
    for (int i = 0; i < 20; ++i) {
      plain.push_back(timer.milliseconds([&] { w.run(0, true, timer.stream); }));
      profiled.push_back(
          timer.milliseconds([&] { w.run(0, true, timer.stream, buffer, kEvents); }));
    }
    std::printf("profile %s: plain %.1f us, profiled %.1f us, %s\n", id.c_str(),
                median(plain) * 1e3, median(profiled) * 1e3,
                complaint.empty() ? "right" : complaint.c_str());
    std::vector<char> host(bytes);
    CHECK_CUDA(cudaMemcpy(host.data(), buffer, bytes, cudaMemcpyDeviceToHost));
    std::FILE* const file = std::fopen(path, "wb");
    if (file == nullptr) return 2;
    std::fwrite(host.data(), 1, host.size(), file);
    std::fclose(file);
    return !complaint.empty();
  }
  std::printf("no shape %s\n", id.c_str());
  return 2;
}

}  // namespace
}  // namespace fastnorm::mla_gpu

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string mode = count > 1 ? arguments[1] : "";
  const std::string first = count > 2 ? arguments[2] : "";
  if (mode == "check") {
    const bool few = first == "few";
    const int step = few || first.empty() ? 10 : std::atoi(first.c_str());
    return fastnorm::mla_gpu::check(few, std::max(step, 1));
  }
  if (mode == "bench") {
    return fastnorm::mla_gpu::bench(first.empty() ? "all" : first,
                                    count > 3 ? std::atof(arguments[3]) : 50);
  }
  if (mode == "profile" && count > 3) return fastnorm::mla_gpu::profile(first, arguments[3]);
  std::printf("usage: mla_decode_gpu check [few | STEP] | bench [IDS] [MS] | profile ID PATH\n");
  return 2;
}
