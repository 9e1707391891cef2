// Random options, blobs and calls of peers, by dry runs: nothing crashes, query, prepare and call
// agree, every failure has a text, and what was accepted keeps the rules of the table.
#include <cstring>
#include <memory>
#include <string>

#include "../judge.h"
#include "../memory.h"
#include "../norm_family.h"
#include "../target.h"

namespace fastnorm::fuzz {
namespace {

fastnorm_context* cpu() {
  static fastnorm_context* const context = make_context(FASTNORM_DEVICE_CPU, true);
  return context;
}

template <class Enum>
void set(Enum& field, int32_t value) {
  std::memcpy(&field, &value, sizeof value);
}

constexpr int64_t kMostColumns = 300;  // of the peer

fastnorm_peer_options good_options() {
  fastnorm_peer_options options{};
  options.struct_size = sizeof options;
  options.ranks = 2;
  options.dtype = FASTNORM_DTYPE_BF16;
  options.max_columns = kMostColumns;
  return options;
}

// Rank 0 of two, connected.
fastnorm_peer* connected() {
  static fastnorm_peer* const peer = [] {
    static fastnorm_peer* made[2] = {};
    unsigned char blobs[2][FASTNORM_PEER_BLOB_BYTES];
    for (int32_t r = 0; r < 2; ++r) {
      fastnorm_peer_options options = good_options();
      options.rank = r;
      require(fastnorm_peer_create(cpu(), &options, &made[r]) == FASTNORM_OK, "no peer");
      require(fastnorm_peer_export(made[r], blobs[r], sizeof blobs[r]) == FASTNORM_OK, "no blob");
    }
    require(fastnorm_peer_import(made[0], blobs, sizeof blobs) == FASTNORM_OK, "no import");
    return made[0];
  }();
  return peer;
}

void fuzz_options(Bytes& bytes) {
  fastnorm_peer_options options = good_options();
  options.rank = static_cast<int32_t>(bytes.pick(2));
  if (bytes.rarely()) options.rank = bytes.take<int32_t>();
  if (bytes.rarely()) options.ranks = bytes.take<int32_t>();
  if (bytes.rarely()) set(options.dtype, bytes.take<int32_t>());
  if (bytes.rarely()) set(options.algorithm, bytes.take<int32_t>());
  if (bytes.rarely()) options.max_columns = bytes.take<int64_t>();
  if (bytes.rarely()) options.one_shot_bytes = bytes.take<int64_t>();
  if (bytes.rarely()) options.wait_ns = bytes.take<int64_t>();
  if (bytes.rarely()) options.rings = bytes.take<int32_t>();
  if (bytes.rarely()) options.reserved = bytes.take<int32_t>();
  // A greater size would promise fields behind these.
  if (bytes.rarely()) options.struct_size = bytes.pick(sizeof options + 1);
  uint64_t size = 0;
  const fastnorm_status status = fastnorm_peer_buffer_bytes(cpu(), &options, &size);
  require_text(status);
  fastnorm_peer* peer = nullptr;
  require(fastnorm_peer_create(cpu(), &options, &peer) == status, "create and its size differ");
  require((status == FASTNORM_OK) == (peer != nullptr), "a peer of a failure");
  if (peer == nullptr) return;
  // Its own blob, and that of the other rank with a byte or two changed.
  unsigned char blobs[FASTNORM_PEER_MAX_RANKS * FASTNORM_PEER_BLOB_BYTES] = {};
  unsigned char* const own = blobs + options.rank * FASTNORM_PEER_BLOB_BYTES;
  require(fastnorm_peer_export(peer, own, FASTNORM_PEER_BLOB_BYTES) == FASTNORM_OK, "no blob");
  for (uint32_t i = bytes.pick(4); i > 0; --i) own[bytes.pick(128)] = bytes.byte();
  require_text(fastnorm_peer_import(peer, blobs,
                                    static_cast<size_t>(options.ranks) * FASTNORM_PEER_BLOB_BYTES));
  fastnorm_peer_destroy(peer);
}

void* workspace() { return reinterpret_cast<void*>(uint64_t{30} << 42); }
constexpr size_t kWorkspaceBytes = size_t{1} << 41;

// The three functions of a family say the same of a call.
template <typename Args, typename Query, typename Prepare, typename Run>
fastnorm_status agree(const Args* args, Query query, Prepare prepare, Run run) {
  fastnorm_info info = new_info();
  const fastnorm_status status = query(cpu(), args, &info);
  require_text(status);
  require(prepare(cpu(), args) == status, "query and prepare differ");
  const bool fits = info.workspace_bytes <= kWorkspaceBytes;
  const fastnorm_status ran = run(cpu(), args, workspace(), kWorkspaceBytes, nullptr);
  require_text(ran);
  require(ran == status || !fits, "query and call differ");
  if (status == FASTNORM_OK && info.workspace_bytes > 0) {
    require(
        run(cpu(), args, workspace(), info.workspace_bytes - 1, nullptr) == FASTNORM_ERROR_ARGUMENT,
        "too small a workspace passes");
  }
  return status;
}

template <class Args, class Calls, class Query, class Prepare, class Run>
void fuzz_calls(Bytes& bytes, const char* name, const Calls& family, const Extents& rows,
                Query query, Prepare prepare, Run run) {
  const CallStruct& type = *support::find_family(name)->args;
  Drawer drawer(bytes, family, FASTNORM_DEVICE_CPU);
  const auto drawn = drawer.draw(type, rows);
  const void* const known = drawn->known.data();
  const CurrentCall now([&] { return call_text(name, known); });
  if (agree(drawn->args<Args>(), query, prepare, run) != FASTNORM_OK) return;
  const std::string fault = find_fault(family, type, known, FASTNORM_DEVICE_CPU);
  require(fault.empty(), "accepted", fault);
  if (elements_of(*family.rows(*static_cast<const Args*>(known))) == 0) return;
  Memory memory(family);
  memory.add(type, known, 0);
  require(memory.find_fault().empty(), "accepted", memory.find_fault());
}

// A norm without stages.
class AllreduceFamily : public NormFamily {
 public:
  using Args = fastnorm_peer_allreduce_norm_args;

  void choose(Choice* choice, Bytes& bytes) const override {
    if (choice->at == nullptr) return;
    NormFamily::choose(choice, bytes);
    if (std::strcmp(choice->at->name, "quant") == 0 && !bytes.rarely()) {
      constexpr int kRotation = schema::kNumber<&fastnorm_quant::rotation>;
      for (size_t f = 0; f < choice->type.fields.size(); ++f) {
        if (f == kRotation || choice->type.fields[f].needs[0].terms[0].field == kRotation)
          choice->drop(f);
      }
    }
    if (std::strcmp(choice->at->name, "norm") != 0) return;
    if (bytes.rarely()) return;
    for (size_t f = schema::kNumber<&fastnorm_norm_args::gate>; f < choice->type.fields.size(); ++f)
      choice->drop(f);
    choice->drop<&fastnorm_norm_args::flags>();
  }
  void numbers(const CallStruct& type, void* args, Bytes& bytes) const override {
    if (&type != support::find_family("peer_allreduce_norm")->args)
      return NormFamily::numbers(type, args, bytes);
    if (!bytes.rarely()) static_cast<Args*>(args)->peer = connected();
  }
  Extents extents(const CallStruct& type, const void* args, const Field* field,
                  const Extents& in) const override {
    if (field == nullptr) return in;
    return NormFamily::extents(type, args, field, in);
  }
  const char* fault(const CallStruct& type, const void* args, const Field* field,
                    const Extents& e) const override {
    if (field == nullptr) return nullptr;
    if (const char* fault = NormFamily::fault(type, args, field, e)) return fault;
    if (std::strcmp(field->name, "norm") != 0) return nullptr;
    const auto& a = *static_cast<const fastnorm_norm_args*>(args);
    if (id_of(a.x->dtype) != FASTNORM_DTYPE_BF16) return "another dtype than the peer's";
    if (e.x.back() > kMostColumns) return "more columns than the peer's";
    if (a.flags > 7) return "flags that no all-reduce has";
    for (size_t f = schema::kNumber<&fastnorm_norm_args::gate>; f < type.fields.size(); ++f) {
      if (is_given(args, type.fields[f])) return "a field that no all-reduce has";
    }
    return nullptr;
  }
  const fastnorm_tensor* rows(const Args& a) const { return a.norm->x; }
};

class ShardedFamily : public Family {
 public:
  using Args = fastnorm_peer_sharded_norm_args;

  void choose(Choice* choice, Bytes& bytes) const override {
    Choice& c = *choice;
    if (c.has<&Args::x2>() || bytes.pick(2) != 0) c.want<&Args::x2>(), c.want<&Args::y2>();
    if (c.has<&Args::flags>())
      c.value<&Args::flags>() = (bytes.byte() & 3) == 3 ? 7 : bytes.pick(4);
    if (!bytes.rarely()) c.drop<&Args::weight_offset>();
  }
  void numbers(const CallStruct&, void* args, Bytes& bytes) const override {
    if (!bytes.rarely()) static_cast<Args*>(args)->peer = connected();
  }
  Extents extents(const CallStruct&, const void* args, const Field*,
                  const Extents& in) const override {
    const Args& a = *static_cast<const Args*>(args);
    Extents e = in;
    e.x = shape_of(a.x, in.x.empty() ? std::vector<int64_t>{1, 1} : in.x);
    e.x2 = shape_of(a.x2, e.x);
    if (a.x != nullptr) e.dtype = id_of(a.x->dtype);
    return e;
  }
  const char* fault(const CallStruct&, const void* args, const Field*,
                    const Extents& e) const override {
    const Args& a = *static_cast<const Args*>(args);
    if (a.eps < 0) return "a negative eps";
    if (a.flags > 7 || (a.flags & 5) == 4) return "flags that do not fit";
    if (a.x2 != nullptr && a.weight_offset != 0 && a.weight2 == nullptr)
      return "an offset of no weight";
    for (const std::vector<int64_t>& x : {e.x, e.x2}) {
      if (x.size() < 2 || x.size() > 3) return "a rank that no rows have";
      if (x[1] < 1 || x.back() < 1 || x.back() > 8192) return "rows of no columns, or of too many";
    }
    return nullptr;
  }
  const fastnorm_tensor* rows(const Args& a) const { return a.x; }
};

// A bit of a field that an all-reduce does not have: never looked at, and always refused.
void fuzz_bits(Bytes& bytes) {
  constexpr size_t kFirst = offsetof(fastnorm_norm_args, gate);
  const int64_t shape[] = {2, 8};
  fastnorm_tensor x = {}, y;
  x.data = reinterpret_cast<void*>(uintptr_t{1} << 42);
  x.device_type = FASTNORM_DEVICE_CPU;
  x.ndim = 2;
  x.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
  x.shape = shape;
  y = x;
  y.data = reinterpret_cast<void*>(uintptr_t{1} << 43);
  fastnorm_norm_args norm = {};
  norm.struct_size = sizeof norm;
  norm.x = &x;
  norm.y = &y;
  fastnorm_peer_allreduce_norm_args args = {};
  args.struct_size = sizeof args;
  args.norm = &norm;
  args.peer = connected();
  const auto status = [&] {
    return agree(&args, fastnorm_peer_allreduce_norm_query, fastnorm_peer_allreduce_norm_prepare,
                 fastnorm_peer_allreduce_norm);
  };
  require(status() == FASTNORM_OK, "a good call is refused");
  const size_t at = kFirst + bytes.take<uint16_t>() % (sizeof norm - kFirst);
  reinterpret_cast<uint8_t*>(&norm)[at] ^= static_cast<uint8_t>(1u << bytes.pick(8));
  require(status() != FASTNORM_OK, "a field that no all-reduce has passes");
}

void fuzz_allreduce(Bytes& bytes) {
  static const AllreduceFamily family;
  Extents rows;
  rows.dtype = FASTNORM_DTYPE_BF16;
  rows.x = {bytes.pick(5), 1 + bytes.byte()};
  if ((bytes.byte() & 3) == 3) rows.x.insert(rows.x.begin(), 1 + bytes.pick(3));
  fuzz_calls<AllreduceFamily::Args>(
      bytes, "peer_allreduce_norm", family, rows, fastnorm_peer_allreduce_norm_query,
      fastnorm_peer_allreduce_norm_prepare, fastnorm_peer_allreduce_norm);
}

void fuzz_sharded(Bytes& bytes) {
  static const ShardedFamily family;
  Extents rows;
  rows.dtype = row_dtype(bytes);
  rows.x = {bytes.pick(5), 1 + bytes.pick(4), 1 + bytes.byte()};
  if ((bytes.byte() & 1) != 0) rows.x.erase(rows.x.begin() + 1);
  fuzz_calls<ShardedFamily::Args>(bytes, "peer_sharded_norm", family, rows,
                                  fastnorm_peer_sharded_norm_query,
                                  fastnorm_peer_sharded_norm_prepare, fastnorm_peer_sharded_norm);
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  switch (bytes.pick(8)) {
    case 0:
      fastnorm::fuzz::fuzz_options(bytes);
      break;
    case 1:
      fastnorm::fuzz::fuzz_sharded(bytes);
      break;
    case 2:
      fastnorm::fuzz::fuzz_bits(bytes);
      break;
    default:
      fastnorm::fuzz::fuzz_allreduce(bytes);
  }
  return 0;
}
