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

/* The args of a call whose tensors have no memory, for dry runs. */
void* dry_call_of(const char* line);

/* Changes fields of such a call. Tensors that the line gives have their memory behind it. */
void change(void* args, const char* line, ...);

/* Words of a line, as printf writes them. Valid until the next ones. */
const char* words(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* The parts of such a call, until it changes. */
const void* parts_of(const void* args);

/* Whether lines have calls of this family, or of peers. */
int is_known_family(const char* name);

/* Names the family: NORM("kind=layer x,y=f32[2,4]", x, y). */
#define NORM(...) ((fastnorm_norm_args*)call_of("norm " __VA_ARGS__))

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_TESTS_API_CALL_H_ */
