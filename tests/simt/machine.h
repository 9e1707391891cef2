// A SIMT machine in software: runs a kernel's threads as fibers on one processor, so that GPU kernels can be tested without a GPU.
//
// A thread runs until it waits for others (barrier, shuffle, mbarrier) and then hands over to the next one. The order in which threads
// come is chosen for each launch: a result that depends on it is a race. What hardware would fault on (misaligned access, barrier used
// before it is set up) or hang on (a barrier that some thread never reaches) ends the program with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace simt {

struct Index {
  unsigned x;
};

struct Block;
struct Warp;
struct Fiber;

// What a running thread knows of itself.
struct Thread {
  Index thread, block;
  unsigned cluster_rank;
  unsigned lane;
  Block* of_block;
  Warp* of_warp;
  Fiber* fiber;
  unsigned cluster_phase;  // of the cluster barrier that it arrived at
};

extern Thread* current;

enum class Order { kForward, kBackward, kShuffled };

// Runs `body` in each of `blocks` blocks of `threads` threads; `cluster` consecutive blocks run together.
void launch(uint64_t blocks, unsigned threads, unsigned cluster, Order order,
            const std::function<void()>& body);

[[noreturn]] void fault(const char* what);

void sync_block();
void sync_warp();
float shuffle_xor(float value, unsigned mask);
float shuffle(float value, unsigned lane);

// The block's object of a type, named by `key`: the same place in each block of a cluster.
void* block_object(const void* key, size_t size, size_t alignment);

// Addresses in the shared memory of the cluster's blocks: 0 to 2^24 is the thread's own block.
uint32_t shared_address(const void* pointer);
uint32_t map_to_block(uint32_t address, unsigned rank);

void mbarrier_init(uint32_t barrier, unsigned arrivals);
void mbarrier_arrive_expect(uint32_t barrier, unsigned bytes);
void mbarrier_wait(uint32_t barrier, unsigned phase);
void st_async(uint32_t address, uint32_t word, uint32_t barrier);
void cluster_arrive();
void cluster_wait();

}  // namespace simt
