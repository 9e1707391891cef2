// Exceptions do not cross the C ABI. The library's core and API run on a backend that throws
// wherever a backend is called. They also run with an allocator that fails at each allocation, one
// after the other.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/mla_decode/profile.h"
#include "cuda/arch.h"
#include "fastnorm/fastnorm.h"

namespace {

// --- an allocator that fails at a chosen allocation ---

bool counting = false;
long allocations_left = -1;  // -1 = no limit

bool may_allocate() {
  if (!counting || allocations_left < 0) return true;
  return allocations_left-- > 0;
}

}  // namespace

// If they are inlined, GCC reports that malloc and delete do not match.
#define NOT_INLINED __attribute__((noinline))

NOT_INLINED void* operator new(size_t bytes) {
  if (may_allocate()) {
    if (void* p = std::malloc(bytes)) return p;
  }
  throw std::bad_alloc();
}
NOT_INLINED void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return may_allocate() ? std::malloc(bytes) : nullptr;
}
NOT_INLINED void* operator new[](size_t bytes) { return operator new(bytes); }
NOT_INLINED void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}
NOT_INLINED void operator delete(void* p) noexcept { std::free(p); }
NOT_INLINED void operator delete(void* p, size_t) noexcept { std::free(p); }
NOT_INLINED void operator delete[](void* p) noexcept { std::free(p); }
NOT_INLINED void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace fastnorm {
namespace {

// --- a backend that throws ---

enum class Where {
  kNowhere,
  kCount,
  kDescribe,
  kCreate,
  kSets,
  kText,
  kPrepare,
  kRun,
  kMlaPrepare,
  kMlaRun,
  kHeadsPrepare,
  kHeadsRun
};
enum class What { kRuntimeError, kBadAlloc, kInt };

Where fault_where = Where::kNowhere;
What fault_what = What::kRuntimeError;

void fault(Where here) {
  if (here != fault_where) return;
  if (fault_what == What::kBadAlloc) throw std::bad_alloc();
  if (fault_what == What::kInt) throw 42;
  throw std::runtime_error("thrown by the test's backend");
}

constexpr int kEntries = kRowDtypes * 2 * 2 * 2 * 2 + 1;

constexpr std::array<NormEntry, kEntries> make_table() {
  std::array<NormEntry, kEntries> table{};
  int i = 0;
  for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
    for (int bits = 0; bits < 16; ++bits) {
      NormKey key;
      key.dtype = static_cast<Dtype>(dtype);
      key.source = static_cast<Source>(bits & 1);
      key.stat = static_cast<Stat>(bits >> 1 & 1);
      key.affine = (bits >> 2 & 1) != 0 ? Affine::kAny : Affine::kOnce;
      key.access = (bits >> 3 & 1) != 0 ? Access::kAny : Access::kVector;
      table[i++] = make_entry(key, Tile{});
    }
  }
  // The entry that the tuning file names.
  table[i] = make_entry({.dtype = Dtype::kBF16}, Tile{4, 2, 1});
  std::sort(table.begin(), table.end(),
            [](const NormEntry& a, const NormEntry& b) { return a.packed() < b.packed(); });
  return table;
}

constexpr std::array<NormEntry, kEntries> kTable = make_table();

// Where a call of each family faults.
struct CallFaults {
  Where operator()(std::span<const NormCall>) const { return norm; }
  Where operator()(const MlaDecodeCall&) const { return mla_decode; }
  Where operator()(const NormHeadsCall&) const { return norm_heads; }
  Where operator()(const auto&) const { return Where::kNowhere; }

  Where norm, mla_decode, norm_heads;
};

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(const DeviceFacts& device_facts)
      : Device(device_facts, {kTable, {}, {}, {}, {}}) {}
  fastnorm_status prepare(const AnyCall& call, Error&) override {
    fault(std::visit(CallFaults{Where::kPrepare, Where::kMlaPrepare, Where::kHeadsPrepare}, call));
    return FASTNORM_OK;
  }
  fastnorm_status run(const AnyCall& call, void*, void*, Error&) override {
    fault(std::visit(CallFaults{Where::kRun, Where::kMlaRun, Where::kHeadsRun}, call));
    return FASTNORM_OK;
  }
  const char* variant_text(const NormCall&) const override {
    fault(Where::kText);
    return "";
  }
};

int32_t device_count() {
  fault(Where::kCount);
  return 1;
}

fastnorm_status describe(int32_t, fastnorm_device_info*, Error&) {
  fault(Where::kDescribe);
  return FASTNORM_OK;
}

fastnorm_status create(int32_t, const fastnorm_context_options& options,
                       std::unique_ptr<Device>* device, Error&) {
  fault(Where::kCreate);
  DeviceFacts facts;
  if (options.tuning_file != nullptr) facts.arch = &cuda::kSm90;
  *device = std::make_unique<FaultyDevice>(facts);
  return FASTNORM_OK;
}

std::span<const KernelSet> kernel_sets() {
  fault(Where::kSets);
  static const KernelSet set = {"faulty", {names_of<NormEntry>("norm", kTable)}};
  return {&set, 1};
}

const char* build_info() { return "faulty: yes\n"; }

constexpr Backend kFaulty = {device_count, describe, create, kernel_sets, build_info};

}  // namespace

const Backend& cpu_backend() { return kFaulty; }
const Backend& cuda_backend() { return kFaulty; }

}  // namespace fastnorm

namespace {

using fastnorm::fault_what;
using fastnorm::fault_where;
using fastnorm::What;
using fastnorm::Where;

int passed = 0, failed = 0;

void check(const std::string& name, bool ok) {
  ok ? ++passed : ++failed;
  if (!ok) std::printf("FAIL %s: %s\n", name.c_str(), fastnorm_last_error());
}

// One row of 16 floats: the structs of the C ABI and their memory.
struct Call {
  float x[16] = {}, y[16] = {};
  int64_t shape[2] = {1, 16};
  fastnorm_tensor in{}, out{};
  fastnorm_norm_args args{};
  const fastnorm_norm_args* list[2] = {&args, &args};
  fastnorm_info info{};

  float q[512] = {}, q_pe[64] = {}, ckv[512] = {}, kpe[64] = {}, o[512] = {};
  int32_t length = 1, page = 0;
  int64_t wide[3] = {1, 1, 512}, narrow[3] = {1, 1, 64}, one[2] = {1, 1};
  fastnorm_tensor mla_tensor[7]{};
  fastnorm_mla_decode_args mla{};

  int64_t head_shape[3] = {1, 1, 16};
  fastnorm_tensor head{};
  fastnorm_norm_heads_args heads{};
  fastnorm_norm_heads_part part{};
  const fastnorm_norm_heads_part* parts[1] = {&part};

  Call() {
    in.data = x;
    in.device_type = FASTNORM_DEVICE_CPU;
    in.ndim = 2;
    in.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    in.shape = shape;
    out = in;
    out.data = y;
    args.struct_size = sizeof args;
    args.x = &in;
    args.y = &out;
    head = in;
    head.ndim = 3;
    head.shape = head_shape;
    heads.struct_size = sizeof heads;
    part.struct_size = sizeof part;
    part.x = part.y = &head;
    info.struct_size = sizeof info;
    void* const data[] = {q, q_pe, ckv, kpe, o, &length, &page};
    const int64_t* const shapes[] = {wide, narrow, wide, narrow, wide, one, one};
    for (int i = 0; i < 7; ++i) {
      mla_tensor[i].data = data[i];
      mla_tensor[i].device_type = FASTNORM_DEVICE_CPU;
      mla_tensor[i].ndim = i < 5 ? 3 : i - 4;
      mla_tensor[i].dtype = fastnorm_dtype_of(i < 5 ? FASTNORM_DTYPE_F32 : FASTNORM_DTYPE_I32);
      mla_tensor[i].shape = shapes[i];
    }
    mla.struct_size = sizeof mla;
    mla.sm_scale = 1;
    mla.q_nope = &mla_tensor[0];
    mla.q_pe = &mla_tensor[1];
    mla.ckv = &mla_tensor[2];
    mla.kpe = &mla_tensor[3];
    mla.o = &mla_tensor[4];
    mla.kv_len = &mla_tensor[5];
    mla.page_table = &mla_tensor[6];
  }
};

constexpr fastnorm_device kCpu = {FASTNORM_DEVICE_CPU, 0};

struct Site {
  const char* name;
  Where where;
  fastnorm_status (*call)(fastnorm_context*, Call&);
};

fastnorm_status call_create(fastnorm_context*, Call&) {
  fastnorm_context* made = nullptr;
  const fastnorm_status status = fastnorm_context_create(kCpu, nullptr, &made);
  check("no context is handed out on failure", made == nullptr);
  return status;
}

// The second of two equal calls overwrites the results of the first. Count 1 keeps `many` legal.
const Site kSites[] = {
    {"device_count", Where::kCount,
     [](fastnorm_context*, Call&) {
       int32_t count;
       return fastnorm_device_count(FASTNORM_DEVICE_CUDA, &count);
     }},
    {"device_describe", Where::kDescribe,
     [](fastnorm_context*, Call&) {
       fastnorm_device_info info{};
       info.struct_size = sizeof info;
       return fastnorm_device_describe(kCpu, &info);
     }},
    {"context_create", Where::kCreate, call_create},
    {"kernel_describe", Where::kSets,
     [](fastnorm_context*, Call&) {
       fastnorm_kernel_info info{};
       info.struct_size = sizeof info;
       return fastnorm_kernel_describe(0, &info);
     }},
    {"norm_query", Where::kText,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_norm_query(c, &call.args, &call.info);
     }},
    {"norm_many_query", Where::kText,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_norm_many_query(c, call.list, 1, &call.info);
     }},
    {"norm_prepare", Where::kPrepare,
     [](fastnorm_context* c, Call& call) { return fastnorm_norm_prepare(c, &call.args); }},
    {"norm_many_prepare", Where::kPrepare,
     [](fastnorm_context* c, Call& call) { return fastnorm_norm_many_prepare(c, call.list, 1); }},
    {"norm", Where::kRun,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_norm(c, &call.args, nullptr, 0, nullptr);
     }},
    {"norm_many", Where::kRun,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_norm_many(c, call.list, 1, nullptr, 0, nullptr);
     }},
    {"mla_decode_prepare", Where::kMlaPrepare,
     [](fastnorm_context* c, Call& call) { return fastnorm_mla_decode_prepare(c, &call.mla); }},
    {"mla_decode", Where::kMlaRun,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_mla_decode(c, &call.mla, nullptr, 0, nullptr);
     }},
    {"norm_heads_prepare", Where::kHeadsPrepare,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_norm_heads_prepare(c, &call.heads, call.parts, 1);
     }},
    {"norm_heads", Where::kHeadsRun,
     [](fastnorm_context* c, Call& call) {
       return fastnorm_norm_heads(c, &call.heads, call.parts, 1, nullptr, 0, nullptr);
     }},
};

void test_throwing_backend() {
  fastnorm_context* context = nullptr;
  check("context", fastnorm_context_create(kCpu, nullptr, &context) == FASTNORM_OK);
  Call call;
  for (const Site& site : kSites) {
    fault_where = Where::kNowhere;
    if (site.call != call_create) {  // that call expects a failure
      check(std::string(site.name) + " without a fault", site.call(context, call) == FASTNORM_OK);
    }
    for (const What what : {What::kRuntimeError, What::kBadAlloc, What::kInt}) {
      fault_where = site.where;
      fault_what = what;
      fastnorm_status status = FASTNORM_OK;
      bool escaped = false;
      try {
        status = site.call(context, call);
      } catch (...) {
        escaped = true;
      }
      fault_where = Where::kNowhere;
      const fastnorm_status wanted =
          what == What::kBadAlloc ? FASTNORM_ERROR_OUT_OF_MEMORY : FASTNORM_ERROR_INTERNAL;
      check(std::string(site.name) + ": no exception crosses", !escaped);
      check(std::string(site.name) + ": status " + std::to_string(status), status == wanted);
      check(std::string(site.name) + ": text", std::strlen(fastnorm_last_error()) > 0);
    }
  }
  fastnorm_context_destroy(context);
}

// It returns no status.
void test_kernel_count() {
  check("kernel_count", fastnorm_kernel_count() == 2 * fastnorm::kEntries);
  fault_where = Where::kSets;
  int32_t count = -1;
  bool escaped = false;
  try {
    count = fastnorm_kernel_count();
  } catch (...) {
    escaped = true;
  }
  fault_where = Where::kNowhere;
  check("kernel_count: no exception crosses", !escaped);
  check("kernel_count: 0", count == 0);
}

// Fails the first allocation, then the second, .. until a context can be created.
void test_allocation_failures(fastnorm_device device, const fastnorm_context_options* options) {
  constexpr int kMost = 1000;
  int n = 0;
  for (; n < kMost; ++n) {
    fastnorm_context* context = nullptr;
    bool escaped = false;
    fastnorm_status status = FASTNORM_OK;
    counting = true;
    allocations_left = n;
    try {
      status = fastnorm_context_create(device, options, &context);
    } catch (...) {
      escaped = true;
    }
    counting = false;
    const std::string name = "allocation " + std::to_string(n) + " fails";
    check(name + ": no exception crosses", !escaped);
    if (status == FASTNORM_OK) {
      check("a context", context != nullptr);
      fastnorm_context_destroy(context);
      break;
    }
    check(name + ": status " + std::to_string(status), status == FASTNORM_ERROR_OUT_OF_MEMORY);
    check(name + ": no context", context == nullptr);
  }
  check("creating a context allocates, and comes to an end", n > 0 && n < kMost);
}

// Faults while a context reads a tuning file, whose rules need memory.
void test_tuned_context() {
  char path[] = "/tmp/fastnorm_tuning_XXXXXX";
  std::FILE* file = fdopen(mkstemp(path), "w");
  check("a file", file != nullptr);
  std::fprintf(file,
               "fastnorm tuning 2\nlibrary %s\narch sm_90\n"
               "KIND(b16, plain, rms, own_dtype, y, aligned, full, rows)\n",
               fastnorm_version_string());
  for (int rows = 1; rows < 10; ++rows)
    std::fprintf(file, "ROWS(64, 64, %d, %d, 4, kFit, 1, full)\n", rows, rows);
  std::fclose(file);
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.tuning_file = path;
  test_allocation_failures({FASTNORM_DEVICE_CUDA, 0}, &options);
  unlink(path);
}

void test_calls_without_allocating() {
  fastnorm_context* context = nullptr;
  check("context", fastnorm_context_create(kCpu, nullptr, &context) == FASTNORM_OK);
  Call call;
  counting = true;
  allocations_left = 0;
  const fastnorm_status ok = fastnorm_norm(context, &call.args, nullptr, 0, nullptr);
  const fastnorm_status mla = fastnorm_mla_decode(context, &call.mla, nullptr, 0, nullptr);
  call.args.x = nullptr;
  const fastnorm_status bad = fastnorm_norm(context, &call.args, nullptr, 0, nullptr);
  counting = false;
  check("nor does one of mla_decode", mla == FASTNORM_OK);
  check("a call needs no memory", ok == FASTNORM_OK);
  check("a failing call needs no memory either", bad == FASTNORM_ERROR_ARGUMENT);
  fastnorm_context_destroy(context);
}

// Decoding a profile and writing a trace allocate memory. They report a failure.
void test_profile_without_memory() {
  using namespace fastnorm;
  alignas(8) unsigned char buffer[sizeof(ProfileHeader) + sizeof(ProfileWriter) + 8] = {};
  const ProfileHeader header = {kProfileMagic, kProfileVersion, 1, 1, 1, {}};
  ProfileWriter writer = {};
  writer.written = 1;
  std::memcpy(buffer, &header, sizeof header);
  std::memcpy(buffer + sizeof header, &writer, sizeof writer);
  fastnorm_profile_event event = {};
  size_t count = 0;
  counting = true;
  allocations_left = 0;
  const fastnorm_status decoded = fastnorm_profile_decode(buffer, sizeof buffer, &event, 1, &count);
  allocations_left = 0;
  const fastnorm_status written =
      fastnorm_profile_write_trace(buffer, sizeof buffer, "/dev/null", FASTNORM_TRACE_CHROME_JSON);
  counting = false;
  check("profile_decode without memory", decoded == FASTNORM_ERROR_OUT_OF_MEMORY);
  check("profile_write_trace without memory", written == FASTNORM_ERROR_OUT_OF_MEMORY);
  check("profile_decode",
        fastnorm_profile_decode(buffer, sizeof buffer, &event, 1, &count) == FASTNORM_OK);
}

}  // namespace

int main() {
  test_throwing_backend();
  test_kernel_count();
  test_allocation_failures(kCpu, nullptr);
  test_tuned_context();
  test_calls_without_allocating();
  test_profile_without_memory();
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}
