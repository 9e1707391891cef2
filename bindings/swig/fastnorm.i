/* The public headers of libfastnorm, for SWIG: the one input of every generated file of the
 * bindings.
 *
 * A language's own interface file sets its typemaps and %ignore lines and then includes this one.
 * The order is that of dependence; generate.py stops if a public header is missing here. */
%{
#include <fastnorm/fastnorm.h>
%}

%include <fastnorm/version.h>
%include <fastnorm/status.h>
%include <fastnorm/tensor.h>
%include <fastnorm/context.h>
%include <fastnorm/norm.h>
%include <fastnorm/norm_backward.h>
%include <fastnorm/mla_decode.h>
%include <fastnorm/norm_heads.h>
%include <fastnorm/norm_heads_backward.h>
%include <fastnorm/peer.h>
