// What a copy of the same bytes costs on the CPU: the measure for an operation that is bound by
// memory.
#pragma once

#include <cstddef>

namespace fastnorm::tool {

// Copies with stores that go past the caches, so that no line is read before it is overwritten.
void copy_non_temporal(std::byte* to, const std::byte* from, size_t bytes);

// Runs work(user, begin, end) on slices of [0, bytes) on `threads` threads, the caller's included;
// slices begin at multiples of 4096.
void on_slices(int threads, size_t bytes, void (*work)(void* user, size_t begin, size_t end),
               void* user);

}  // namespace fastnorm::tool
