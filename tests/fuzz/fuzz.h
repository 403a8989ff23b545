/* What the fuzz targets share. A target includes the kernel source that it calls, and so has its structs.
 *
 * An input begins with the call's numbers, taken one after the other, and ends with the bytes that a peer or a file
 * would give. Memory is allocated in exactly the size the kernel is told: AddressSanitizer sees one byte too far. */

#ifndef FLOWSTONE_FUZZ_H
#define FLOWSTONE_FUZZ_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct input {
    const uint8_t *at, *end;
};

static inline int64_t left(const struct input *input) {
    return input->end - input->at;
}

/* The next number of so many bytes, most significant first, as seeds.py writes it; zeros stand for what is missing. */
static inline uint64_t take(struct input *input, int bytes) {
    uint64_t value = 0;
    for (; bytes > 0; bytes--)
        value = value << 8 | (left(input) ? *input->at++ : 0);
    return value;
}

static inline int64_t take_signed(struct input *input, int bytes) {
    return (int64_t)(take(input, bytes) << (64 - 8 * bytes)) >> (64 - 8 * bytes);
}

/* Memory that begins `shift` bytes behind an aligned address; give_back takes the same number. */
static inline void *memory(int64_t size, int shift) {
    uint8_t *area = calloc(1, (size_t)(size + shift) + (size + shift == 0));
    return area + shift;
}

static inline void give_back(void *area, int shift) {
    free((uint8_t *)area - shift);
}

#define REQUIRE(condition)                                                                                                  \
    do {                                                                                                                    \
        if (!(condition))                                                                                                   \
            abort();                                                                                                        \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
