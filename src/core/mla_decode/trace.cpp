#include "core/mla_decode/trace.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <span>

#include "core/common/check.h"

namespace fastnorm {
namespace {

constexpr const char* kNames[] = {
    "work",      "load q",       "load kv",      "qk",       "softmax",  "rescale",
    "write p",   "pv",           "write o",      "merge",    "wait q",   "wait kv",
    "wait free", "wait scale 0", "wait scale 1", "wait p 0", "wait p 1", "wait plan"};
constexpr int32_t kIds = static_cast<int32_t>(std::size(kNames));
constexpr const char* kGroupNames[] = {"compute 0", "compute 1", "load"};

bool is_wait(uint32_t id) {
  return id >= FASTNORM_PROFILE_WAIT_Q && id <= FASTNORM_PROFILE_WAIT_PLAN;
}

// True if the event is a product, which runs on the tensor cores.
bool is_product(uint32_t id) { return id == FASTNORM_PROFILE_QK || id == FASTNORM_PROFILE_PV; }

// Appends formatted text.
__attribute__((format(printf, 2, 3))) void put(std::string* text, const char* format, ...) {
  char line[320];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  text->append(line, static_cast<size_t>(std::clamp(length, 0, int{sizeof line} - 1)));
}

// Nanoseconds at a cycle of the writer.
double nanoseconds(const ProfileWriter& w, uint64_t cycle) {
  const auto cycles = static_cast<double>(w.end_cycle - w.start_cycle);
  const auto span = static_cast<double>(w.end_ns - w.start_ns);
  return cycles > 0 ? static_cast<double>(cycle) * span / cycles : 0;
}

// Cycles since the writer's start, from the low 32 bits of events in order.
class Unwrapped {
 public:
  uint64_t next(uint32_t low) {
    at_ += static_cast<uint32_t>(low - static_cast<uint32_t>(at_));
    return at_;
  }

 private:
  uint64_t at_ = 0;
};

struct Edge {
  uint64_t cycle;
  bool begin;
};

// Cycles in which at least one of the overlapping spans is open.
uint64_t covered(std::vector<Edge>* edges) {
  std::stable_sort(edges->begin(), edges->end(),
                   [](const Edge& a, const Edge& b) { return a.cycle < b.cycle; });
  uint64_t since = 0, total = 0;
  int open = 0;
  for (const Edge& e : *edges) {
    if (e.begin) {
      if (open++ == 0) since = e.cycle;
    } else if (open > 0 && --open == 0) {
      total += e.cycle - since;
    }
  }
  return total;
}

// Adds a warpgroup's products to those of its block, and its waits to the sums.
void add_up(std::span<const uint64_t> words, uint64_t start, std::vector<Edge>* products,
            uint64_t (&waits)[kIds]) {
  uint64_t since[kIds] = {};
  bool open[kIds] = {};
  Unwrapped clock;
  for (const uint64_t word : words) {
    const uint64_t cycle = start + clock.next(profile_cycle(word));
    const uint32_t id = profile_id(word), kind = profile_kind(word);
    if (kind > FASTNORM_PROFILE_END) continue;
    if (is_product(id)) products->push_back({cycle, kind == FASTNORM_PROFILE_BEGIN});
    if (!is_wait(id)) continue;
    if (kind == FASTNORM_PROFILE_END && open[id]) waits[id] += cycle - since[id];
    open[id] = kind == FASTNORM_PROFILE_BEGIN;
    since[id] = cycle;
  }
}

// One line of the trace. Products are async spans, because they overlap other work of their
// warpgroup. Numbers are written as integers: the decimal point must not depend on the locale.
void put_event(const fastnorm_profile_event& e, std::string* text) {
  const bool begin = e.kind == FASTNORM_PROFILE_BEGIN;
  const char* name = profile_id_name(e.id);
  if (e.kind != FASTNORM_PROFILE_BEGIN && e.kind != FASTNORM_PROFILE_END) {
    put(text, R"({"ph":"i","s":"t","name":"%s")", name);
  } else if (is_product(static_cast<uint32_t>(e.id))) {
    put(text, R"({"ph":"%s","cat":"tensor","id":"%d.%d.%d","name":"%s")", begin ? "b" : "e",
        e.block, e.group, static_cast<int>(e.id), name);
  } else {
    put(text, R"({"ph":"%s","name":"%s")", begin ? "B" : "E", name);
  }
  put(text,
      R"(,"pid":%d,"tid":%d,"ts":%)" PRIu64 ".%03" PRIu64 R"(,"args":{"cycle":%)" PRIu64
      R"(,"value":%d}})",
      e.block, e.group, e.time_ns / 1000, e.time_ns % 1000, e.cycle, e.value);
}

// ,"NAME share":0.1234
void put_share(const char* name, uint64_t part, uint64_t whole, std::string* text) {
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  const auto units = static_cast<int64_t>(std::llround(share * 10000));
  put(text, ",\"%s share\":%" PRId64 ".%04" PRId64, name, units / 10000, units % 10000);
}

}  // namespace

const char* profile_id_name(int32_t id) { return id >= 0 && id < kIds ? kNames[id] : "unknown"; }

const ProfileWriter& Profile::writer(uint32_t index) const {
  return reinterpret_cast<const ProfileWriter*>(&header() + 1)[index];
}

const uint64_t* Profile::words(uint32_t index) const {
  const auto* first = reinterpret_cast<const uint64_t*>(
      reinterpret_cast<const ProfileWriter*>(&header() + 1) + writers());
  return first + uint64_t{index} * header().capacity;
}

fastnorm_status Profile::open(const void* buffer, size_t bytes, Profile* profile, Error& error) {
  FASTNORM_REQUIRE(buffer != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "buffer is NULL; required: the bytes of a profile");
  FASTNORM_REQUIRE(reinterpret_cast<uintptr_t>(buffer) % 8 == 0, FASTNORM_ERROR_ARGUMENT,
                   "buffer is %p; required: an 8-byte aligned address", buffer);
  FASTNORM_REQUIRE(bytes >= sizeof(ProfileHeader), FASTNORM_ERROR_ARGUMENT,
                   "bytes is %zu; required: at least %zu, the header of a profile", bytes,
                   sizeof(ProfileHeader));
  profile->buffer_ = buffer;
  profile->events_ = 0;
  const ProfileHeader& h = profile->header();
  FASTNORM_REQUIRE(h.magic == kProfileMagic, FASTNORM_ERROR_ARGUMENT,
                   "buffer begins with 0x%" PRIx64 "; required: 0x%" PRIx64
                   ", a profile that a call has written",
                   h.magic, kProfileMagic);
  FASTNORM_REQUIRE(h.version == kProfileVersion, FASTNORM_ERROR_ARGUMENT,
                   "buffer is a profile of version %u; required: %u", h.version, kProfileVersion);
  constexpr uint32_t kMostBlocks = 1 << 28, kMostGroups = 8, kMostEvents = 1 << 20;
  FASTNORM_REQUIRE(
      h.blocks <= kMostBlocks && h.groups <= kMostGroups && h.capacity <= kMostEvents,
      FASTNORM_ERROR_ARGUMENT,
      "buffer is a profile of %u thread blocks, %u warpgroups and %u events; required: "
      "at most %u, %u and %u",
      h.blocks, h.groups, h.capacity, kMostBlocks, kMostGroups, kMostEvents);
  const uint64_t needed = profile_bytes(uint64_t{h.blocks} * h.groups, h.capacity);
  FASTNORM_REQUIRE(bytes >= needed, FASTNORM_ERROR_ARGUMENT,
                   "bytes is %zu; required: at least %" PRIu64 ", for what the header says", bytes,
                   needed);
  for (uint32_t i = 0; i < profile->writers(); ++i) {
    const ProfileWriter& w = profile->writer(i);
    FASTNORM_REQUIRE(
        w.written <= h.capacity && w.end_cycle >= w.start_cycle && w.end_ns >= w.start_ns,
        FASTNORM_ERROR_ARGUMENT,
        "warpgroup %u of thread block %u has %u events, and cycles %" PRIu64 " to %" PRIu64
        "; required: at most %u events, and an end behind the start",
        i % h.groups, i / h.groups, w.written, w.start_cycle, w.end_cycle, h.capacity);
    profile->events_ += w.written;
  }
  return FASTNORM_OK;
}

std::vector<fastnorm_profile_event> Profile::decode() const {
  std::vector<fastnorm_profile_event> events;
  events.reserve(events_);
  uint64_t earliest = UINT64_MAX;
  for (uint32_t i = 0; i < writers(); ++i) {
    if (writer(i).written != 0) earliest = std::min(earliest, writer(i).start_ns);
  }
  for (uint32_t i = 0; i < writers(); ++i) {
    const ProfileWriter& w = writer(i);
    Unwrapped cycles;
    for (uint32_t k = 0; k < w.written; ++k) {
      const uint64_t word = words(i)[k];
      const uint64_t cycle = cycles.next(profile_cycle(word));
      const auto after = static_cast<uint64_t>(std::llround(nanoseconds(w, cycle)));
      events.push_back(
          {w.start_ns - earliest + after, cycle, static_cast<int32_t>(i / header().groups),
           static_cast<int32_t>(w.multiprocessor), static_cast<int32_t>(i % header().groups),
           static_cast<fastnorm_profile_id>(profile_id(word)),
           static_cast<fastnorm_profile_kind>(profile_kind(word)),
           static_cast<int32_t>(profile_value(word))});
    }
  }
  return events;
}

std::string Profile::chrome_json() const {
  std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  const char* comma = "";
  const auto next = [&] {
    text += comma;
    comma = ",\n";
  };
  for (uint32_t i = 0; i < writers(); ++i) {
    if (writer(i).written == 0) continue;
    const uint32_t block = i / header().groups, group = i % header().groups;
    const char* name = group < std::size(kGroupNames) ? kGroupNames[group] : "more";
    next();
    put(&text, R"({"ph":"M","name":"process_name","pid":%u,"args":{"name":"block %u, SM %u"}})",
        block, block, writer(i).multiprocessor);
    next();
    put(&text, R"({"ph":"M","name":"thread_name","pid":%u,"tid":%u,"args":{"name":"%s"}})", block,
        group, name);
  }
  for (const fastnorm_profile_event& e : decode()) {
    next();
    put_event(e, &text);
  }
  text += "\n],\n\"otherData\":{";
  put_summary(&text);
  text += "}\n}\n";
  return text;
}

void Profile::put_summary(std::string* text) const {
  uint64_t events = 0, dropped = 0, cycles = 0, block_cycles = 0, tensor = 0;
  uint64_t waits[kIds] = {};
  for (uint32_t block = 0; block < header().blocks; ++block) {
    std::vector<Edge> products;
    uint64_t first = UINT64_MAX, last = 0;
    for (uint32_t group = 0; group < header().groups; ++group) {
      const uint32_t i = block * header().groups + group;
      const ProfileWriter& w = writer(i);
      dropped += w.dropped;
      if (w.written == 0) continue;
      events += w.written;
      cycles += w.end_cycle - w.start_cycle;
      first = std::min(first, w.start_cycle);
      last = std::max(last, w.end_cycle);
      add_up({words(i), w.written}, w.start_cycle, &products, waits);
    }
    if (last > first) block_cycles += last - first;
    tensor += covered(&products);
  }
  put(text, "\"events\":%" PRIu64 ",\"dropped\":%" PRIu64, events, dropped);
  put_share("tensor", tensor, block_cycles, text);
  for (int32_t id = FASTNORM_PROFILE_WAIT_Q; id < kIds; ++id)
    put_share(kNames[id], waits[id], cycles, text);
}

}  // namespace fastnorm
