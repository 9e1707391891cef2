// The norms of ggml's CPU backend with and without libfastnorm, in one process. The last line is
// the count; with --time, lines of operator, rows, columns, and microseconds of both.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fastnorm_ggml.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr float kEps = 1e-5f;
int passed = 0, failed = 0;

void check(const std::string& name, bool ok, const std::string& text = "") {
  (ok ? passed : failed) += 1;
  if (!ok) std::printf("FAIL %s: %s\n", name.c_str(), text.c_str());
}

// Memory of a case, and random values for its tensors.
class Graph {
 public:
  Graph() : context(ggml_init({size_t{1} << 28, nullptr, false})) {}
  ~Graph() { ggml_free(context); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  ggml_tensor* tensor(std::vector<int64_t> ne) {
    ne.resize(4, 1);
    ggml_tensor* const t = ggml_new_tensor(context, GGML_TYPE_F32, 4, ne.data());
    auto* const values = static_cast<float*>(t->data);
    for (int64_t i = 0; i < ggml_nelements(t); ++i) values[i] = next();
    return t;
  }

  ggml_context* const context;

 private:
  // Uniform in [-1, 2), so that rows have a mean.
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state_ >> 40) / static_cast<float>(1 << 24) * 3.0f - 1.0f;
  }

  uint64_t state_ = 1;
};

float at(const ggml_tensor* t, const int64_t (&i)[4]) {
  const char* p = static_cast<const char*>(t->data);
  for (int k = 0; k < 4; ++k) p += static_cast<size_t>(i[k] % t->ne[k]) * t->nb[k];
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void each(const ggml_tensor* t, const std::function<void(const int64_t (&)[4])>& work) {
  int64_t i[4];
  for (i[3] = 0; i[3] < t->ne[3]; ++i[3])
    for (i[2] = 0; i[2] < t->ne[2]; ++i[2])
      for (i[1] = 0; i[1] < t->ne[1]; ++i[1])
        for (i[0] = 0; i[0] < t->ne[0]; ++i[0]) work(i);
}

std::vector<float> values_of(const ggml_tensor* t) {
  std::vector<float> values;
  each(t, [&](const int64_t(&i)[4]) { values.push_back(at(t, i)); });
  return values;
}

// In double precision, of the values that x has now.
std::vector<double> exact(const ggml_tensor* x, const ggml_tensor* weight, bool layer) {
  std::vector<double> y;
  const std::vector<float> values = values_of(x);
  const auto n = static_cast<size_t>(x->ne[0]);
  for (size_t row = 0; row < values.size(); row += n) {
    double mean = 0, square = 0;
    for (size_t i = 0; layer && i < n; ++i) mean += values[row + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      square += (values[row + i] - mean) * (values[row + i] - mean) / static_cast<double>(n);
    }
    for (size_t i = 0; i < n; ++i)
      y.push_back((values[row + i] - mean) / std::sqrt(square + static_cast<double>(kEps)));
  }
  size_t k = 0;
  if (weight != nullptr) each(x, [&](const int64_t(&i)[4]) { y[k++] *= at(weight, i); });
  return y;
}

struct Case {
  std::string name;
  bool layer, ours;  // ours: the library takes it
  std::function<ggml_tensor*(Graph&)> x;
  std::function<ggml_tensor*(Graph&)> weight = nullptr;
  bool in_place = false;
};

ggml_tensor* build(Graph& g, const Case& c, ggml_tensor* x, ggml_tensor* weight) {
  ggml_context* const context = g.context;
  ggml_tensor* y =
      c.layer ? (c.in_place ? ggml_norm_inplace(context, x, kEps) : ggml_norm(context, x, kEps))
      : c.in_place ? ggml_rms_norm_inplace(context, x, kEps)
                   : ggml_rms_norm(context, x, kEps);
  return weight == nullptr ? y : ggml_mul(context, y, weight);
}

double worst(const std::vector<float>& y, const std::vector<double>& wanted) {
  double most = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(y[i] - wanted[i]) / (1 + std::abs(wanted[i]));
    most = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(most, error);
  }
  return most;
}

void run(const Case& c) {
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 8}) {
    const std::string name = c.name + ", " + std::to_string(threads) + " threads";
    std::vector<float> results[2];
    std::vector<double> wanted;
    bool takes = c.ours;
    for (const int ours : {0, 1}) {
      Graph g;
      ggml_tensor* const x = c.x(g);
      ggml_tensor* const weight = c.weight ? c.weight(g) : nullptr;
      wanted = exact(x, weight, c.layer);
      takes = c.ours && ggml_nelements(x) >= FASTNORM_GGML_LEAST_ELEMENTS;
      ggml_tensor* const y = build(g, c, x, weight);
      ggml_cgraph* const graph = ggml_new_graph(g.context);
      ggml_build_forward_expand(graph, y);
      const long before = fastnorm_ggml_enable(ours);
      ggml_graph_compute_with_ctx(g.context, graph, threads);
      const long calls = fastnorm_ggml_enable(1) - before;
      check(name + ": calls", (calls > 0) == (ours == 1 && takes),
            std::to_string(calls) + " calls of the library");
      results[ours] = values_of(y);
    }
    const double error = worst(results[1], wanted), theirs = worst(results[0], wanted);
    check(name + ": values", error <= (takes ? 6e-7 : 2e-5),
          "an error of " + std::to_string(error * 1e7) + "e-7");
    check(name + ": beside ggml's", theirs <= 2e-5, std::to_string(theirs));
    if (first.empty()) first = results[1];
    const bool same =
        std::memcmp(first.data(), results[1].data(), first.size() * sizeof(float)) == 0;
    check(name + ": bits", !takes || same, "other bits than on one thread");
  }
}

std::function<ggml_tensor*(Graph&)> compact(std::vector<int64_t> ne) {
  return [ne](Graph& g) { return g.tensor(ne); };
}

void test() {
  for (const bool layer : {false, true}) {
    const std::string op = layer ? "NORM" : "RMS_NORM";
    const std::vector<std::vector<int64_t>> shapes = {
        {64, 1}, {4096, 1}, {37, 5}, {128, 7, 3, 2}, {1029, 4}, {1, 6}, {80, 1, 9}, {64, 0}};
    for (const auto& ne : shapes) {
      std::string name = op;
      for (const int64_t extent : ne) name += " " + std::to_string(extent);
      const bool rows = std::all_of(ne.begin(), ne.end(), [](int64_t e) { return e > 0; });
      if (rows && ne[0] > 1) run({name, layer, true, compact(ne)});
      if (rows && ne[0] > 1) run({name + " in place", layer, true, compact(ne), nullptr, true});
    }
    run({op + " of a view", layer, true, [](Graph& g) {
           ggml_tensor* const all = g.tensor({200, 9});
           return ggml_view_2d(g.context, all, 100, 9, all->nb[1], 52 * sizeof(float));
         }});
    run({op + " of permuted heads", layer, true, [](Graph& g) {
           return ggml_permute(g.context, g.tensor({64, 5, 4}), 0, 2, 1, 3);
         }});
  }
  run({"NORM of columns, which is ggml's", true, false, [](Graph& g) {
         return ggml_permute(g.context, g.tensor({6, 40}), 1, 0, 2, 3);
       }});
  const std::vector<int64_t> x = {96, 6, 4, 2};
  const std::pair<std::vector<int64_t>, bool> weights[] = {
      {{96}, true},          {{96, 6}, true},  {{96, 1, 4}, true}, {{96, 6, 4, 2}, true},
      {{96, 1, 1, 2}, true}, {{96, 2}, false}, {{96, 1, 2}, false}};
  for (const auto& [ne, ours] : weights) {
    std::string name = "RMS_NORM and MUL by";
    for (const int64_t extent : ne) name += " " + std::to_string(extent);
    run({name, false, ours, compact(x), compact(ne)});
  }
  run({"RMS_NORM and MUL by one number, which is no fusion", false, true, compact({64, 3}),
       compact({1})});
}

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// Microseconds of an operator on one thread, of its fastest round of 25.
void time_one(const std::string& op, int64_t rows, int64_t n) {
  constexpr int kNodes = 20;
  Graph g;
  ggml_tensor* x = g.tensor({n, rows});
  ggml_tensor* const weight = g.tensor({n});
  ggml_cgraph* const graph = ggml_new_graph(g.context);
  for (int i = 0; i < kNodes; ++i) {
    x = op == "NORM" ? ggml_norm(g.context, x, kEps) : ggml_rms_norm(g.context, x, kEps);
    if (op == "RMS_NORM + MUL") x = ggml_mul(g.context, x, weight);
  }
  ggml_build_forward_expand(graph, x);
  ggml_cplan plan = ggml_graph_plan(graph, 1, nullptr);
  std::vector<uint8_t> work(plan.work_size + 1);
  plan.work_data = work.data();
  double best[2] = {1e30, 1e30};
  const int repeats = rows == 1 ? 50 : 1;
  for (int round = 0; round < 25; ++round) {
    for (const int ours : {0, 1}) {
      fastnorm_ggml_enable(ours);
      const double begin = now();
      for (int i = 0; i < repeats; ++i) ggml_graph_compute(graph, &plan);
      best[ours] = std::min(best[ours], (now() - begin) / repeats / kNodes);
    }
  }
  std::printf("%s,%lld,%lld,%.4f,%.4f\n", op.c_str(), static_cast<long long>(rows),
              static_cast<long long>(n), best[1], best[0]);
}

}  // namespace

int main(int argc, char** argv) {
  ggml_cpu_init();
  if (argc > 1 && std::strcmp(argv[1], "--time") == 0) {
    for (const char* op : {"RMS_NORM", "RMS_NORM + MUL", "NORM"})
      for (const int64_t rows : {1, 256})
        for (const int64_t n : {128, 4096}) time_one(op, rows, n);
    return 0;
  }
  test();
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
