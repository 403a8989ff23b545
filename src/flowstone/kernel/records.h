/* Parsing of a record: varints, lengths and bounds, for every loop of the kernel.
 *
 * The bytes come from a peer. Nothing is read outside the given range, whatever they contain: every length is
 * compared with the bytes that are left before it is used, never added to a pointer first.
 */

#ifndef FLOWSTONE_KERNEL_RECORDS_H
#define FLOWSTONE_KERNEL_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)

/* Keep equal to RecordsStatus in twin.py. */
enum status {
    VALID = 0,
    TRUNCATED = 1,
    BAD_VARINT = 2,
    BAD_LENGTH = 3,
    BAD_OFFSET_DELTA = 4,
    BAD_KEY_LENGTH = 5,
    BAD_VALUE_LENGTH = 6,
    BAD_HEADERS = 7,
    TRAILING_BYTES = 8,
};

enum { VARINT_BITS = 32, VARLONG_BITS = 64 };

static inline int64_t unzigzag(uint64_t raw) {
    return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
}

/* A varint of any length. `missing` is the status if the bytes end inside it. */
static inline enum status read_long_varint(const uint8_t **at, const uint8_t *end, int bits, enum status missing, int64_t *value) {
    const uint8_t *p = *at;
    uint64_t raw = 0;
    for (int shift = 0; shift < bits; shift += 7) {
        if (p == end)
            return missing;
        uint64_t byte = *p++;
        int bits_left = bits - shift;
        if (bits_left < 7 && (byte & 0x7f) >> bits_left)
            return BAD_VARINT;
        raw |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *at = p;
            *value = unzigzag(raw);
            return VALID;
        }
    }
    return BAD_VARINT;
}

/* A fast path without a loop for one or two bytes, the usual length. */
static inline enum status read_varint(const uint8_t **at, const uint8_t *end, int bits, enum status missing, int64_t *value) {
    const uint8_t *p = *at;
    if (LIKELY(p != end && p[0] < 0x80)) {
        *value = unzigzag(p[0]);
        *at = p + 1;
        return VALID;
    }
    if (LIKELY(end - p >= 2 && p[1] < 0x80)) {
        *value = unzigzag((uint64_t)(p[0] & 0x7f) | (uint64_t)p[1] << 7);
        *at = p + 2;
        return VALID;
    }
    return read_long_varint(at, end, bits, missing, value);
}

#define TRY(expression)                                                                                                     \
    do {                                                                                                                    \
        enum status tried = (expression);                                                                                   \
        if (!LIKELY(tried == VALID))                                                                                        \
            return tried;                                                                                                   \
    } while (0)

struct field {
    const uint8_t *data;
    int64_t length; /* negative: null */
};

static inline int64_t bytes_of(struct field field) {
    return field.length > 0 ? field.length : 0;
}

/* Skips a length and that many bytes; -1 is null. `bad` is the status of a length below `least`. */
static inline enum status skip_bytes(const uint8_t **at, const uint8_t *end, int64_t least, enum status bad, int64_t *length) {
    TRY(read_varint(at, end, VARINT_BITS, BAD_LENGTH, length));
    if (*length < least)
        return bad;
    if (*length > end - *at)
        return BAD_LENGTH;
    if (*length > 0)
        *at += *length;
    return VALID;
}

static inline enum status skip_headers(const uint8_t **at, const uint8_t *end, int64_t count) {
    int64_t length;
    if (count < 0)
        return BAD_HEADERS;
    for (; count > 0; count--) {
        TRY(skip_bytes(at, end, 0, BAD_HEADERS, &length));
        TRY(skip_bytes(at, end, -1, BAD_HEADERS, &length));
    }
    return VALID;
}

/* Reads a record's length; sets *at after it, and *record_end after the record, which is inside the payload. */
static inline enum status read_record_length(const uint8_t **at, const uint8_t *end, const uint8_t **record_end) {
    int64_t length;
    TRY(read_varint(at, end, VARINT_BITS, TRUNCATED, &length));
    if (length < 0)
        return BAD_LENGTH;
    if (length > end - *at)
        return TRUNCATED;
    *record_end = *at + length;
    return VALID;
}

#endif
