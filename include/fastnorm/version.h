/** @file version.h
 *  The version of the library, its linkage macros, and what this build contains.
 *
 *  The headers of libfastnorm are plain C99, which is also C++11. They include only <stddef.h> and
 *  <stdint.h>, and need neither a CUDA toolkit nor DLPack.
 */
#ifndef FASTNORM_VERSION_H_
#define FASTNORM_VERSION_H_

#include <stddef.h>
#include <stdint.h>

/** Major version of these headers. The library that is loaded at run time may have another version,
 *  which fastnorm_version() returns. */
#define FASTNORM_VERSION_MAJOR 0
#define FASTNORM_VERSION_MINOR 2 /**< Minor version of these headers. */
#define FASTNORM_VERSION_PATCH 0 /**< Patch version of these headers. */

/** Version of these headers as one number that can be compared: major * 10000 + minor * 100 +
 *  patch. */
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

/** Version of the loaded library. The function never fails, and may be called from any thread at
 *  any time.
 *  @return the version in the form of FASTNORM_VERSION
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_version(void);

/** Version of the loaded library as text.
 *  @return a static string such as "0.1.0"; never NULL
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_version_string(void);

/** What this build contains, as lines of the form "key: value": the commit, the compiler, the CPU
 *  instruction sets, the GPU architectures and the version of CUDA. The text is meant for people
 *  and logs, and later versions may add lines.
 *  @return a static string; never NULL
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_build_info(void);

/** Version of the arithmetic. Two libraries with the same number give the same bits for the same
 *  call on the same backend. Any change to an order of summation, a constant or a rounding raises
 *  the number.
 *  @return the number
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_numeric_version(void);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_VERSION_H_ */
