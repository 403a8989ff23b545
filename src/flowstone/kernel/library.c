/* The version and fingerprint of a built library. */

#include <stdint.h>

/* build.py sets this to a digest of the sources and of the compiler's flags, and later looks for it in the library. */
#ifndef KERNEL_FINGERPRINT
#define KERNEL_FINGERPRINT "unknown"
#endif
extern const char flowstone_kernel_fingerprint[];
const char flowstone_kernel_fingerprint[] = "flowstone-kernel:" KERNEL_FINGERPRINT;

/* native.py refuses a library whose version is not its own: change both with any call's struct. */
extern const int64_t flowstone_kernel_layout_version;
const int64_t flowstone_kernel_layout_version = 2;
