#include "simt/machine.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace simt {

Thread* current = nullptr;
uint64_t clock_step = 1000;

struct Warp {
  unsigned threads = 0, arrived = 0, phase = 0;
  uint32_t slots[2][32] = {};
  Fiber* linked = nullptr;  // the last lane of its ring so far
};

struct Block {
  static constexpr size_t kSharedBytes = 228 << 10;
  static constexpr unsigned kNamed = 16;
  struct Object {
    const void* key;
    size_t offset;
  };

  std::unique_ptr<std::byte[]> shared{new (std::align_val_t(256)) std::byte[kSharedBytes]};
  size_t used = kSharedBytes;  // by the last block that ran here
  std::vector<Object> objects;
  std::vector<Warp> warps;
  unsigned threads = 0, arrived = 0, phase = 0;
  struct Named {
    unsigned threads = 0, arrived = 0, phase = 0;
  };
  Named named[kNamed];     // barriers of some threads
  bool triggered = false;  // the stream's next kernel may start as far as this block is concerned
  // any_of_block()'s, which take turns: a thread may still read one while others are at the next.
  bool vote[2] = {};
  unsigned votes = 0;
};

// Neighbours among the blocks that run.
struct Cluster {
  Block* first = nullptr;
  unsigned blocks = 0, threads = 0, arrived = 0, phase = 0;
};

struct Fiber {
  Thread thread = {};
  // Rings of the threads that still run: one of the cluster, one of the warp.
  Fiber *next = nullptr, *previous = nullptr;
  Fiber *next_lane = nullptr, *previous_lane = nullptr;
  // Copies into shared memory that the thread has not waited for.
  struct Copy {
    void* to;
    const void* from;
  };
  const Part* part = nullptr;
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // of committed groups, how many copies lie before their ends
  // Stores that have not arrived.
  struct Late {
    char* to;
    uint32_t words[4];
    bool looked_at;
  };
  std::vector<Late> late;
  bool started = false;
  jmp_buf state;
  ucontext_t start;
};

namespace {

constexpr size_t kStackBytes = 64 << 10;
// A ring of 4096 threads passes this often before everybody is held to wait for ever.
constexpr unsigned kMostWaits = 1000;

std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Block> running;  // the blocks of all clusters, one cluster after the other
std::vector<Cluster> clusters;
uint64_t clock_now = 0;
std::string complaint;  // the launch's first
jmp_buf launcher;

const Grid* own_grid() { return &current->fiber->part->grid; }

const Input* input_at(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (const Input& input : own_grid()->inputs) {
    if (begin >= input.begin && begin + bytes <= input.end) return &input;
  }
  return nullptr;
}

void complain(const std::string& what) {
  if (!complaint.empty()) return;
  complaint = what + " (block " + std::to_string(current->block.x) + ", thread " +
              std::to_string(current->thread.x) + ")";
}

void complain(const char* what, const void* address, size_t bytes) {
  const Input* const input = input_at(address, bytes);
  char text[128];
  std::snprintf(text, sizeof text, "%s: %zu bytes at %p, %s", what, bytes, address,
                input != nullptr ? input->name : "in no input");
  complain(text);
}

// Continues with `to` where it last handed over.
[[noreturn]] void resume(Fiber* to) {
  current = &to->thread;
  if (to->started) _longjmp(to->state, 1);
  to->started = true;
  setcontext(&to->start);
  fault("setcontext failed");
}

__attribute__((noinline)) void hand_over(Fiber* to) {
  Fiber* const self = current->fiber;
  if (to == self) return;
  if (_setjmp(self->state) == 0) resume(to);
}

__attribute__((noinline)) void finish() {
  Fiber* const self = current->fiber;
  self->previous->next = self->next;
  self->next->previous = self->previous;
  self->previous_lane->next_lane = self->next_lane;
  self->next_lane->previous_lane = self->previous_lane;
  if (_setjmp(self->state) != 0) return;
  if (self->next == self) _longjmp(launcher, 1);
  resume(self->next);
}

void fiber_main() {
  for (;;) {
    current->fiber->part->body();
    for (const Fiber::Late& store : current->fiber->late)
      std::memcpy(store.to, store.words, sizeof store.words);
    current->fiber->late.clear();
    // The kernel that waits for this one counts on those before it, too.
    if (!current->waited) complain("a thread ends that has not waited for the previous kernel");
    if (!current->fiber->copies.empty()) fault("a thread ends that has not waited for its copies");
    finish();
  }
}

void add_fiber() {
  auto fiber = std::make_unique<Fiber>();
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) fault("no memory for a thread's stack");
  mprotect(stack, 4096, PROT_NONE);  // an overflow faults
  getcontext(&fiber->start);
  // Tops at different offsets, or all stacks would lie in the same lines of a cache.
  fiber->start.uc_stack = {stack, 0, kStackBytes - fibers.size() % 63 * 256};
  fiber->start.uc_link = nullptr;
  makecontext(&fiber->start, fiber_main, 0);
  fiber->thread.fiber = fiber.get();
  fibers.push_back(std::move(fiber));
}

template <typename Done>
void wait_until(const char* what, Done done, Fiber* Fiber::*next = &Fiber::next) {
  for (unsigned i = 0; !done(); ++i) {
    if (i == kMostWaits) fault(what);
    hand_over(current->fiber->*next);
  }
}

// One more of `group` is there; the last one opens the barrier.
template <class Group>
void sync(Group& group, const char* what, Fiber* Fiber::*next = &Fiber::next) {
  const unsigned phase = group.phase;
  if (++group.arrived == group.threads) {
    group.arrived = 0;
    ++group.phase;
  } else {
    wait_until(
        what, [&] { return group.phase != phase; }, next);
  }
}

// Who waits for lanes of the warp hands over to them: their stacks are at hand in the caches, those
// of a whole cluster are not.
void sync_lanes(Warp& warp, const char* what) { sync(warp, what, &Fiber::next_lane); }

void start_block(Block& block, unsigned threads) {
  // What the last block left must not help this one.
  std::memset(block.shared.get(), 0xa5, block.used);
  block.used = 0;
  block.objects.clear();
  block.threads = threads;
  block.arrived = block.phase = 0;
  block.vote[0] = block.vote[1] = false;
  block.votes = 0;
  for (Block::Named& named : block.named) named = {};
  block.warps.assign((threads + 31) / 32, Warp());
  for (unsigned t = 0; t < threads; ++t) ++block.warps[t / 32].threads;
}

// The rings of warps, their lanes in the order of `ring`.
void link_lanes(const std::vector<Fiber*>& ring) {
  for (Fiber* fiber : ring) {
    Fiber*& linked = fiber->thread.of_warp->linked;
    Fiber* const before = linked != nullptr ? linked : fiber;
    Fiber* const after = linked != nullptr ? linked->next_lane : fiber;
    before->next_lane = after->previous_lane = fiber;
    fiber->previous_lane = before, fiber->next_lane = after;
    linked = fiber;
  }
}

// Runs what is in the ring until the last has finished.
__attribute__((noinline)) void run_ring(Fiber* first) {
  if (_setjmp(launcher) == 0) resume(first);
}

Block& own_block() { return *current->of_block; }

std::byte* shared_pointer(uint32_t address) {
  const uint32_t rank = address >> 24;  // 0 = own
  Block& block = rank == 0 ? own_block() : current->of_cluster->first[rank - 1];
  return block.shared.get() + (address & 0xffffff);
}

// An mbarrier in 8 bytes of shared memory.
struct Barrier {
  uint8_t set_up, arrivals, pending, phase;
  int32_t bytes;  // expected and not yet there
};
constexpr uint8_t kSetUp = 0x3c;

Barrier& barrier_at(uint32_t address) {
  auto& barrier = *reinterpret_cast<Barrier*>(shared_pointer(address));
  if (barrier.set_up != kSetUp) fault("an mbarrier is used before it is set up");
  return barrier;
}

void complete(Barrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.arrivals;
}

}  // namespace

void fault(const char* what) {
  std::printf("FAIL simt: %s", what);
  if (current != nullptr)
    std::printf(" (block %u, thread %u)", current->block.x, current->thread.x);
  std::printf("\n");
  std::fflush(stdout);
  std::abort();
}

namespace {

// The blocks of one cluster of each part run together.
std::string launch_parts(const Part* parts, unsigned count) {
  const Grid& first = parts[0].grid;
  complaint.clear();
  const unsigned threads = first.threads, cluster = first.cluster,
                 blocks_together = cluster * count, together = threads * blocks_together;
  while (fibers.size() < together) add_fiber();
  if (running.size() < blocks_together) running.resize(blocks_together);
  clusters.resize(count);
  std::vector<Fiber*> ring(together);
  for (unsigned i = 0; i < together; ++i) ring[i] = fibers[i].get();
  if (first.order == Order::kBackward) std::reverse(ring.begin(), ring.end());
  std::minstd_rand random(together);
  const uint64_t blocks = uint64_t{first.x} * first.y;
  for (uint64_t number = 0; number < blocks; number += cluster) {
    for (unsigned c = 0; c < count; ++c)
      clusters[c] = {&running[c * cluster], cluster, cluster * threads, 0, 0};
    for (unsigned b = 0; b < blocks_together; ++b) {
      const Part& part = parts[b / cluster];
      const unsigned rank = b % cluster;
      Block& block = running[b];
      start_block(block, threads);
      for (unsigned t = 0; t < threads; ++t) {
        Fiber* const fiber = fibers[b * threads + t].get();
        fiber->part = &part;
        Thread& thread = fiber->thread;
        thread.thread.x = t;
        thread.block = {static_cast<unsigned>((number + rank) % first.x),
                        static_cast<unsigned>((number + rank) / first.x)};
        thread.blocks = {first.x, first.y};
        thread.cluster_rank = rank;
        thread.lane = t % 32;
        thread.of_block = &block;
        thread.of_cluster = &clusters[b / cluster];
        thread.of_warp = &block.warps[t / 32];
        thread.cluster_phase = 0;
        thread.waited = !part.grid.waits;
      }
      block.triggered = false;
    }
    if (first.order == Order::kShuffled) std::shuffle(ring.begin(), ring.end(), random);
    for (unsigned i = 0; i < together; ++i) {
      ring[i]->next = ring[(i + 1) % together];
      ring[(i + 1) % together]->previous = ring[i];
    }
    link_lanes(ring);
    run_ring(ring[0]);
    for (unsigned b = 0; b < blocks_together; ++b) {
      current = &fibers[b * threads]->thread;
      if (own_grid()->triggers && !running[b].triggered)
        complain("a block ends that has not let the next kernel start");
    }
    current = nullptr;
  }
  return complaint;
}

}  // namespace

std::string launch(const Grid& grid, const std::function<void()>& kernel) {
  const Part part = {grid, kernel, 0, 0};
  return launch_parts(&part, 1);
}

std::string launch_together(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    const Grid &grid = part.grid, &first = parts[0].grid;
    if (grid.x != first.x || grid.y != first.y || grid.threads != first.threads ||
        grid.cluster != first.cluster)
      fault("grids that run together differ");
  }
  return launch_parts(parts.data(), static_cast<unsigned>(parts.size()));
}

void trigger() {
  if (!own_grid()->triggers) complain("a trigger that the call does not ask for");
  // The next kernel takes it that all before this one have ended.
  if (!current->waited) complain("a trigger ahead of the wait for the previous kernel");
  current->of_block->triggered = true;
}

uint64_t look_at_clock() { return clock_now += clock_step; }

void yield() { hand_over(current->fiber->next); }

void early_load(const void* address, size_t bytes) {
  const Input* const input = input_at(address, bytes);
  if (input == nullptr || !input->constant)
    complain("a load ahead of the wait for the previous kernel", address, bytes);
}

void early_store(const void* address, size_t bytes) {
  complain("a store ahead of the wait for the previous kernel", address, bytes);
}

void store_to_devices(void* address, const uint32_t (&words)[4]) {
  static uint32_t stores = 0;
  Fiber& self = *current->fiber;
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin % 16 != 0) fault("a misaligned store");
  if (!current->waited) early_store(address, sizeof words);
  if (begin >= self.part->own_begin && begin < self.part->own_end) {
    Fiber::Late store = {static_cast<char*>(address), {}, false};
    std::memcpy(store.words, words, sizeof words);
    self.late.push_back(store);
    return;
  }
  // A vector arrives in pieces, and between them other threads may look.
  auto* const to = static_cast<uint32_t*>(address);
  to[3] = words[3], to[0] = words[0];
  if (++stores % 61 == 0) yield();
  to[2] = words[2], to[1] = words[1];
}

void look_at_late_stores(const void* address, size_t bytes) {
  const auto* const begin = static_cast<const char*>(address);
  std::vector<Fiber::Late>& late = current->fiber->late;
  for (size_t i = 0; i < late.size();) {
    Fiber::Late& store = late[i];
    const bool here = begin < store.to + sizeof store.words && store.to < begin + bytes;
    if (here && store.looked_at) {
      std::memcpy(store.to, store.words, sizeof store.words);
      late.erase(late.begin() + static_cast<ptrdiff_t>(i));
      continue;
    }
    store.looked_at = store.looked_at || here;
    ++i;
  }
}

void prefetch(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0 || bytes % 16 != 0 || bytes == 0)
    complain("a misaligned or empty prefetch", address, bytes);
  if (input_at(address, bytes) == nullptr)
    complain("a prefetch of what is not in an input", address, bytes);
}

void* launch_shared() {
  static char key;
  return block_object(&key, own_grid()->shared_bytes, 16);
}

void copy_async(void* to, const void* from) {
  shared_address(to);  // a fault where it is none
  current->fiber->copies.push_back({to, from});
}

void copy_async_commit() { current->fiber->groups.push_back(current->fiber->copies.size()); }

void copy_async_wait_group(size_t later) {
  std::vector<Fiber::Copy>& copies = current->fiber->copies;
  std::vector<size_t>& groups = current->fiber->groups;
  if (groups.size() <= later) return;
  const size_t done = groups.size() - later, count = groups[done - 1];
  for (size_t i = 0; i < count; ++i) std::memcpy(copies[i].to, copies[i].from, 16);
  copies.erase(copies.begin(), copies.begin() + static_cast<ptrdiff_t>(count));
  groups.erase(groups.begin(), groups.begin() + static_cast<ptrdiff_t>(done));
  for (size_t& end : groups) end -= count;
}

void copy_async_wait() {
  for (const Fiber::Copy& copy : current->fiber->copies) std::memcpy(copy.to, copy.from, 16);
  current->fiber->copies.clear();
  current->fiber->groups.clear();
}

void sync_block() { sync(own_block(), "a thread never reaches a block's barrier"); }

bool any_of_block(bool v) {
  Block& block = own_block();
  const unsigned turn = block.votes & 1;
  block.vote[turn] |= v;
  if (block.arrived + 1 == block.threads) {
    block.vote[turn ^ 1] = false;
    ++block.votes;
  }
  sync_block();
  return block.vote[turn];
}

void sync_threads(unsigned number, unsigned threads) {
  if (number == 0 || number >= Block::kNamed) fault("no such named barrier");
  Block::Named& named = own_block().named[number];
  if (named.arrived != 0 && named.threads != threads)
    fault("threads disagree about a named barrier");
  named.threads = threads;
  sync(named, "a thread never reaches a named barrier");
}

void sync_warp() { sync_lanes(*current->of_warp, "a lane never reaches a warp's barrier"); }

uint32_t shuffle(uint32_t value, unsigned from_lane) {
  Warp& warp = *current->of_warp;
  if (warp.threads != 32) fault("a shuffle of all lanes in a warp that has fewer");
  // Two sets of slots: a lane may be one shuffle ahead of another that has yet to read.
  uint32_t(&slots)[32] = warp.slots[warp.phase & 1];
  slots[current->lane] = value;
  sync_lanes(warp, "a lane never reaches a shuffle");
  return slots[from_lane];
}

void* block_object(const void* key, size_t size, size_t alignment) {
  Block& block = own_block();
  for (const Block::Object& o : block.objects) {
    if (o.key == key) return block.shared.get() + o.offset;
  }
  const size_t offset = (block.used + alignment - 1) / alignment * alignment;
  block.used = offset + size;
  if (block.used > Block::kSharedBytes) fault("more shared memory than a block has");
  block.objects.push_back({key, offset});
  return block.shared.get() + offset;
}

uint32_t shared_address(const void* pointer) {
  const ptrdiff_t offset = static_cast<const std::byte*>(pointer) - own_block().shared.get();
  if (offset < 0 || offset >= static_cast<ptrdiff_t>(Block::kSharedBytes))
    fault("not an address in the block's shared memory");
  return static_cast<uint32_t>(offset);
}

uint32_t map_to_block(uint32_t address, unsigned rank) {
  if (rank >= current->of_cluster->blocks) fault("no such block in the cluster");
  return (rank + 1) << 24 | (address & 0xffffff);
}

void mbarrier_init(uint32_t barrier, unsigned arrivals) {
  Barrier& b = *reinterpret_cast<Barrier*>(shared_pointer(barrier));
  b = {kSetUp, static_cast<uint8_t>(arrivals), static_cast<uint8_t>(arrivals), 0, 0};
}

void mbarrier_arrive_expect(uint32_t barrier, unsigned bytes) {
  Barrier& b = barrier_at(barrier);
  if (b.pending == 0) fault("more arrivals at an mbarrier than it was set up for");
  b.bytes += static_cast<int32_t>(bytes);
  --b.pending;
  complete(b);
}

void mbarrier_wait(uint32_t barrier, unsigned phase) {
  const Barrier& b = barrier_at(barrier);
  wait_until("an mbarrier's phase never ends", [&] { return b.phase != phase; });
}

void st_async(uint32_t address, uint32_t word, uint32_t barrier) {
  if (address % 4 != 0) fault("a misaligned st.async");
  std::memcpy(shared_pointer(address), &word, sizeof word);
  Barrier& b = barrier_at(barrier);
  b.bytes -= static_cast<int32_t>(sizeof word);
  complete(b);
}

void st_async_v2(uint32_t address, uint32_t first, uint32_t second, uint32_t barrier) {
  if (address % 8 != 0) fault("a misaligned st.async of two words");
  st_async(address, first, barrier);
  st_async(address + 4, second, barrier);
}

void cluster_arrive() {
  Cluster& c = *current->of_cluster;
  current->cluster_phase = c.phase;
  if (++c.arrived == c.threads) {
    c.arrived = 0;
    ++c.phase;
  }
}

void cluster_wait() {
  wait_until("a thread never arrives at the cluster's barrier",
             [] { return current->of_cluster->phase != current->cluster_phase; });
}

}  // namespace simt
