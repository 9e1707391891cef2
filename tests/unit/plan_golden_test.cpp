// Recorded plans: what is launched for many shapes on every architecture. A change of a list shows
// here as a diff. A row length has a line for the fewest rows. It has another one where more rows
// have another plan, apart from the grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "core/norm/plan.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "unit/golden.h"
#include "unit/norm/request.h"

namespace fastnorm::test {
namespace {

constexpr int64_t kRows[] = {1, 16, 17, 64, 65, 128, 129, 4096};
constexpr int64_t kColumns[] = {7,    64,   128,   576,   1024,  2048,  3072,   4096,   5120,
                                7168, 8192, 12288, 16384, 32768, 65536, 262144, 1048576};

// Plans with lists of their own (f32 weights, quantised) and those of other dtypes, on fewer
// shapes. Few rows and many, below and above the limit for prefetching later rows, and lengths that
// are no multiple of a vector.
constexpr int64_t kShapes[][2] = {{4096, 128},  {4096, 1024}, {1, 4096},    {512, 4096},
                                  {4096, 4096}, {4096, 4100}, {512, 5120},  {4096, 5120},
                                  {64, 8192},   {128, 8192},  {4096, 8192}, {4096, 12288},
                                  {1, 16384},   {64, 32768},  {4096, 32768}};

// "vector 256x4 grid 4096": access, tile and, if asked for, blocks of the grid. Quantised calls
// have their sink before it.
std::string plan_text(const NormDesc& d, const ArchSpec& arch, bool grid) {
  NormPlan plan;
  Error error;
  const DeviceFacts facts = cuda::make_facts(arch, 0, 132, arch.max_cluster_blocks);
  if (make_plan(d, facts, cuda::table_of<cuda::NormFamily>(arch), &plan, error) != FASTNORM_OK)
    return error.text;
  const NormKey key = plan.entry->key;
  const std::string name = make_entry(key, plan.entry->tile).name;
  std::ostringstream text;
  if (key.sink != Sink::kStore) text << name_of(key.sink) << " ";
  text << name.substr(name.rfind(name_of(key.access)));
  if (grid) text << " grid " << plan.blocks;
  if (plan.stream_loads) text << " stream";
  if (plan.prefetch_rows > 0) text << " prefetch " << plan.prefetch_rows;
  return text.str();
}

// The plans of all architectures; equal ones share a line. PTX has those of sm_120f:
// Arch.PtxIsPlannedAsTheShortList.
std::string line_of(const NormDesc& d, bool grid) {
  std::vector<std::pair<std::string, std::string>> plans;  // plan, architectures
  for (const ArchSpec* arch : cuda::kArchs) {
    if (arch == &cuda::kPtx) continue;
    const std::string text = plan_text(d, *arch, grid);
    const auto same = std::find_if(plans.begin(), plans.end(),
                                   [&](const auto& plan) { return plan.first == text; });
    if (same != plans.end()) {
      same->second += std::string(" ") + arch->name;
    } else {
      plans.emplace_back(text, arch->name);
    }
  }
  if (plans.size() == 1) return "all: " + plans[0].first;
  std::string line;
  for (const auto& [text, archs] : plans) line += (line.empty() ? "" : "; ") + archs + ": " + text;
  return line;
}

// Codes and their scales only.
template <fastnorm_quant_scheme kScheme>
void to_codes(Request* r) {
  add_quant(r, kScheme);
  r->y.reset();
  r->amax.reset();
  if (kScheme != FASTNORM_QUANT_PER_BLOCK) return;
  r->quant.block_size = 128;
  r->scale->shape.back() = (r->x->shape.back() + 127) / 128;
}

struct What {
  fastnorm_dtype_id dtype;
  const char* name;
  size_t shapes;             // the first of kShapes; 0: all of kRows and kColumns
  void (*change)(Request*);  // of a call of that dtype
};

constexpr size_t kAll = std::size(kShapes);
// f16 has the lists of bf16, and NVFP4 those of all blocks.
constexpr What kWhats[] = {
    {FASTNORM_DTYPE_BF16, "bf16", 0, [](Request*) {}},
    {FASTNORM_DTYPE_F32, "f32", kAll, [](Request*) {}},
    {FASTNORM_DTYPE_F16, "f16", 4, [](Request*) {}},
    {FASTNORM_DTYPE_BF16, "bf16, f32 weights", kAll,
     [](Request* r) {
       r->weight->dtype = FASTNORM_DTYPE_F32;
       if (r->bias) r->bias->dtype = FASTNORM_DTYPE_F32;
     }},
    {FASTNORM_DTYPE_BF16, "bf16 to e4m3", kAll, to_codes<FASTNORM_QUANT_PER_TENSOR>},
    {FASTNORM_DTYPE_BF16, "bf16 to e4m3 per row", kAll, to_codes<FASTNORM_QUANT_PER_ROW>},
    {FASTNORM_DTYPE_BF16, "bf16 to e4m3 per 128", 4, to_codes<FASTNORM_QUANT_PER_BLOCK>},
    {FASTNORM_DTYPE_BF16, "bf16 to mxfp8", 4, to_codes<FASTNORM_QUANT_MXFP8>},
    {FASTNORM_DTYPE_BF16, "bf16 to nvfp4", kAll, to_codes<FASTNORM_QUANT_NVFP4>},
    {FASTNORM_DTYPE_BF16, "bf16 to mxfp4", 4, to_codes<FASTNORM_QUANT_MXFP4>},
};

std::string all_plans() {
  std::ostringstream out;
  out << "# what source statistic rows x n: plan on each architecture. Written by unit_test "
         "--update.\n";
  for (const What& what : kWhats) {
    for (int kind = 0; kind < 4; ++kind) {
      const bool add = (kind & 1) != 0, layer = (kind & 2) != 0;
      std::string fewer;  // rows: their plan, without its grid
      int64_t fewer_n = 0;
      const auto put = [&](int64_t rows, int64_t n) {
        Request r = simple_request({rows, n}, what.dtype, add,
                                   layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS);
        what.change(&r);
        NormDesc d;
        Error error;
        EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
        const std::string plan = line_of(d, false);
        if (n == fewer_n && plan == fewer) return;
        fewer = plan, fewer_n = n;
        out << what.name << (add ? " add" : " plain") << (layer ? " layer " : " rms ") << rows
            << "x" << n << " " << line_of(d, true) << "\n";
      };
      if (what.shapes == 0) {
        for (const int64_t n : kColumns) {
          for (const int64_t rows : kRows) put(rows, n);
        }
      } else {
        for (size_t i = 0; i < what.shapes; ++i) put(kShapes[i][0], kShapes[i][1]);
      }
    }
  }
  return out.str();
}

TEST(PlanGoldens, AsRecorded) { expect_recorded("norm/plans.txt", all_plans(), 450); }

}  // namespace
}  // namespace fastnorm::test
