/** @file version.h
 *  Version of the library, linkage macros and what this build contains.
 *
 *  The headers of libfastnorm are plain C99 (and C++11), include only <stddef.h> and <stdint.h>,
 *  and need neither a CUDA toolkit nor DLPack.
 */
#ifndef FASTNORM_VERSION_H_
#define FASTNORM_VERSION_H_

#include <stddef.h>
#include <stdint.h>

/** Major version of these headers. The library that is loaded at run time says its own with
 *  fastnorm_version(). */
#define FASTNORM_VERSION_MAJOR 0
#define FASTNORM_VERSION_MINOR 2 /**< Minor version of these headers. */
#define FASTNORM_VERSION_PATCH 0 /**< Patch version of these headers. */

/** One comparable number: major * 10000 + minor * 100 + patch. */
#define FASTNORM_VERSION \
  (FASTNORM_VERSION_MAJOR * 10000 + FASTNORM_VERSION_MINOR * 100 + FASTNORM_VERSION_PATCH)

#if defined(__GNUC__)
#define FASTNORM_API __attribute__((visibility("default")))
#else
#define FASTNORM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Version of the loaded library. Never fails; callable from any thread at any time.
 *  @return the number, as FASTNORM_VERSION counts it
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_version(void);

/** Version of the loaded library as text.
 *  @return such as "0.1.0". Static; never NULL
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_version_string(void);

/** What this build contains, one "key: value" line each: commit, compiler, CPU instruction sets,
 *  GPU architectures, CUDA's version. For people and logs; the format may grow.
 *  @return the lines. Static; never NULL
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_build_info(void);

/** Version of the arithmetic: two libraries with the same number give the same bits for the same
 *  call on the same backend. Any change to an order of summation, a constant or a rounding raises
 *  it.
 *  @return the number
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_numeric_version(void);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_VERSION_H_ */
