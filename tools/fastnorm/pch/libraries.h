// What takes the compiler longest, compiled once: sources include what they need as if this were not here.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
