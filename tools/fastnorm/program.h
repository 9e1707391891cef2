// The program `fastnorm` as a function, which knows nothing of the headers that reading a command
// line takes.
#pragma once

namespace fastnorm::tool {

// Returns the exit code: 0 success; 1 the command failed, with the reason on stderr; 2 the command
// line was wrong.
int run_program(int argc, char** argv);

}  // namespace fastnorm::tool
