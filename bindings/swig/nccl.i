/* The header of libfastnorm_nccl, for SWIG. It builds on the public headers. */
%include "fastnorm.i"
%include <fastnorm/nccl.h>
