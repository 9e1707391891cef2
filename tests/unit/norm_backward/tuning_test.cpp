// Tuning files: what they may contain for the backward pass, and how planning uses it.
#include "core/norm_backward/tuning.h"

#include <gtest/gtest.h>

#include <string>

#include "core/norm_backward/rows.h"
#include "core/tuning.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/norm/launch_params.h"
#include "unit/norm_backward/request.h"

namespace fastnorm::test {
namespace {

const std::string kHead = "fastnorm tuning 2\nlibrary 1.2.3\narch sm_90\n";

DeviceFacts gpu(int32_t clusters = 16) { return cuda::make_facts(cuda::kSm90, 0, 132, clusters); }

std::span<const NormBackwardEntry> table() {
  return cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90);
}

fastnorm_status read(const std::string& text, Tuning* tuning, Error& error,
                     const DeviceFacts& facts = gpu()) {
  return read_tuning(text, "1.2.3", {cuda::table_of<cuda::NormFamily>(cuda::kSm90), table()}, facts,
                     tuning, error);
}

Tuning tuning_of(const std::string& rules, const DeviceFacts& facts = gpu()) {
  Tuning tuning;
  Error error;
  EXPECT_EQ(read(kHead + rules, &tuning, error, facts), FASTNORM_OK) << error.text;
  return tuning;
}

void expect_refused(const std::string& rules, const std::string& wanted) {
  Tuning tuning;
  Error error;
  EXPECT_EQ(read(kHead + rules, &tuning, error), FASTNORM_ERROR_ARGUMENT) << rules;
  EXPECT_NE(std::string(error.text).find(wanted), std::string::npos)
      << rules << "\nsays: " << error.text << "\nnot: " << wanted;
  EXPECT_EQ(tuning.size(), 0u);
}

// RMSNorm of bf16: dx and dweight from a rstd.
BackwardRequest call(int64_t rows, int64_t n, fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16) {
  BackwardRequest r = backward_request({rows, n}, dtype, FASTNORM_NORM_RMS);
  r.dresidual_in.reset(), r.dbias.reset();
  return r;
}

NormBackwardPlan plan(const BackwardRequest& request, const NormBackwardTuning* tuning,
                      const DeviceFacts& facts = gpu()) {
  NormBackwardDesc desc;
  NormBackwardPlan plan;
  Error error;
  EXPECT_EQ(request.check(&desc, error), FASTNORM_OK) << error.text;
  const NormBackwardParts parts = norm_backward_parts(desc);
  EXPECT_EQ(parts.count, 1);
  EXPECT_EQ(plan_norm_backward(parts.at[0], facts, table(), tuning, &plan, error), FASTNORM_OK)
      << error.text;
  return plan;
}

std::string kernel(const BackwardRequest& request, const Tuning& tuning) {
  return plan(request, &tuning.norm_backward).kernel;
}
std::string untuned(const BackwardRequest& request) { return plan(request, nullptr).kernel; }

std::string name(const std::string& rest) { return "norm_backward bf16 rms " + rest; }

const std::string kFew = "KIND(few, bf16, rms, plain)\n", kMany = "KIND(many, bf16, rms, plain)\n",
                  kAny = "KIND(any, bf16, rms, plain)\n",
                  kAlone = "KIND(alone, bf16, rms, plain)\n";

TEST(NormBackwardTuning, SaysWhatIsWrongAndWhere) {
  expect_refused("KIND(some, bf16, rms, plain)\n", "line 4 is \"KIND(some, bf16, rms, plain)\"");
  expect_refused("KIND(few, bf16, rms)\n", "line 4 is");
  expect_refused("KIND(few, bf16, rms, plain, aligned)\n", "line 4 is");
  const std::string fields =
      "required: KIND(job, elements, statistic, inputs) or ROWS(least n, most n, least rows, "
      "most "
      "rows, threads, vectors, blocks, lanes, stages)";
  for (const char* line : {
           "ROWS(4096, 4096, 1, 16, 256, kFit, 1, cached)",  // of the forward
           "ROWS(4096, 4096, 1, 16, 256, 2, 1, 1)",          // one number less
           "ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 0, 0)",    // one more
           "ROWS(4096, 4095, 1, 16, 256, 2, 1, 1, 0)",       // lengths that do not ascend
           "ROWS(4096, 4096, 17, 16, 256, 2, 1, 1, 0)",
           "ROWS(0, 4096, 1, 16, 256, 2, 1, 1, 0)",
           "ROWS(4096, 4096, 1, 16, 2304, 2, 1, 1, 0)",  // what 11 bits hold as 256
           "ROWS(4096, 4096, 1, 16, 256, 18, 1, 1, 0)",
           "ROWS(4096, 4096, 1, 16, 256, 2, 17, 1, 0)",
           "ROWS(4096, 4096, 1, 16, 256, 2, 1, 129, 0)",
           "ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 8)",
           "ROWS(4096, 4096, 1, 99999999999999999999, 256, 2, 1, 1, 0)",
           "ROWS(4096, 4096, 1, 16, 256, 2, 1, , 0)",
           "TOKENS(4096, 4096, 1, 16, 256, 2, 1, 1, 2, 0)",
           "ROWS 4096",
           "rows",
       }) {
    expect_refused(kFew + line + "\n", std::string("line 5 is \"") + line + "\"; " + fields);
  }
  expect_refused("ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 0)\n", "required: ROWS, after a KIND");
  expect_refused("rows\n", "of the backward pass: KIND(job, elements, statistic, inputs)");
  // The KIND line says whose lines follow.
  expect_refused(kFew + "KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)\n" +
                     "ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 0)\n",
                 "line 6 is \"ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 0)\"; required: KIND(width");
}

TEST(NormBackwardTuning, KernelsMustExistAndHoldTheRows) {
  expect_refused(kFew + "ROWS(4096, 4096, 1, 16, 96, 2, 1, 1, 0)\n",
                 "line 5 is \"ROWS(4096, 4096, 1, 16, 96, 2, 1, 1, 0)\"; required: a kernel that "
                 "sm_90 has for KIND(few, bf16, rms, plain); \"fastnorm info --kernels\" lists");
  // There is one for few rows, but none for many.
  expect_refused(kMany + "ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 0)\n", "a kernel that sm_90 has");
  // One kind of several has no such kernel.
  expect_refused("KIND(many, b16, either, both)\nROWS(16385, 32768, 1, kAll, 512, 4, 2, 1, 2)\n",
                 "for KIND(many, f16, rms, plain)");
  // Rows that are too long, or beyond what one thread block's lanes are for.
  expect_refused(kFew + "ROWS(4096, 4104, 1, 16, 256, 2, 1, 1, 0)\n", "rows of 4097 elements");
  expect_refused(kMany + "ROWS(1024, 4096, 1, 16, 512, 2, 1, 1, 3)\n", "of 1024 elements");
  expect_refused(kMany + "ROWS(1000, 3000, 1, 16, 64, 2, 1, 8, 2)\n", "of 1025 elements");
  expect_refused(kMany + "ROWS(8193, kAll, 1, 16, 512, 2, 2, 1, 2)\n", "elements");
  // More chains of rows than the threads have.
  expect_refused(kFew + "ROWS(128, 128, 4096, kAll, 16, 1, 1, 16, 0)\n",
                 "with 4096 rows of 128 elements");
  EXPECT_EQ(tuning_of(kAlone + "ROWS(128, 128, 4096, kAll, 16, 1, 1, 16, 0)\n").size(), 1u);
  EXPECT_EQ(tuning_of(kAny + "ROWS(1, kAll, 1, kAll, 256, 0, 1, 1, 0)\n").size(), 1u);
  // All of the library's own lines are such.
  for (const NormBackwardList& list : cuda::kSm90.backward_choices->lists) {
    std::string text = std::string(list.text) + "\n";
    for (const NormBackwardChoice& line : list.lines) text += std::string(line.text) + "\n";
    EXPECT_GE(tuning_of(text).size(), list.lines.size()) << text;
  }
}

TEST(NormBackwardTuning, LinesForTheSameRowsAreRefused) {
  const std::string line = "ROWS(4096, 4096, 1, 16, 256, 2, 1, 1, 0)\n";
  expect_refused(kFew + line + line, "required: lengths that are equal or disjoint");
  expect_refused(kFew + line + "ROWS(4096, 4096, 16, 20, 256, 4, 1, 1, 0)\n", "rows that are");
  EXPECT_EQ(tuning_of(kFew + line + kMany + "ROWS(4096, 4096, 1, 16, 512, 2, 1, 1, 3)\n").size(),
            2u)
      << "another job is another kind";
}

TEST(NormBackwardTuning, CallsGoByItsLines) {
  const Tuning tuning = tuning_of(kMany + "ROWS(4096, 4096, 1, 64, 512, 2, 1, 1, 3)\n" + kFew +
                                  "ROWS(4096, 4096, 65, kAll, 256, 2, 1, 1, 0)\n" + kAny +
                                  "ROWS(1024, 1024, 1, kAll, 32, 0, 1, 4, 0)\n");
  const std::string many = name("persistent 512x2 1x3"), few = name("few 256x2 1x0");
  EXPECT_EQ(kernel(call(1, 4096), tuning), many);
  EXPECT_EQ(kernel(call(64, 4096), tuning), many);
  EXPECT_EQ(kernel(call(65, 4096), tuning), few);
  EXPECT_EQ(kernel(call(1 << 20, 4096), tuning), few);
  EXPECT_EQ(kernel(call(64, 1024), tuning), name("rows 32")) << "the general form may be faster";
  const NormBackwardPlan planned = plan(call(64, 4096), &tuning.norm_backward);
  EXPECT_STREQ(planned.kind, "KIND(many, bf16, rms, plain)");
  EXPECT_STREQ(planned.choice, "a line of the tuning file");
  // What a line's kernel cannot do goes on as if there were no line.
  BackwardRequest in_place = call(65, 4096);
  in_place.dx = in_place.dy;
  EXPECT_EQ(kernel(in_place, tuning), untuned(in_place));
  in_place = call(64, 4096);
  in_place.dx = in_place.dy;
  EXPECT_EQ(kernel(in_place, tuning), many);
  // Other lengths, dtypes, statistics and residuals keep the library's choice.
  for (const BackwardRequest& other :
       {call(64, 4104), call(64, 2048), call(64, 4096, FASTNORM_DTYPE_F16)})
    EXPECT_EQ(kernel(other, tuning), untuned(other));
  BackwardRequest add = call(64, 4096);
  add.dresidual_in = backward_tensor(5, {64, 4096}, FASTNORM_DTYPE_BF16);
  EXPECT_EQ(kernel(add, tuning), untuned(add));
}

// Lines for sums are not taken for dx alone where the library has a list for it.
TEST(NormBackwardTuning, DxAloneHasLinesOfItsOwn) {
  BackwardRequest dx = call(64, 4096), wide = call(64, 16384);
  dx.dweight.reset(), wide.dweight.reset();
  const Tuning sums = tuning_of(kMany + "ROWS(4096, 4096, 1, 64, 512, 2, 1, 1, 3)\n" +
                                "ROWS(16384, 16384, 1, 64, 512, 2, 4, 1, 2)\n");
  EXPECT_EQ(kernel(dx, sums), untuned(dx));
  EXPECT_EQ(kernel(wide, sums), name("persistent 512x2x4 1x2"));
  const Tuning alone = tuning_of(kAlone + "ROWS(4096, 4096, 1, kAll, 256, 4, 1, 1, 0)\n");
  EXPECT_EQ(kernel(dx, alone), name("few 256x4 1x0"));
  EXPECT_EQ(kernel(call(64, 4096), alone), untuned(call(64, 4096)));
  EXPECT_EQ(plan(dx, &alone.norm_backward).workspace_bytes, 0u);
}

// A call that the held forms cannot serve takes the file's general kernel; one with a gate does
// not.
TEST(NormBackwardTuning, TheGeneralForm) {
  const Tuning tuning = tuning_of(kAny + "ROWS(4097, 4097, 1, 64, 32, 0, 1, 4, 0)\n");
  EXPECT_EQ(untuned(call(64, 4097)), name("rows 256"));
  EXPECT_EQ(kernel(call(64, 4097), tuning), name("rows 32"));
  EXPECT_STREQ(plan(call(64, 4097), &tuning.norm_backward).kind, "KIND(any, bf16, rms, plain)");
  BackwardRequest gated = call(64, 4097);
  gated.gate = backward_tensor(10, {64, 4097}, FASTNORM_DTYPE_BF16);
  EXPECT_EQ(kernel(gated, tuning), untuned(gated));
}

// Lines for gates are for the held forms.
TEST(NormBackwardTuning, Gates) {
  const std::string kGated = "KIND(many, bf16, rms, gated)\n";
  BackwardRequest gated = call(64, 128);
  gated.gate = backward_tensor(10, {64, 128}, FASTNORM_DTYPE_BF16);
  gated.args.gate_act = FASTNORM_ACTIVATION_SILU;
  EXPECT_EQ(untuned(gated), "norm_backward bf16 rms gated persistent 16x1 32x3");
  const Tuning tuning = tuning_of(kGated + "ROWS(128, 128, 1, kAll, 16, 2, 1, 32, 3)\n");
  EXPECT_EQ(kernel(gated, tuning), "norm_backward bf16 rms gated persistent 16x2 32x3");
  EXPECT_EQ(kernel(call(64, 128), tuning), untuned(call(64, 128)));
  EXPECT_EQ(untuned(gated),
            kernel(gated, tuning_of(kMany + "ROWS(128, 128, 1, kAll, 16, 2, 1, 32, 3)\n")));
  expect_refused(kGated + "ROWS(128, 128, 1, kAll, 16, 1, 1, 32, 0)\n",
                 "a kernel that sm_90 has for KIND(many, bf16, rms, gated)");
  expect_refused("KIND(any, bf16, rms, gated)\n", "line 4 is \"KIND(any, bf16, rms, gated)\"");
}

// The sums' order, so their bits, is that of the rows and their length. It is the same for every
// line, and so is a kernel's share of a block.
TEST(NormBackwardTuning, TheOrderOfTheSumsStays) {
  for (const int64_t n : {64, 128, 1024, 4096, 8192, 16384}) {
    for (const int64_t rows : {1, 7, 512, 100000}) {
      const NormBackwardRows order = norm_backward_rows(rows, n);
      const NormBackwardPlan plain = plan(call(rows, n), nullptr);
      EXPECT_EQ(plain.lanes, order.lanes);
      int served = 0;
      for (const NormBackwardEntry& entry : table()) {
        const NormBackwardVariant& v = entry.variant;
        // kFew serves calls without dresidual_in, too.
        const BackwardInput input = BackwardInput::kPlain;
        if (v.dtype != Dtype::kBF16 || v.stat != Stat::kRms ||
            (v.input != input && v.form != BackwardForm::kFew)) {
          continue;
        }
        for (const BackwardJob job : {BackwardJob::kFew, BackwardJob::kMany, BackwardJob::kAny}) {
          if (form_of(job) != v.form || !holds_rows(v, n, rows, true)) continue;
          const auto number = [](int value) { return std::to_string(value); };
          const Tuning tuning = tuning_of(
              std::string(text_of({job, v.dtype, v.stat, input})) + "\nROWS(" + std::to_string(n) +
              ", " + std::to_string(n) + ", " + std::to_string(rows) + ", kAll, " +
              number(v.threads) + ", " + number(v.vectors) + ", " + number(v.blocks) + ", " +
              number(v.lanes) + ", " + number(v.stages) + ")\n");
          const NormBackwardPlan tuned = plan(call(rows, n), &tuning.norm_backward);
          EXPECT_STREQ(tuned.kernel, entry.name);
          EXPECT_EQ(tuned.lanes, order.lanes) << entry.name;
          EXPECT_EQ(tuned.row_blocks, order.blocks) << entry.name;
          EXPECT_EQ(tuned.partial_stride, plain.partial_stride) << entry.name;
          if (v.form == BackwardForm::kPersistent) {
            EXPECT_EQ(tuned.steps[0].blocks_x,
                      static_cast<uint32_t>(order.blocks * order.split_of(v.lanes) * v.blocks));
          }
          ++served;
        }
      }
      EXPECT_GE(served, 3) << rows << " x " << n;
    }
  }
}

// The workspace does not fall as rows are added, whichever forms a file names.
TEST(NormBackwardTuning, TheWorkspaceDoesNotFall) {
  const Tuning tuning = tuning_of(kMany + "ROWS(4096, 4096, 1, 64, 512, 2, 1, 1, 3)\n" + kFew +
                                  "ROWS(4096, 4096, 65, 512, 256, 2, 1, 1, 0)\n");
  uint64_t before = 0;
  for (const int64_t rows : {1, 2, 64, 65, 512, 513, 4096, 100000}) {
    const uint64_t bytes = plan(call(rows, 4096), &tuning.norm_backward).workspace_bytes;
    EXPECT_GE(bytes, before) << rows;
    before = bytes;
  }
}

// A device that cannot schedule a line's cluster uses the library's choice.
TEST(NormBackwardTuning, ClustersThatTheDeviceCannotSchedule) {
  const std::string line = kMany + "ROWS(16384, 16384, 1, kAll, 512, 2, 4, 1, 2)\n";
  EXPECT_EQ(tuning_of(line).norm_backward.size(), 1u);
  EXPECT_EQ(tuning_of(line, gpu(2)).norm_backward.size(), 0u);
}

// One file has lines of both passes, in any order.
TEST(NormBackwardTuning, OneFileHasBothPasses) {
  const std::string forward =
      "KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)\n"
      "ROWS(4096, 4096, 1, 16, 256, 4, 1, full)\n";
  const std::string line = "ROWS(4096, 4096, 1, 64, 512, 2, 1, 1, 3)\n";
  const Tuning tuning = tuning_of(kMany + line + forward + "# measured\n" + kAlone +
                                  "ROWS(4096, 4096, 1, 64, 256, 4, 1, 1, 0)\n");
  EXPECT_EQ(tuning.norm.size(), 1u);
  EXPECT_EQ(tuning.norm_backward.size(), 2u);
  EXPECT_EQ(tuning.size(), 3u);
  EXPECT_EQ(tuning_of("KIND(few | many, b16, either, both)\n").size(), 0u);
  EXPECT_EQ(tuning_of("KIND(any, all, either, both)\nROWS(1, 8, 1, 1, 32, 0, 1, 4, 0)\n").size(),
            12u);
}

}  // namespace
}  // namespace fastnorm::test
