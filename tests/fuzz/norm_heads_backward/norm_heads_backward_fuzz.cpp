// Random calls of norm_heads_backward in memory of exact size. Nothing crashes, and the entry
// points agree. What breaks a rule of the header is refused. A call that is accepted runs, unless a
// position is out of range. A dry run of a GPU answers as the CPU does, or that it has no kernels.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "../heads_tensors.h"

namespace fastnorm::fuzz {
namespace {

using Part = fastnorm_norm_heads_backward_part;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "norm_heads_backward_fuzz: %s (last error: %s)\n", what,
               fastnorm_last_error());
  std::abort();
}

void require_text(fastnorm_status status) {
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  require(std::strlen(fastnorm_last_error()) > 10, "a failure without a text");
  require(std::strchr(fastnorm_last_error(), '\n') == nullptr, "a text of more than one line");
}

fastnorm_context* make_context(int32_t device_type, bool dry) {
  fastnorm_context_options options{};
  options.struct_size = sizeof options;
  options.flags = dry ? FASTNORM_CONTEXT_DRY_RUN : 0;
  options.dry_run_capability = device_type == FASTNORM_DEVICE_CUDA ? 90 : 0;
  fastnorm_context* context = nullptr;
  require(fastnorm_context_create({device_type, 0}, &options, &context) == FASTNORM_OK,
          "no context");
  return context;
}

class Call {
 public:
  explicit Call(Bytes& bytes) : bytes_(bytes), tensors_(bytes) {
    tokens_ = bytes_.pick(5);
    dtype_ = kDtypes[bytes_.pick(3)];
    args.struct_size = sizeof args;
    args.rope_dim = static_cast<int32_t>(2 * bytes_.pick(9));
    const uint32_t count = 1 + bytes_.pick(3);
    for (uint32_t i = 0; i < count; ++i) part();
    shared();
    for (const auto& p : parts_) pointers.push_back(p.get());
  }

  // What the header forbids whatever else there is.
  bool breaks_a_rule() const {
    for (const auto& p : parts_) {
      const bool norm = (p->flags & FASTNORM_NORM_HEADS_NORM) != 0;
      const bool rope = (p->flags & FASTNORM_NORM_HEADS_ROPE) != 0;
      if ((p->flags & ~255u) != 0 || p->dy == nullptr || norm != (p->x != nullptr)) return true;
      if (!p->dx && !p->dweight && !p->dbias) return true;
      if (!(p->eps >= 0) || (!norm && (p->eps != 0 || p->weight || p->rstd || p->dbias)))
        return true;
      if (p->dweight && !p->weight) return true;
      if ((p->flags & FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT) != 0 && !p->dweight) return true;
      if ((p->flags & FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS) != 0 && !p->dbias) return true;
      if (rope ? !args.cos || !args.sin || args.rope_dim % 2 != 0 : (p->flags & 28) != 0)
        return true;
      if (p->dy->ndim != 3 || p->dy->shape[1] < 1 ||
          p->dy->shape[0] != parts_.front()->dy->shape[0])
        return true;
      if (rope && (args.rope_dim < 0 || args.rope_dim > p->dy->shape[2])) return true;
    }
    return false;
  }

  // Whether norm_backward's kernels can do it all.
  bool norm_alone() const {
    for (const auto& p : parts_) {
      if ((p->flags & 35u) != FASTNORM_NORM_HEADS_NORM) return false;
    }
    return true;
  }

  void set_device(int32_t device_type) { tensors_.set_device(device_type); }

  fastnorm_norm_heads_args args{};
  std::vector<const Part*> pointers;

 private:
  const fastnorm_tensor* tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype) {
    return tensors_.tensor(std::move(shape), dtype);
  }
  bool one_in_two() { return (bytes_.byte() & 1) != 0; }

  void part() {
    constexpr int64_t kColumns[] = {1, 8, 17, 64, 96, 130, 576, 1030};
    parts_.push_back(std::make_unique<Part>());
    Part& p = *parts_.back();
    p.struct_size = sizeof p;
    heads_ = 1 + bytes_.pick(3);
    columns_ = kColumns[bytes_.pick(std::size(kColumns))];
    const std::vector<int64_t> rows = {tokens_, heads_, columns_};
    p.dy = tensor(rows, one_in_two() ? dtype_ : FASTNORM_DTYPE_F32);
    if (bytes_.pick(4) != 0) norm(p);
    if (one_in_two()) {
      p.flags |= FASTNORM_NORM_HEADS_ROPE | (bytes_.byte() & 28u);
      p.rope_offset = static_cast<int32_t>(bytes_.pick(4)) - 1;
    }
    const uint32_t place = bytes_.pick(5);
    if (place < 3) p.dx = tensor(rows, dtype_);
    if (place == 3) p.dx = p.dy;
    if (bytes_.rarely()) p.dx = p.x;
    if (bytes_.rarely()) p.flags ^= 1u << bytes_.pick(10);
    if (bytes_.rarely()) p.eps = bytes_.take<float>();
    if (bytes_.rarely()) p.weight_offset = bytes_.take<float>();
  }

  void norm(Part& p) {
    p.flags |= FASTNORM_NORM_HEADS_NORM;
    p.kind = one_in_two() ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    p.rounding = static_cast<fastnorm_rounding>(bytes_.pick(3));
    p.x = tensor({tokens_, heads_, columns_}, dtype_);
    const bool across = bytes_.pick(3) == 0;
    if (across) p.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    std::vector<int64_t> rows = {tokens_};
    if (!across) rows.push_back(heads_);
    if (one_in_two()) {
      p.rstd = tensor(rows, FASTNORM_DTYPE_F32);
      if (p.kind == FASTNORM_NORM_LAYER) p.mean = tensor(rows, FASTNORM_DTYPE_F32);
    }
    if (one_in_two()) {
      const std::vector<int64_t> columns =
          one_in_two() ? std::vector<int64_t>{columns_} : std::vector<int64_t>{heads_, columns_};
      p.weight = tensor(columns, dtype_);
      if (one_in_two()) p.dweight = tensor(columns, one_in_two() ? dtype_ : FASTNORM_DTYPE_F32);
      if (p.dweight != nullptr && one_in_two()) p.flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT;
    }
    if (one_in_two()) {
      p.dbias = tensor(
          one_in_two() ? std::vector<int64_t>{columns_} : std::vector<int64_t>{heads_, columns_},
          kDtypes[bytes_.pick(3)]);
      if (one_in_two()) p.flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS;
    }
  }

  void shared() {
    bool rope = false;
    for (const auto& p : parts_) rope = rope || (p->flags & FASTNORM_NORM_HEADS_ROPE) != 0;
    if (!rope) args.rope_dim = 0;
    if (rope != bytes_.rarely()) tensors_.tables(tokens_, heads_, dtype_, &args);
    if (bytes_.rarely()) args.slots = tensors_.numbers({tokens_});  // not looked at
    if (bytes_.rarely()) args.rope_dim = static_cast<int8_t>(bytes_.byte());
    if (bytes_.rarely()) args.flags ^= 1u << bytes_.pick(5);
    if (bytes_.rarely()) args.mrope_3 = static_cast<int8_t>(bytes_.byte());
  }

  Bytes& bytes_;
  int64_t tokens_ = 0, heads_ = 1, columns_ = 1;
  fastnorm_dtype_id dtype_ = FASTNORM_DTYPE_F32;
  std::vector<std::unique_ptr<Part>> parts_;
  Tensors tensors_;
};

struct Asked {
  fastnorm_status status;
  fastnorm_info info;
};

Asked ask(fastnorm_context* context, const Call& call) {
  Asked asked{};
  asked.info.struct_size = sizeof asked.info;
  const auto count = static_cast<int32_t>(call.pointers.size());
  asked.status = fastnorm_norm_heads_backward_query(context, &call.args, call.pointers.data(),
                                                    count, &asked.info);
  require_text(asked.status);
  require(fastnorm_norm_heads_backward_prepare(context, &call.args, call.pointers.data(), count) ==
              asked.status,
          "query and prepare disagree");
  return asked;
}

fastnorm_status run(fastnorm_context* context, const Call& call, uint64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const workspace = size == 0 ? nullptr : std::aligned_alloc(256, (size + 255) / 256 * 256);
  const fastnorm_status status = fastnorm_norm_heads_backward(
      context, &call.args, call.pointers.data(), static_cast<int32_t>(call.pointers.size()),
      workspace, size, nullptr);
  std::free(workspace);
  require_text(status);
  return status;
}

void fuzz(Bytes& bytes) {
  static fastnorm_context* const cpu = make_context(FASTNORM_DEVICE_CPU, false);
  static fastnorm_context* const dry = make_context(FASTNORM_DEVICE_CPU, true);
  static fastnorm_context* const cuda = make_context(FASTNORM_DEVICE_CUDA, true);
  Call call(bytes);
  const Asked asked = ask(cpu, call);
  require(asked.status != FASTNORM_OK || !call.breaks_a_rule(), "a bad call is accepted");
  require(ask(dry, call).status == asked.status &&
              run(dry, call, asked.info.workspace_bytes) == asked.status,
          "a dry run differs");
  const fastnorm_status status = run(cpu, call, asked.info.workspace_bytes);
  const bool values = asked.status == FASTNORM_OK && status == FASTNORM_ERROR_ARGUMENT &&
                      std::strstr(fastnorm_last_error(), "the position of token") != nullptr;
  require(values || status == asked.status, "query and run disagree");
  if (asked.status == FASTNORM_OK && asked.info.workspace_bytes != 0)
    require(run(cpu, call, asked.info.workspace_bytes - 1) == FASTNORM_ERROR_ARGUMENT,
            "too small a workspace is accepted");
  call.set_device(FASTNORM_DEVICE_CUDA);
  const Asked gpu = ask(cuda, call);
  const bool lacks =
      asked.status == FASTNORM_OK && gpu.status == FASTNORM_ERROR_UNSUPPORTED && !call.norm_alone();
  require(lacks || gpu.status == asked.status, "CUDA and the CPU disagree");
  require(run(cuda, call, gpu.info.workspace_bytes) == gpu.status,
          "CUDA's query and dry run disagree");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  fastnorm::fuzz::fuzz(bytes);
  return 0;
}
