// Random calls of norm_heads_backward in memory of exact size. Nothing crashes, and the entry
// points agree. What was accepted keeps the rules of the table; it runs, unless a position is out
// of range, and writes its outputs and nothing else. A dry run of a GPU answers as the CPU does, or
// that it has no kernels.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "../heads.h"

namespace fastnorm::fuzz {
namespace {

using Part = fastnorm_norm_heads_backward_part;

class PartFamily : public HeadsFamily {
 public:
  void choose(Choice* choice, Bytes& bytes) const override {
    Choice& c = *choice;
    HeadsFamily::choose(choice, bytes);
    if (is_shared(c.type)) return;
    if ((bytes.byte() & 3) != 3) c.want<&Part::dx>();
    tidy_flags(choice, schema::kNumber<&Part::flags>, 255, bytes);
    uint32_t& flags = c.value<&Part::flags>();
    if ((flags & FASTNORM_NORM_HEADS_NORM) != 0) c.want<&Part::x>();
    if (c.has<&Part::dweight>()) c.want<&Part::weight>();
    if (!c.has<&Part::dweight>()) flags &= ~uint32_t{FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT};
    if (!c.has<&Part::dbias>()) flags &= ~uint32_t{FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS};
    if (c.has<&Part::rstd>() && c.value<&Part::kind>() == FASTNORM_NORM_LAYER)
      c.want<&Part::mean>();
  }

  void numbers(const CallStruct& type, void* args, Bytes& bytes) const override {
    HeadsFamily::numbers(type, args, bytes);
    if (is_shared(type)) return;
    Part& a = *static_cast<Part*>(args);
    if (a.rope_offset != 0) a.rope_offset -= 2;
  }

  Extents extents(const CallStruct& type, const void* args, const Field* field,
                  const Extents& in) const override {
    if (is_shared(type)) return HeadsFamily::extents(type, args, field, in);
    const Part& a = *static_cast<const Part*>(args);
    Extents e = in;
    e.x = rows_of(a.dy, in.x);
    const fastnorm_tensor* const of = a.x != nullptr ? a.x : a.dx;
    if (of != nullptr) e.dtype = id_of(of->dtype);
    e.across_heads = (a.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0;
    return e;
  }

  const char* fault(const CallStruct& type, const void* args, const Field* field,
                    const Extents& e) const override {
    if (is_shared(type)) return HeadsFamily::fault(type, args, field, e);
    const Part& a = *static_cast<const Part*>(args);
    if (const char* fault = flags_fault(a.flags, 255)) return fault;
    const bool norm = (a.flags & FASTNORM_NORM_HEADS_NORM) != 0;
    if (norm != (a.x != nullptr)) return "a norm without x";
    if (!a.dx && !a.dweight && !a.dbias) return "no output";
    if (a.eps < 0) return "a negative eps";
    if (a.rope_offset < -1) return "a rope that begins nowhere";
    if ((a.flags & FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT) != 0 && !a.dweight) return "no dweight";
    if ((a.flags & FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS) != 0 && !a.dbias) return "no dbias";
    if (e.x[1] < 1 || e.x[2] < 1) return "no heads, or no columns";
    if (number(a.kind) == FASTNORM_NORM_LAYER && (a.mean == nullptr) != (a.rstd == nullptr))
      return "half a statistic";
    return nullptr;
  }
};

using Call = HeadsCall<Part>;

// Whether norm_backward's kernels can do it all.
bool norm_alone(const Call& call) {
  for (int32_t i = 0; i < call.count(); ++i) {
    if ((call.part(static_cast<size_t>(i)).flags & 35u) != FASTNORM_NORM_HEADS_NORM) return false;
  }
  return true;
}

// Whether the rows of all parts of an accepted call are more than a grid of a GPU takes.
bool has_too_many_rows(const Call& call) {
  double rows = 0;
  for (int32_t i = 0; i < call.count(); ++i) {
    const int64_t* const shape = call.part(static_cast<size_t>(i)).dy->shape;
    rows += static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
  }
  return rows > INT32_MAX;
}

struct Asked {
  fastnorm_status status;
  fastnorm_info info;
};

Asked ask(fastnorm_context* context, const Call& call) {
  Asked asked = {FASTNORM_OK, new_info()};
  asked.status = fastnorm_norm_heads_backward_query(context, call.args, call.pointers.data(),
                                                    call.count(), &asked.info);
  require_text(asked.status);
  require(fastnorm_norm_heads_backward_prepare(context, call.args, call.pointers.data(),
                                               call.count()) == asked.status,
          "query and prepare disagree");
  return asked;
}

fastnorm_status run(fastnorm_context* context, const Call& call, void* workspace, uint64_t bytes) {
  const fastnorm_status status =
      fastnorm_norm_heads_backward(context, call.args, call.pointers.data(), call.count(),
                                   workspace, static_cast<size_t>(bytes), nullptr);
  require_text(status);
  return status;
}

// A dry run touches no memory, so that its workspace is an address alone: gradients of the largest
// tensors that an address space holds need terabytes.
fastnorm_status run_dry(fastnorm_context* context, const Call& call, uint64_t bytes) {
  return run(context, call, reinterpret_cast<void*>(uintptr_t{1} << 52), bytes);
}

fastnorm_status run_real(fastnorm_context* context, const Call& call, uint64_t bytes) {
  void* const workspace = bytes == 0 ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const fastnorm_status status = run(context, call, workspace, bytes);
  std::free(workspace);
  return status;
}

void fuzz(Bytes& bytes) {
  static fastnorm_context* const cpu = make_context(FASTNORM_DEVICE_CPU, false);
  static fastnorm_context* const dry = make_context(FASTNORM_DEVICE_CPU, true);
  static fastnorm_context* const cuda = make_context(FASTNORM_DEVICE_CUDA, true);
  PartFamily family;
  Call call(bytes, &family, "norm_heads_backward");
  const CurrentCall now([&] { return call.text(); });
  const bool placed = call.drawer.place();
  const Asked asked = ask(placed ? cpu : dry, call);
  if (asked.status == FASTNORM_OK) {
    const std::string fault = call.find_fault(&Part::dy);
    require(fault.empty(), "accepted", fault);
  }
  const uint64_t workspace = asked.info.workspace_bytes;
  require(ask(dry, call).status == asked.status && run_dry(dry, call, workspace) == asked.status,
          "a dry run differs");
  if (placed) {
    require(!call.drawer.has_changed(false), "a dry run writes");
    if (asked.status == FASTNORM_OK && workspace != 0)
      require(run_real(cpu, call, workspace - 1) == FASTNORM_ERROR_ARGUMENT,
              "too small a workspace is accepted");
    const fastnorm_status status = run_real(cpu, call, workspace);
    const bool values = asked.status == FASTNORM_OK && status == FASTNORM_ERROR_ARGUMENT &&
                        std::strstr(fastnorm_last_error(), "the position of token") != nullptr;
    require(values || status == asked.status, "query and run disagree");
    require(!call.drawer.has_changed(status == FASTNORM_OK),
            "bytes beside the outputs have changed");
  }
  call.drawer.move_to_cuda();
  const Asked gpu = ask(cuda, call);
  const bool lacks = asked.status == FASTNORM_OK && gpu.status == FASTNORM_ERROR_UNSUPPORTED &&
                     (!norm_alone(call) || has_too_many_rows(call));
  require(lacks || gpu.status == asked.status, "CUDA and the CPU disagree");
  require(run_dry(cuda, call, gpu.info.workspace_bytes) == gpu.status,
          "CUDA's query and dry run disagree");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  fastnorm::fuzz::fuzz(bytes);
  return 0;
}
