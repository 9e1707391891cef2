// A SIMT machine in software: runs a kernel's threads as fibers on one processor, so that GPU
// kernels can be tested without a GPU.
//
// A thread runs until it waits for others (barrier, shuffle, mbarrier) and then hands over to the
// next one. The order in which threads come is chosen for each launch: a result that depends on it
// is a race. Some errors end the program with a message: hardware would fault on them (misaligned
// access, barrier used before it is set up) or hang (a barrier that some thread never reaches).
// What hardware lets pass and is wrong all the same (memory touched before the stream's previous
// kernel has ended, prefetches past a tensor) launch() returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace simt {

struct Index {
  unsigned x, y;
};

struct Block;
struct Cluster;
struct Warp;
struct Fiber;

// What a running thread knows of itself.
struct Thread {
  Index thread, block;
  Index blocks;  // of the grid
  unsigned cluster_rank;
  unsigned lane;
  Block* of_block;
  Cluster* of_cluster;
  Warp* of_warp;
  Fiber* fiber;
  unsigned cluster_phase;  // of the cluster barrier that it arrived at
  bool waited;             // for the stream's previous kernel, or never has to
};

extern Thread* current;

enum class Order { kForward, kBackward, kShuffled };

// A tensor that a launch reads.
struct Input {
  const char* name;
  uintptr_t begin, end;
  bool constant;  // no kernel before writes it: it may be read ahead of the wait
};

struct Grid {
  unsigned x, y;          // blocks
  unsigned threads;       // of a block
  unsigned cluster;       // consecutive blocks that run together
  unsigned shared_bytes;  // of launch_shared()
  Order order;
  bool waits;     // may start before the stream's previous kernel has ended, and is to wait for it
  bool triggers;  // is to let the stream's next kernel start early, in each block behind its wait
  std::vector<Input> inputs;
};

// Runs `body` in each of the grid's threads. The first thing that was wrong with their accesses to
// global memory, "" = nothing.
std::string launch(const Grid& grid, const std::function<void()>& body);

// One device of several whose kernels run at the same time, reading and writing one memory. What
// its threads store in its own part of this memory, from `own_begin` to `own_end`, arrives there as
// late as hardware allows: when the thread ends, or has waited for a load from there. The first
// load gives what was there before and the second one what was stored: who goes on after the first
// has not waited.
struct Part {
  Grid grid;
  std::function<void()> body;
  uintptr_t own_begin = 0, own_end = 0;
};

// Runs block 0 of all parts together, then block 1 of all, and so on, or so cluster by cluster: for
// kernels whose blocks wait for those of the same number on other devices. All grids have the same
// blocks, clusters and threads.
std::string launch_together(const std::vector<Part>& parts);

// What nanoseconds() adds to a clock of the machine at each look.
extern uint64_t clock_step;
uint64_t look_at_clock();

// Lets the other threads run: for loops that wait for memory to change.
void yield();

[[noreturn]] void fault(const char* what);

// By threads that have not waited.
void early_load(const void* address, size_t bytes);
void early_store(const void* address, size_t bytes);

// Stores 16 bytes, at once or late: see Part.
void store_to_devices(void* address, const uint32_t (&words)[4]);
// Before the running thread loads these bytes.
void look_at_late_stores(const void* address, size_t bytes);

// Lets the stream's next kernel start early.
void trigger();

// Ahead of the wait, too: the kernel before writes to L2, so what was brought there is not stale.
void prefetch(const void* address, size_t bytes);

void sync_block();
bool any_of_block(bool v);                             // of its threads, after a barrier
void sync_threads(unsigned number, unsigned threads);  // a barrier of some of a block's threads
void sync_warp();
uint32_t shuffle(uint32_t value, unsigned from_lane);  // by all 32 lanes

// The block's object of a type, named by `key`: the same place in each block of a cluster.
void* block_object(const void* key, size_t size, size_t alignment);

// What the launch gives each block.
void* launch_shared();

// Copies of 16 bytes into the block's shared memory, which are there when their thread has waited
// for them.
void copy_async(void* to, const void* from);
void copy_async_wait();
// The copies since the last commit are a group; until all groups but the last `later` are there.
void copy_async_commit();
void copy_async_wait_group(size_t later);

// Addresses in the shared memory of the cluster's blocks: 0 to 2^24 is the thread's own block.
uint32_t shared_address(const void* pointer);
uint32_t map_to_block(uint32_t address, unsigned rank);

void mbarrier_init(uint32_t barrier, unsigned arrivals);
void mbarrier_arrive_expect(uint32_t barrier, unsigned bytes);
void mbarrier_wait(uint32_t barrier, unsigned phase);
void st_async(uint32_t address, uint32_t word, uint32_t barrier);
void st_async_v2(uint32_t address, uint32_t first, uint32_t second, uint32_t barrier);
void cluster_arrive();
void cluster_wait();

}  // namespace simt
