// Peers of one process. The protocol is that of core/peer/layout.h. A word is stored with release
// and polled with acquire: so the words that a reader empties are seen empty by every rank that has
// its next message.
#include "cpu/peer/link.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <vector>

#include "core/common/check.h"
#include "core/peer/choice.h"
#include "core/peer/layout.h"
#include "cpu/common/fp_mode.h"
#include "cpu/peer/arithmetic.h"

namespace fastnorm::cpu {
namespace {

void empty_words(uint32_t* words, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::atomic_ref(words[i]).store(kPeerEmpty, std::memory_order_release);
  }
}

// A buffer of the library's own. Ranks that were connected hold it, too.
class Buffer {
 public:
  explicit Buffer(uint64_t count)
      : words_(static_cast<uint32_t*>(::operator new (count * 4, std::align_val_t{256}))) {
    empty_words(words_, count);
  }
  ~Buffer() { ::operator delete (words_, std::align_val_t{256}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint32_t* words() const { return words_; }

 private:
  uint32_t* const words_;
};

// Where a blob says that a buffer is.
struct Place {
  uint64_t token;  // of this copy of the library
  uint64_t process;
  uint64_t buffer;
};

// The buffers of this process, by number.
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  Place add(const std::shared_ptr<Buffer>& buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.emplace(++last_, buffer);
    return {token_, static_cast<uint64_t>(getpid()), last_};
  }
  void remove(uint64_t number) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(number);
  }
  bool is_here(const Place& place) const {
    return place.token == token_ && place.process == static_cast<uint64_t>(getpid());
  }
  std::shared_ptr<Buffer> find(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(number);
    return found == buffers_.end() ? nullptr : found->second.lock();
  }

 private:
  Registry() {
    std::random_device random;
    token_ = static_cast<uint64_t>(random()) << 32 | random();
  }

  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Buffer>> buffers_;
  uint64_t last_ = 0;
  uint64_t token_ = 0;
};

struct Call {
  uint32_t rows;
  uint32_t columns;
  uint32_t options;
};

uint32_t mixed(uint32_t a, uint32_t b) {
  const uint64_t product = (uint64_t{a} << 32 | b) * 0x9e3779b97f4a7c15;
  return static_cast<uint32_t>(product >> 32) ^ static_cast<uint32_t>(product);
}

class CpuPeerLink final : public PeerLink {
 public:
  CpuPeerLink(const PeerDesc& options, void* const* buffers, bool dry_run)
      : PeerLink(options),
        layout_(peer_layout(options)),
        digest_(static_cast<uint32_t>(peer_digest(options))),
        dry_run_(dry_run),
        most_words_(std::max<int64_t>(options.max_columns, 4)),
        numbers_(static_cast<size_t>(kPeerChannels * options.rings)),
        scratch_(static_cast<size_t>(most_words_ * (options.ranks + 1))) {
    if (buffers != nullptr) {
      for (int32_t r = 0; r < desc.ranks; ++r) base_[r] = static_cast<uint32_t*>(buffers[r]);
      if (!dry_run_) empty_words(base_[desc.rank], layout_.words);
      connected_ = true;
      return;
    }
    held_[desc.rank] = std::make_shared<Buffer>(dry_run_ ? 0 : layout_.words);
    base_[desc.rank] = held_[desc.rank]->words();
    place_ = Registry::instance().add(held_[desc.rank]);
  }

  ~CpuPeerLink() override {
    if (place_.buffer != 0) Registry::instance().remove(place_.buffer);
  }

  fastnorm_status export_blob(PeerBlob* blob, Error& error) override {
    FASTNORM_REQUIRE(place_.buffer != 0, FASTNORM_ERROR_ARGUMENT,
                     "peer is one of fastnorm_peer_create_from_pointers; required: one of "
                     "fastnorm_peer_create, which has blobs");
    *blob = make_peer_blob(desc, FASTNORM_DEVICE_CPU);
    std::memcpy(blob->place, &place_, sizeof place_);
    seal_peer_blob(blob);
    return FASTNORM_OK;
  }

  fastnorm_status connect(const PeerBlob* blobs, Error& error) override {
    FASTNORM_REQUIRE(!connected_.load(), FASTNORM_ERROR_ARGUMENT,
                     "peer is connected already; required: one fastnorm_peer_import, and none with "
                     "fastnorm_peer_create_from_pointers");
    std::shared_ptr<Buffer> found[kMaxRanks];
    for (int32_t r = 0; r < desc.ranks; ++r) {
      Place place;
      std::memcpy(&place, blobs[r].place, sizeof place);
      FASTNORM_REQUIRE(Registry::instance().is_here(place), FASTNORM_ERROR_UNSUPPORTED,
                       "blobs[%d] is of process %" PRIu64
                       "; this is process %d; nearest: CPU "
                       "ranks as threads of one process",
                       r, place.process, static_cast<int>(getpid()));
      found[r] = Registry::instance().find(place.buffer);
      FASTNORM_REQUIRE(found[r] != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "blobs[%d] is of a peer that was destroyed; required: a peer that exists",
                       r);
      FASTNORM_REQUIRE(r != desc.rank || place.buffer == place_.buffer, FASTNORM_ERROR_ARGUMENT,
                       "blobs[%d] is of another peer of rank %d; required: this peer's own blob", r,
                       r);
    }
    for (int32_t r = 0; r < desc.ranks; ++r) {
      base_[r] = found[r]->words();
      held_[r] = std::move(found[r]);
    }
    connected_ = true;
    return FASTNORM_OK;
  }

  fastnorm_status ready(Error& error) const override {
    FASTNORM_REQUIRE(connected_.load(), FASTNORM_ERROR_ARGUMENT,
                     "peer is not connected; required: fastnorm_peer_import before a call");
    const uint32_t stopped = stopped_.load();
    FASTNORM_REQUIRE(stopped == 0, FASTNORM_ERROR_DEVICE,
                     "peer was stopped in a call before, as rank %d %s; required: "
                     "fastnorm_peer_reset on all ranks",
                     rank_of(stopped), verb_of(stopped));
    return FASTNORM_OK;
  }

  fastnorm_status sum(const PeerSum& call, void*, Error& error) override {
    const Busy busy(busy_);
    FASTNORM_TRY(begin(busy, error));
    if (dry_run_ || call.rows == 0) return FASTNORM_OK;
    const FpMode mode;
    const bool two_shot = peer_is_two_shot(desc, call.rows, call.columns);
    const Call header{static_cast<uint32_t>(call.rows), static_cast<uint32_t>(call.columns),
                      mixed(call.options, call.exact ? 2u : 1u)};
    FASTNORM_TRY(
        end(two_shot ? two_shot_sum(call, header, error) : one_shot_sum(call, header, error)));
    if (call.minus_zeros != nullptr) fill_minus_zeros(call);
    return FASTNORM_OK;
  }

  fastnorm_status statistics(const PeerStatistics& call, void*, Error& error) override {
    const Busy busy(busy_);
    FASTNORM_TRY(begin(busy, error));
    if (dry_run_ || call.tokens == 0) return FASTNORM_OK;
    const FpMode mode;
    const int32_t words = call.words(), each = call.layer ? 2 : 1;
    uint32_t options = mixed(call.options, static_cast<uint32_t>(words));
    if (call.parts == 2) options = mixed(options, static_cast<uint32_t>(call.columns[1]));
    const Call header{static_cast<uint32_t>(call.tokens), static_cast<uint32_t>(call.columns[0]),
                      mixed(options, 3)};
    const auto fill = [&](int64_t token, uint32_t* to) {
      for (int32_t p = 0; p < call.parts; ++p) {
        std::memcpy(to + p * each, call.sums[p] + token * each, static_cast<size_t>(each) * 4);
      }
    };
    const auto take = [&](int64_t token, const uint32_t* const* by_rank) {
      peer_merge(call, by_rank, desc.ranks, token);
    };
    return end(one_shot(kPeerStatistics, header, call.tokens, words, fill, take, error));
  }

  fastnorm_status state(fastnorm_peer_state* state, Error&) const override {
    const uint32_t stopped = stopped_.load();
    state->error = static_cast<fastnorm_peer_error>(stopped & 0xff);
    state->rank = rank_of(stopped);
    state->calls = calls_.load();
    state->connected = connected_.load() ? 1 : 0;
    return FASTNORM_OK;
  }

  fastnorm_status reset(Error& error) override {
    const Busy busy(busy_);
    FASTNORM_REQUIRE(busy.taken, FASTNORM_ERROR_ARGUMENT,
                     "peer runs a call; required: fastnorm_peer_reset when no rank does");
    if (!dry_run_) empty_words(base_[desc.rank], layout_.words);
    std::fill(numbers_.begin(), numbers_.end(), 0);
    stopped_ = 0;
    calls_ = 0;
    return FASTNORM_OK;
  }

 private:
  struct Busy {
    explicit Busy(std::atomic<bool>& flag_) : flag(flag_), taken(!flag_.exchange(true)) {}
    ~Busy() {
      if (taken) flag = false;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    std::atomic<bool>& flag;
    const bool taken;
  };

  // A stopped word: the fastnorm_peer_error, and the rank plus 1 above it.
  static int32_t rank_of(uint32_t stopped) { return static_cast<int32_t>(stopped >> 8) - 1; }
  static const char* verb_of(uint32_t stopped) {
    return (stopped & 0xff) == FASTNORM_PEER_ERROR_MISSING ? "was missing" : "made another call";
  }

  fastnorm_status begin(const Busy& busy, Error& error) const {
    FASTNORM_REQUIRE(busy.taken, FASTNORM_ERROR_ARGUMENT,
                     "peer runs a call of another thread; required: one call at a time");
    return ready(error);
  }
  fastnorm_status end(fastnorm_status status) {
    if (status == FASTNORM_OK) ++calls_;
    return status;
  }

  uint32_t* scratch(int32_t index) { return scratch_.data() + index * most_words_; }
  uint32_t& number_of(int channel, int ring) {
    return numbers_[static_cast<size_t>(channel * desc.rings + ring)];
  }

  fastnorm_status one_shot_sum(const PeerSum& call, const Call& header, Error& error) {
    const auto fill = [&](int64_t row, uint32_t* to) { copy_row(call, row, to); };
    const auto take = [&](int64_t row, const uint32_t* const* by_rank) {
      add_up(call, by_rank, total_at(call, row));
      add_residual(call, row);
    };
    return one_shot(kPeerOneShot, header, call.rows, row_words(call), fill, take, error);
  }

  int32_t row_words(const PeerSum& call) const {
    return static_cast<int32_t>((call.columns * dtype_bytes(desc.dtype) + 3) / 4);
  }
  int32_t total_words(const PeerSum& call) const {
    return call.exact ? static_cast<int32_t>(call.columns) : row_words(call);
  }
  std::byte* total_at(const PeerSum& call, int64_t row) const {
    return call.totals + row * call.columns * (call.exact ? 4 : dtype_bytes(desc.dtype));
  }

  void fill_minus_zeros(const PeerSum& call) const {
    const uint32_t word = desc.dtype == Dtype::kF32 ? 0x80000000u : 0x8000u;
    const auto bytes = static_cast<size_t>(dtype_bytes(desc.dtype));
    for (int64_t i = 0; i < call.columns; ++i) {
      // little-endian, as Linux's
      std::memcpy(call.minus_zeros + static_cast<size_t>(i) * bytes, &word, bytes);
    }
  }

  void copy_row(const PeerSum& call, int64_t row, uint32_t* to) const {
    to[row_words(call) - 1] = 0;  // half of it may be padding
    std::memcpy(to, call.x.row(row), static_cast<size_t>(call.columns * dtype_bytes(desc.dtype)));
  }
  void add_up(const PeerSum& call, const uint32_t* const* by_rank, void* to) const {
    if (call.exact) {
      peer_sum_exact(desc.dtype, by_rank, desc.ranks, call.columns, static_cast<float*>(to));
    } else {
      peer_sum_rounded(desc.dtype, by_rank, desc.ranks, call.columns, to);
    }
  }
  void add_residual(const PeerSum& call, int64_t row) const {
    if (!call.exact || call.residual.data == nullptr) return;
    peer_add(call.residual.dtype, call.residual.row(row), call.columns,
             reinterpret_cast<float*>(total_at(call, row)));
  }

  // Every rank sends every row to all. fill(row, words) gives this rank's words, take(row, words by
  // rank) has those of all.
  template <typename Fill, typename Take>
  fastnorm_status one_shot(int channel, const Call& header, int64_t rows, int32_t words, Fill fill,
                           Take take, Error& error) {
    const auto rings = static_cast<int32_t>(std::min<int64_t>(desc.rings, rows));
    const uint32_t* by_rank[kMaxRanks];
    for (int32_t r = 0; r < desc.ranks; ++r) by_rank[r] = scratch(r);
    const auto number = [&](int64_t row) {
      return number_of(channel, static_cast<int>(row % rings)) + static_cast<uint32_t>(row / rings);
    };
    const auto push = [&](int64_t row) {
      uint32_t* own = scratch(desc.ranks);
      fill(row, own);
      for (int32_t r = 0; r < desc.ranks; ++r) {
        if (r != desc.rank) {
          send(r, channel, static_cast<int>(row % rings), number(row), header, own, words);
        }
      }
    };
    for (int64_t row = 0; row < rings; ++row) push(row);
    for (int64_t row = 0; row < rows; ++row) {
      fill(row, scratch(desc.rank));
      for (int32_t r = 0; r < desc.ranks; ++r) {
        if (r == desc.rank) continue;
        FASTNORM_TRY(receive(r, channel, static_cast<int>(row % rings), number(row), header,
                             scratch(r), words, error));
      }
      take(row, by_rank);
      if (row + rings < rows) push(row + rings);
    }
    for (int32_t b = 0; b < rings; ++b) {
      number_of(channel, b) += static_cast<uint32_t>((rows - b + rings - 1) / rings);
    }
    return FASTNORM_OK;
  }

  // Rows go in groups of one for each rank, which adds that row up and sends the sum to all.
  fastnorm_status two_shot_sum(const PeerSum& call, const Call& header, Error& error) {
    const int64_t groups = (call.rows + desc.ranks - 1) / desc.ranks;
    const auto rings = static_cast<int32_t>(std::min<int64_t>(desc.rings, groups));
    const int32_t words = row_words(call), sums = total_words(call);
    const uint32_t* by_rank[kMaxRanks];
    for (int32_t r = 0; r < desc.ranks; ++r) by_rank[r] = scratch(r);
    const auto number = [&](int channel, int64_t group) {
      return number_of(channel, static_cast<int>(group % rings)) +
             static_cast<uint32_t>(group / rings);
    };
    const auto push = [&](int64_t group) {
      for (int32_t r = 0; r < desc.ranks; ++r) {
        const int64_t row = group * desc.ranks + r;
        if (r == desc.rank || row >= call.rows) continue;
        copy_row(call, row, scratch(desc.ranks));
        send(r, kPeerShare, static_cast<int>(group % rings), number(kPeerShare, group), header,
             scratch(desc.ranks), words);
      }
    };
    for (int64_t group = 0; group < rings; ++group) push(group);
    for (int64_t group = 0; group < groups; ++group) {
      const int ring = static_cast<int>(group % rings);
      if (const int64_t row = group * desc.ranks + desc.rank; row < call.rows) {
        copy_row(call, row, scratch(desc.rank));
        for (int32_t r = 0; r < desc.ranks; ++r) {
          if (r == desc.rank) continue;
          FASTNORM_TRY(receive(r, kPeerShare, ring, number(kPeerShare, group), header, scratch(r),
                               words, error));
        }
        uint32_t* total = scratch(desc.ranks);
        total[sums - 1] = 0;
        add_up(call, by_rank, total);
        for (int32_t r = 0; r < desc.ranks; ++r) {
          if (r == desc.rank) continue;
          send(r, kPeerTotal, ring, number(kPeerTotal, group), header, total, sums);
        }
        put_total(call, row, total);
      }
      for (int32_t r = 0; r < desc.ranks; ++r) {
        const int64_t row = group * desc.ranks + r;
        if (r == desc.rank || row >= call.rows) continue;
        FASTNORM_TRY(receive(r, kPeerTotal, ring, number(kPeerTotal, group), header, scratch(0),
                             sums, error));
        put_total(call, row, scratch(0));
      }
      if (group + rings < groups) push(group + rings);
    }
    for (int32_t b = 0; b < rings; ++b) {
      const auto count = static_cast<uint32_t>((groups - b + rings - 1) / rings);
      number_of(kPeerShare, b) += count;
      number_of(kPeerTotal, b) += count;
    }
    return FASTNORM_OK;
  }

  void put_total(const PeerSum& call, int64_t row, const uint32_t* total) const {
    std::memcpy(total_at(call, row), total,
                static_cast<size_t>(call.columns * (call.exact ? 4 : dtype_bytes(desc.dtype))));
    add_residual(call, row);
  }

  PeerHeader header_of(const Call& call, int channel, uint32_t number) const {
    const uint32_t words[] = {call.rows, call.columns, number,
                              mixed(call.options, digest_ + static_cast<uint32_t>(channel))};
    PeerHeader header;
    for (int i = 0; i < kPeerHeaderWords; ++i) header.word[i] = peer_sent(words[i]);
    return header;
  }

  void send(int32_t target, int channel, int ring, uint32_t number, const Call& call,
            const uint32_t* words, int32_t count) const {
    uint32_t* const to = base_[target] + layout_.message(channel, desc.rank, ring, number);
    const PeerHeader header = header_of(call, channel, number);
    uint32_t* const head = to + layout_.header(channel);
    for (int i = 0; i < kPeerHeaderWords; ++i) put(head + i, header.word[i]);
    for (int32_t i = 0; i < count; ++i) put(to + i, peer_sent(words[i]));
  }
  static void put(uint32_t* at, uint32_t word) {
    std::atomic_ref(*at).store(word, std::memory_order_release);
  }
  static uint32_t look(uint32_t* at) {
    return std::atomic_ref(*at).load(std::memory_order_acquire);
  }

  // Takes a message out of this rank's buffer, whose words are empty afterwards.
  fastnorm_status receive(int32_t source, int channel, int ring, uint32_t number, const Call& call,
                          uint32_t* words, int32_t count, Error& error) {
    uint32_t* const from = base_[desc.rank] + layout_.message(channel, source, ring, number);
    uint32_t* const head = from + layout_.header(channel);
    const PeerHeader wanted = header_of(call, channel, number);
    PeerHeader found;
    for (int i = 0; i < kPeerHeaderWords; ++i) {
      FASTNORM_TRY(poll(head + i, source, channel, &found.word[i], error));
    }
    if (std::memcmp(&found, &wanted, sizeof found) != 0) {
      stop(FASTNORM_PEER_ERROR_DISAGREES, source);
      return error.set(
          FASTNORM_ERROR_ARGUMENT,
          "rank %d sends %u rows of %u columns (message %u, options 0x%08x) and this rank has %u "
          "rows of %u columns (message %u, options 0x%08x); required: the same call on all ranks",
          source, found.word[0], found.word[1], found.word[2], found.word[3], wanted.word[0],
          wanted.word[1], wanted.word[2], wanted.word[3]);
    }
    for (int32_t i = 0; i < count; ++i) {
      FASTNORM_TRY(poll(from + i, source, channel, &words[i], error));
    }
    empty_words(from, static_cast<uint64_t>(count));
    empty_words(head, kPeerHeaderWords);
    return FASTNORM_OK;
  }

  // Waits for one word.
  fastnorm_status poll(uint32_t* at, int32_t source, int channel, uint32_t* word, Error& error) {
    constexpr int kSpins = 64;
    for (int i = 0; i < kSpins; ++i) {
      if ((*word = look(at)) != kPeerEmpty) return FASTNORM_OK;
    }
    using Clock = std::chrono::steady_clock;
    const auto limit = Clock::now() + std::chrono::nanoseconds(desc.wait_ns);
    do {
      sched_yield();
      if ((*word = look(at)) != kPeerEmpty) return FASTNORM_OK;
    } while (Clock::now() < limit);
    return late(source, channel, error);
  }

  fastnorm_status late(int32_t source, int channel, Error& error) {
    if (sends_elsewhere(source, channel)) {
      stop(FASTNORM_PEER_ERROR_DISAGREES, source);
      return error.set(FASTNORM_ERROR_ARGUMENT,
                       "rank %d makes a call of another family or size; required: the same call on "
                       "all ranks",
                       source);
    }
    stop(FASTNORM_PEER_ERROR_MISSING, source);
    return error.set(FASTNORM_ERROR_DEVICE,
                     "rank %d did not arrive within %" PRId64
                     " ns, the peer's options.wait_ns; required: every rank makes the call",
                     source, desc.wait_ns);
  }

  // True if a rank that is late in a call has begun another one.
  bool sends_elsewhere(int32_t source, int channel) {
    const auto is_two_shot = [](int c) { return c == kPeerShare || c == kPeerTotal; };
    for (int c = 0; c < kPeerChannels; ++c) {
      if (!layout_.has(c) || c == channel || (is_two_shot(c) && is_two_shot(channel))) continue;
      for (int b = 0; b < desc.rings; ++b) {
        const uint64_t at = layout_.message(c, source, b, number_of(c, b));
        if (look(base_[desc.rank] + at) != kPeerEmpty) return true;
      }
    }
    return false;
  }

  void stop(fastnorm_peer_error reason, int32_t rank) {
    stopped_ = static_cast<uint32_t>(reason) | static_cast<uint32_t>(rank + 1) << 8;
  }

  const PeerLayout layout_;
  const uint32_t digest_;
  const bool dry_run_;
  const int64_t most_words_;       // of a message's payload, f32 sums included
  std::vector<uint32_t> numbers_;  // [channel][ring] of the next message
  std::vector<uint32_t> scratch_;  // [ranks + 1][most_words_]
  uint32_t* base_[kMaxRanks] = {};
  std::shared_ptr<Buffer> held_[kMaxRanks];
  Place place_ = {};
  std::atomic<bool> connected_{false};
  std::atomic<bool> busy_{false};
  std::atomic<uint32_t> stopped_{0};
  std::atomic<uint64_t> calls_{0};
};

}  // namespace

std::unique_ptr<PeerLink> make_peer_link(const PeerDesc& desc, void* const* buffers, bool dry_run) {
  return std::make_unique<CpuPeerLink>(desc, buffers, dry_run);
}

}  // namespace fastnorm::cpu
