/* A libfastnorm_nccl that is none: with a libfastnorm of its own, or without a function. */
#define FUNCTION(name) \
  int fastnorm_nccl_##name(void) { return 0; }
FUNCTION(set_functions)
FUNCTION(version)
FUNCTION(create)
FUNCTION(create_all)
FUNCTION(destroy)
FUNCTION(peer)
FUNCTION(allreduce_norm_query)
FUNCTION(allreduce_norm_prepare)
FUNCTION(allreduce_norm)
FUNCTION(allreduce_norm_all)
FUNCTION(sequence_norm_query)
FUNCTION(sequence_norm_prepare)
FUNCTION(sequence_norm)
FUNCTION(sequence_norm_all)
#ifndef WITHOUT_LAST_ERROR
FUNCTION(last_error)
#endif
const char* fastnorm_version_string(void) { return "0.2.0"; }
