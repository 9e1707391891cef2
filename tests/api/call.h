/* Calls from lines of text, whose words support/call_text.h explains. */
#ifndef FASTNORM_TESTS_API_CALL_H_
#define FASTNORM_TESTS_API_CALL_H_

#include <fastnorm/fastnorm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The args of a call that lives until the program ends. The line is followed by the memory of its
 * tensors, in the order in which the line gives them. */
void* call_of(const char* line, ...);

/* The same without memory, for dry runs. */
void* dry_call_of(const char* line);

/* Changes fields of such a call. Tensors that the line gives have their memory behind it. */
void change(void* args, const char* line, ...);

/* Names the family: NORM("kind=layer x,y=f32[2,4]", x, y). */
#define NORM(...) ((fastnorm_norm_args*)call_of("norm " __VA_ARGS__))
#define NORM_BACKWARD(...) ((fastnorm_norm_backward_args*)call_of("norm_backward " __VA_ARGS__))

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_TESTS_API_CALL_H_ */
