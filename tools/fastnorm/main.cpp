// fastnorm: libfastnorm from the command line.
#include "program.h"

int main(int argc, char** argv) { return fastnorm::tool::run_program(argc, argv); }
