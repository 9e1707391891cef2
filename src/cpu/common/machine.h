// Facts about the machine's processors.
#pragma once

#include <cstdint>

namespace fastnorm::cpu {

// Model name: a static string, never empty.
const char* model_name();

// Bytes of one core's level-2 cache, read once; 1 MiB if the system does not report it.
int64_t l2_bytes();

// Logical processors that this process may run on now.
int32_t processors();

}  // namespace fastnorm::cpu
