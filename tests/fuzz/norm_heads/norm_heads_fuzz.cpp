// Random calls of norm_heads in memory of exact size. Nothing crashes, and the entry points agree.
// What was accepted keeps the rules of the table; it runs, unless a position or a slot is out of
// range, and writes its outputs and nothing else. A dry run of a GPU answers as the CPU does.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "../heads.h"

namespace fastnorm::fuzz {
namespace {

using Part = fastnorm_norm_heads_part;
using Quant = fastnorm_quant;

class PartFamily : public HeadsFamily {
 public:
  void choose(Choice* choice, Bytes& bytes) const override {
    Choice& c = *choice;
    HeadsFamily::choose(choice, bytes);
    if (is_shared(c.type)) return;
    if (c.at != nullptr) return choose_codes(choice, bytes);
    if ((bytes.byte() & 3) != 3) c.want<&Part::y>();
    tidy_flags(choice, schema::kNumber<&Part::flags>, 63, bytes);
    const uint8_t caches = bytes.byte();
    if ((caches & 3) == 3) c.want<&Part::cache>();
    if ((caches & 28) == 28) c.want<&Part::cache_tail>();
    if (c.has<&Part::rstd_in>() && !bytes.rarely()) {
      c.drop<&Part::mean>(), c.drop<&Part::rstd>(), c.drop<&Part::sumsq>();
      if (c.value<&Part::kind>() == FASTNORM_NORM_LAYER) c.want<&Part::mean_in>();
    }
  }

  void numbers(const CallStruct& type, void* args, Bytes& bytes) const override {
    HeadsFamily::numbers(type, args, bytes);
    if (is_quant(type)) return quant_numbers(static_cast<Quant*>(args), bytes);
    if (is_shared(type)) return;
    Part& a = *static_cast<Part*>(args);
    if (a.rope_offset != 0) a.rope_offset -= 2;
  }

  Extents extents(const CallStruct& type, const void* args, const Field* field,
                  const Extents& in) const override {
    if (is_shared(type)) return HeadsFamily::extents(type, args, field, in);
    Extents e = in;
    if (is_quant(type)) {
      e.quant = static_cast<const Quant*>(args);
      if (is_of_cache(field)) e.x = in.cache.size() == 4 ? in.cache : std::vector<int64_t>(4);
      return e;
    }
    const Part& a = *static_cast<const Part*>(args);
    e.x = rows_of(a.x, in.x);
    if (a.x != nullptr) e.dtype = id_of(a.x->dtype);
    e.pairs = number(a.kind) == FASTNORM_NORM_LAYER;
    e.across_heads = (a.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0;
    e.quant = a.cache_quant;
    e.cache = shape_of(a.cache, {});
    if (const std::vector<int64_t> tail = shape_of(a.cache_tail, {}); !tail.empty())
      e.tail = tail.back();
    return e;
  }

  const char* fault(const CallStruct& type, const void* args, const Field* field,
                    const Extents& e) const override {
    if (is_shared(type)) return HeadsFamily::fault(type, args, field, e);
    if (is_quant(type)) {
      const Quant& q = *static_cast<const Quant*>(args);
      return is_of_cache(field) ? cache_fault(q) : quant_fault(q, e);
    }
    const Part& a = *static_cast<const Part*>(args);
    const bool codes = a.quant != nullptr && a.quant->quantized != nullptr;
    if (const char* fault = flags_fault(a.flags, 63)) return fault;
    if (!a.y && !codes && !a.cache && !a.sumsq && !a.mean && !a.rstd) return "no output";
    if (a.eps < 0) return "a negative eps";
    if (a.rope_offset < -1) return "a rope that begins nowhere";
    if (e.x[1] < 1 || e.x[2] < 1) return "no heads, or no columns";
    if (number(a.kind) == FASTNORM_NORM_LAYER && (a.mean_in == nullptr) != (a.rstd_in == nullptr))
      return "half a statistic";
    if (const char* fault = weights_fault(a, e)) return fault;
    if (a.cache_tail != nullptr && (e.tail < 1 || e.tail >= e.x[2])) return "a tail without a head";
    if (a.cache_tail != nullptr && number(a.cache_quant->scheme) == 0) return "a tail of elements";
    if (a.cache == nullptr || a.quant == nullptr || a.cache_quant == nullptr) return nullptr;
    const Quant &q = *a.quant, &c = *a.cache_quant;
    if (q.scheme == 0 || c.scheme == 0) return nullptr;
    if (number(q.source) != number(c.source)) return "two sources";
    if (q.scheme <= FASTNORM_QUANT_PER_BLOCK && number(q.division) != number(c.division))
      return "two divisions";
    return nullptr;
  }

  // The codes of a cache are the cache itself.
  bool keeps_needs(const Field* field) const override {
    return field == nullptr || !is_of_cache(field);
  }

 private:
  static const char* weights_fault(const Part& a, const Extents& e) {
    if ((a.head_weights == nullptr) != (a.head_weights_out == nullptr)) return "half a head weight";
    if (!std::isfinite(a.head_weights_factor)) return "a factor that is not finite";
    if (a.head_weights == nullptr) return a.head_weights_factor != 0 ? "a factor alone" : nullptr;
    if (a.quant == nullptr || a.quant->quantized == nullptr) return "head weights without scales";
    const uint32_t scheme = number(a.quant->scheme);
    const bool one = scheme < FASTNORM_QUANT_PER_BLOCK ||
                     (scheme == FASTNORM_QUANT_PER_BLOCK && e.x[2] <= a.quant->block_size);
    return one ? nullptr : "head weights of several scales";
  }

  static bool is_quant(const CallStruct& type) {
    static const CallStruct& quant = type_of("fastnorm_quant");
    return &type == &quant;
  }
  static bool is_of_cache(const Field* field) {
    return std::strcmp(field->name, "cache_quant") == 0;
  }

  static void choose_codes(Choice* choice, Bytes& bytes) {
    if (!is_of_cache(choice->at)) return choose_quant(choice, bytes);
    Choice& c = *choice;
    const uint32_t scheme = bytes.pick(3);
    c.wanted = 0;
    if (scheme == 0) return;
    c.want<&Quant::scheme>(), c.want<&Quant::scale>();
    c.value<&Quant::scheme>() = scheme == 1 ? FASTNORM_QUANT_PER_TENSOR : FASTNORM_QUANT_PER_BLOCK;
    if ((bytes.byte() & 3) == 3) c.want<&Quant::division>(), c.value<&Quant::division>() = 1;
    if ((bytes.byte() & 3) == 3) c.want<&Quant::source>(), c.value<&Quant::source>() = 1;
    if (scheme == 2 && (bytes.byte() & 1) != 0)
      c.want<&Quant::scale_pow2>(), c.value<&Quant::scale_pow2>() = 1;
    if (bytes.rarely()) c.want<&Quant::amax>();
    if (bytes.rarely()) c.want<&Quant::clamp>();
    if (bytes.rarely()) c.want<&Quant::amax_floor>();
  }

  static const char* cache_fault(const Quant& c) {
    if (c.clamp != 0 || c.clamp_scale || c.amax || c.quantized || c.global_scale)
      return "what a cache does not have";
    const uint32_t scheme = number(c.scheme);
    if (scheme > 3 || scheme == FASTNORM_QUANT_PER_ROW) return "a scheme of no cache";
    if ((scheme != 0) != (c.scale != nullptr)) return "scales without codes, or none with";
    return quant_fault(c, {});
  }
};

using Call = HeadsCall<Part>;

// Whether a token of a call that was accepted has no slot, so that its positions do not matter.
bool is_padding(const Call& call, int64_t token) {
  const fastnorm_tensor* const slots = call.shared().slots;
  if (slots == nullptr) return false;
  if (token >= slots->shape[0]) return true;
  const int64_t bytes = slots->dtype.bits / 8;
  int64_t slot = 0;
  std::memcpy(&slot, static_cast<const char*>(slots->data) + token * bytes,
              static_cast<size_t>(bytes));
  return bytes == 8 ? slot < 0 : static_cast<int32_t>(slot) < 0;
}

struct Asked {
  fastnorm_status status;
  fastnorm_info info;
};

Asked ask(fastnorm_context* context, const Call& call) {
  Asked asked = {FASTNORM_OK, new_info()};
  asked.status = fastnorm_norm_heads_query(context, call.args, call.pointers.data(), call.count(),
                                           &asked.info);
  require_text(asked.status);
  require(fastnorm_norm_heads_prepare(context, call.args, call.pointers.data(), call.count()) ==
              asked.status,
          "query and prepare disagree");
  return asked;
}

fastnorm_status run(fastnorm_context* context, const Call& call) {
  const fastnorm_status status = fastnorm_norm_heads(context, call.args, call.pointers.data(),
                                                     call.count(), nullptr, 0, nullptr);
  require_text(status);
  return status;
}

void fuzz(Bytes& bytes) {
  static fastnorm_context* const cpu = make_context(FASTNORM_DEVICE_CPU, false);
  static fastnorm_context* const dry = make_context(FASTNORM_DEVICE_CPU, true);
  static fastnorm_context* const cuda = make_context(FASTNORM_DEVICE_CUDA, true);
  PartFamily family;
  Call call(bytes, &family, "norm_heads");
  const CurrentCall now([&] { return call.text(); });
  const bool placed = call.drawer.place();
  const Asked asked = ask(placed ? cpu : dry, call);
  if (asked.status == FASTNORM_OK) {
    const std::string fault = call.find_fault(&Part::x);
    require(fault.empty(), "accepted", fault);
    require((asked.info.launches == 0) == (call.part(0).x->shape[0] == 0), "launches");
  }
  require(ask(dry, call).status == asked.status && run(dry, call) == asked.status,
          "a dry run differs");
  if (placed) {
    require(!call.drawer.has_changed(false), "a dry run writes");
    const fastnorm_status status = run(cpu, call);
    constexpr char kPosition[] = "the position of token ";
    const char* const text = fastnorm_last_error();
    const char* const position = std::strstr(text, kPosition);
    const bool values = asked.status == FASTNORM_OK && status == FASTNORM_ERROR_ARGUMENT &&
                        (position != nullptr || std::strstr(text, "slots[") != nullptr ||
                         std::strstr(text, "rotation_signs[") != nullptr);
    require(values || status == asked.status, "query and run disagree");
    if (values && position != nullptr) {
      require(!is_padding(call, std::strtoll(position + sizeof kPosition - 1, nullptr, 10)),
              "the position of padding is looked at");
    }
    require(!call.drawer.has_changed(status == FASTNORM_OK),
            "bytes beside the outputs have changed");
  }
  call.drawer.move_to_cuda();
  const fastnorm_status on_cuda = ask(cuda, call).status;
  // CUDA numbers the rows in 32 bits.
  const bool too_many = on_cuda == FASTNORM_ERROR_UNSUPPORTED &&
                        std::strstr(fastnorm_last_error(), "rows of all tokens") != nullptr;
  require(on_cuda == asked.status || (asked.status == FASTNORM_OK && too_many),
          "CUDA and the CPU disagree");
  require(run(cuda, call) == on_cuda, "CUDA's query and dry run disagree");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  fastnorm::fuzz::fuzz(bytes);
  return 0;
}
