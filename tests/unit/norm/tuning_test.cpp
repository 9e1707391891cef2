// Tuning files: what they may contain for the forward, and how planning uses it.
#include "core/norm/tuning.h"

#include <gtest/gtest.h>

#include <string>

#include "core/tuning.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/norm/launch_params.h"
#include "unit/norm/request.h"

namespace fastnorm::test {
namespace {

const std::string kHead = "fastnorm tuning 2\nlibrary 1.2.3\narch sm_90\n";

DeviceFacts gpu(int32_t clusters = 16) { return cuda::make_facts(cuda::kSm90, 0, 132, clusters); }

std::span<const NormEntry> table() { return cuda::table_of<cuda::NormFamily>(cuda::kSm90); }

fastnorm_status read(const std::string& text, NormTuning* tuning, Error& error,
                     const DeviceFacts& facts = gpu()) {
  Tuning both;
  const fastnorm_status status =
      read_tuning(text, "1.2.3", {table(), cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90)},
                  facts, &both, error);
  *tuning = both.norm;
  return status;
}

NormTuning tuning_of(const std::string& rules, const DeviceFacts& facts = gpu()) {
  NormTuning tuning;
  Error error;
  EXPECT_EQ(read(kHead + rules, &tuning, error, facts), FASTNORM_OK) << error.text;
  return tuning;
}

// The kernel that a call is planned on.
std::string kernel_for(Request request, const NormTuning* tuning) {
  NormDesc desc;
  NormPlan plan;
  Error error;
  EXPECT_EQ(request.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(make_plan(desc, gpu(), table(), &plan, error, tuning), FASTNORM_OK) << error.text;
  return plan.entry->name;
}

// The kernel of an RMSNorm.
std::string kernel_for(std::vector<int64_t> shape, const NormTuning* tuning,
                       fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16) {
  return kernel_for(simple_request(std::move(shape), dtype), tuning);
}

void expect_refused(const std::string& text, const std::string& wanted) {
  NormTuning tuning;
  Error error;
  EXPECT_EQ(read(text, &tuning, error), FASTNORM_ERROR_ARGUMENT) << text;
  EXPECT_NE(std::string(error.text).find(wanted), std::string::npos)
      << text << "\nsays: " << error.text << "\nnot: " << wanted;
  EXPECT_EQ(tuning.size(), 0u);
}

const std::string kRms = "KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)\n";

std::string name(const std::string& rest) { return "bf16 plain " + rest; }

TEST(NormTuning, SaysWhatIsWrongAndWhere) {
  expect_refused("", "ends after 0 of the 3 lines");
  expect_refused("fastnorm tuning 2\n", "ends after 1 of the 3 lines");
  expect_refused("fastnorm tuning 1\n",
                 "line 1 is \"fastnorm tuning 1\"; required: \"fastnorm tuning 2\"");
  expect_refused("fastnorm tuning 2\nlibrary 9\n",
                 "line 2 is \"library 9\"; required: \"library 1.2.3\"");
  expect_refused("fastnorm tuning 2\nlibrary 1.2.3\narch sm_80\n", "line 3 is \"arch sm_80\"");
  expect_refused(kHead + "\n# a comment\nnorm 1 4096 x\n",
                 "line 6 is \"norm 1 4096 x\"; required: KIND(");
  expect_refused(kHead + "ROWS(8, 8, 1, 1, 4, kFit, 1, full)\n",
                 "line 4 is \"ROWS(8, 8, 1, 1, 4, kFit, 1, full)\"; required: ROWS, after a KIND");
  expect_refused(kHead + kRms + "TOKENS(8, 8, 1, 1, 4, kFit, 1, full)\n", "line 5");
  expect_refused(kHead + "KIND(b16, plain, rms, own_dtype, y, aligned, lean, heads)\n",
                 "line 4 is for heads; required: rows");
  expect_refused(kHead + kRms + "ROWS(4096, 4096, 1, 1, 96, kFit, 1, lean)\n", "line 5");
  expect_refused(kHead + kRms + "ROWS(, 4096, 1, 1, 256, kFit, 1, lean)\n", "line 5");
  expect_refused(kHead + kRms + "ROWS(4096, 4096, 1, 1, 16, kFit, 1, lean)\n",
                 "required: a kernel that sm_90 has for rows of 512 vectors");
  // A lean kernel reads all vectors except the last, whether the row has them or not.
  expect_refused(kHead + kRms + "ROWS(2048, 2048, 1, 1, 128, 4, 1, cached)\n",
                 "required: a kernel that sm_90 has for rows of 256 vectors");
  // The first length has a kernel, and a later one has none.
  expect_refused(kHead + kRms + "ROWS(4096, 262144, 1, 1, 128, kFit, 1, cached)\n", "line 5");
}

TEST(NormTuning, LinesForTheSameRowsAreRefused) {
  const std::string line = "ROWS(4096, 4096, 1, 16, 256, 4, 1, full)\n";
  expect_refused(kHead + kRms + line + line, "required: lengths that are equal or disjoint");
  expect_refused(kHead + kRms + line + "ROWS(4096, 4096, 16, 20, 128, kFit, 1, cached)\n",
                 "rows that are disjoint");
  expect_refused(kHead + kRms + line + "ROWS(4000, 4096, 17, 20, 256, 4, 1, full)\n",
                 "lengths that are equal or disjoint");
  EXPECT_EQ(tuning_of(kRms + line + "ROWS(4096, 4096, 17, 20, 128, kFit, 1, cached)\n").size(), 2u);
}

TEST(NormTuning, CallsGoByItsLines) {
  const NormTuning tuning = tuning_of(kRms +
                                      "ROWS(4096, 4096, 1, 16, 256, 4, 1, full)\n"
                                      "ROWS(4096, 4096, 17, kAll, 128, kFit, 1, cached)\n");
  EXPECT_EQ(kernel_for({16, 4096}, &tuning), name("rms once store vector 256x4"));
  EXPECT_EQ(kernel_for({17, 4096}, &tuning), name("rms once store vector bare 128x4"));
  EXPECT_EQ(kernel_for({1 << 20, 4096}, &tuning), name("rms once store vector bare 128x4"));
  EXPECT_EQ(kernel_for({16, 4096}, &tuning, FASTNORM_DTYPE_F16),
            "f16 plain rms once store vector 256x4");
  // Other lengths, dtypes and kinds keep the library's choice.
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{16, 4104}, {16, 2048}})
    EXPECT_EQ(kernel_for(shape, &tuning), kernel_for(shape, nullptr));
  EXPECT_EQ(kernel_for({16, 2048}, &tuning, FASTNORM_DTYPE_F32),
            kernel_for({16, 2048}, nullptr, FASTNORM_DTYPE_F32));
  Request alone = simple_request({16, 4096}, FASTNORM_DTYPE_BF16);
  alone.weight.reset();
  EXPECT_EQ(kernel_for(alone, &tuning), kernel_for(alone, nullptr)) << "no weight";
  const Request sum = simple_request({16, 4096}, FASTNORM_DTYPE_BF16, true);
  EXPECT_EQ(kernel_for(sum, &tuning), kernel_for(sum, nullptr));
}

// Query and key heads keep the library's tile, which is the same for both.
TEST(NormTuning, HeadsKeepTheLibrarysChoice) {
  const NormTuning tuning = tuning_of(kRms + "ROWS(128, 128, 1, kAll, 8, 2, 1, full)\n");
  EXPECT_EQ(kernel_for({64, 128}, &tuning), name("rms once store vector 8x2"));
  Request heads = simple_request({64, 8, 128}, FASTNORM_DTYPE_BF16);
  heads.x->strides = {16 * 128, 128, 1};
  EXPECT_EQ(kernel_for(heads, &tuning), kernel_for(heads, nullptr));
}

// One KIND line may name several kinds, and each has the line.
TEST(NormTuning, AKindLineNamesSeveral) {
  const NormTuning tuning = tuning_of(
      "KIND(b16, plain | add, rms, own_dtype, y, aligned, lean | full, rows)\n"
      "ROWS(4096, 4096, 1, 16, 256, 4, 1, full)\n");
  EXPECT_EQ(tuning.size(), 4u);
  EXPECT_EQ(kernel_for(simple_request({16, 4096}, FASTNORM_DTYPE_BF16, true), &tuning),
            "bf16 add rms once store vector 256x4");
}

// Scales of a row and of blocks of columns are kinds of their own.
TEST(NormTuning, ScalesOfRowsAndOfBlocks) {
  const NormTuning tuning = tuning_of(
      "KIND(b16, plain, rms, own_dtype, per_block, aligned, lean, rows)\n"
      "ROWS(4096, 4096, 1, kAll, 256, 4, 1, full)\n");
  const auto codes = [](fastnorm_quant_scheme scheme) {
    Request r = simple_request({4096, 4096}, FASTNORM_DTYPE_BF16);
    add_quant(&r, scheme);
    r.y.reset(), r.amax.reset();
    return r;
  };
  EXPECT_EQ(kernel_for(codes(FASTNORM_QUANT_PER_BLOCK), &tuning),
            name("rms once quant vector 256x4"));
  EXPECT_EQ(kernel_for(codes(FASTNORM_QUANT_PER_ROW), &tuning),
            kernel_for(codes(FASTNORM_QUANT_PER_ROW), nullptr));
}

// A device that cannot schedule a line's cluster uses the library's choice.
TEST(NormTuning, ClustersThatTheDeviceCannotSchedule) {
  const std::string line = kRms + "ROWS(8192, 8192, 1, kAll, 512, 4, 8, full)\n";
  EXPECT_EQ(tuning_of(line).size(), 1u);
  EXPECT_EQ(tuning_of(line, gpu(4)).size(), 0u);
}

}  // namespace
}  // namespace fastnorm::test
