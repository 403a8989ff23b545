/* The native kernel: loops over every record of a batch, which Python must not run.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (native.py), possibly from several
 * threads at once and with the GIL released. twin.py says the same thing in Python and is the oracle of its tests.
 *
 * The bytes are a peer's. Nothing is read outside [buffer + position, buffer + position + size), whatever they say: every
 * length is compared with the bytes that are left before it is used, never added to a pointer first.
 */

#include <stddef.h>
#include <stdint.h>

/* build.py sets this to a digest of this file and of the compiler's flags, and later looks for it in the library. */
#ifndef KERNEL_FINGERPRINT
#define KERNEL_FINGERPRINT "unknown"
#endif
extern const char flowstone_kernel_fingerprint[];
const char flowstone_kernel_fingerprint[] = "flowstone-kernel:" KERNEL_FINGERPRINT;

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

/* native.py refuses a library whose version is not its own: change both with the structs below. */
extern const int64_t flowstone_kernel_layout_version;
const int64_t flowstone_kernel_layout_version = 2;

/* Each call's arguments and results, filled and read by native.py with struct formats: keep the order there. */
struct check_records_call {
    int64_t position, size, record_count;
    int64_t status, record_index, null_keys, min_timestamp_delta, max_timestamp_delta, max_timestamp_index;
};

struct find_timestamp_call {
    int64_t position, size, record_count, first_offset_delta, target_delta;
    int64_t offset_delta, timestamp_delta;
};

struct record {
    int64_t timestamp_delta;
    int key_is_null;
};

static inline int64_t unzigzag(uint64_t raw) {
    return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
}

/* A varint of any length. `missing` is the status if the bytes end inside it. */
static enum status read_long_varint(const uint8_t **at, const uint8_t *end, int bits, enum status missing, int64_t *value) {
    const uint8_t *p = *at;
    uint64_t raw = 0;
    for (int shift = 0; shift < bits; shift += 7) {
        if (p == end)
            return missing;
        uint64_t byte = *p++;
        int room = bits - shift;
        if (room < 7 && (byte & 0x7f) >> room)
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

/* One or two bytes, which most are, without a loop. */
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

/* Steps over a length and as many bytes; -1 is null. `bad` is the status of a length below `least`. */
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

static enum status skip_headers(const uint8_t **at, const uint8_t *end, int64_t count) {
    int64_t length;
    if (count < 0)
        return BAD_HEADERS;
    for (; count > 0; count--) {
        TRY(skip_bytes(at, end, 0, BAD_HEADERS, &length));
        TRY(skip_bytes(at, end, -1, BAD_HEADERS, &length));
    }
    return VALID;
}

/* Reads a record's length and leaves *at behind it, *record_end behind the record, which lies within the payload. */
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

static inline enum status check_record(const uint8_t *at, const uint8_t *end, int64_t index, struct record *record) {
    int64_t offset_delta, length, header_count;
    if (at == end)
        return BAD_LENGTH;
    at++; /* the record's attributes: unused by the format, any value is legal */
    TRY(read_varint(&at, end, VARLONG_BITS, BAD_LENGTH, &record->timestamp_delta));
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &offset_delta));
    if (offset_delta != index)
        return BAD_OFFSET_DELTA;
    TRY(skip_bytes(&at, end, -1, BAD_KEY_LENGTH, &length));
    record->key_is_null = length < 0;
    TRY(skip_bytes(&at, end, -1, BAD_VALUE_LENGTH, &length));
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &header_count));
    if (header_count != 0)
        TRY(skip_headers(&at, end, header_count));
    return at == end ? VALID : BAD_LENGTH;
}

void flowstone_check_records(const uint8_t *buffer, struct check_records_call *call) {
    const uint8_t *at = buffer + call->position, *end = at + call->size, *record_end;
    const int64_t record_count = call->record_count;
    int64_t null_keys = 0, min_delta = 0, max_delta = 0, max_index = -1, index;
    enum status status = VALID;

    for (index = 0; index < record_count; index++) {
        struct record record;
        status = read_record_length(&at, end, &record_end);
        if (!LIKELY(status == VALID))
            break;
        status = check_record(at, record_end, index, &record);
        if (!LIKELY(status == VALID))
            break;
        at = record_end;
        null_keys += record.key_is_null;
        if (index == 0 || record.timestamp_delta < min_delta)
            min_delta = record.timestamp_delta;
        if (index == 0 || record.timestamp_delta > max_delta) {
            max_delta = record.timestamp_delta;
            max_index = index;
        }
    }
    if (status == VALID && at != end)
        status = TRAILING_BYTES;
    const int valid = status == VALID;
    call->status = status;
    call->record_index = valid ? -1 : index;
    call->null_keys = valid ? null_keys : 0;
    call->min_timestamp_delta = valid ? min_delta : 0;
    call->max_timestamp_delta = valid ? max_delta : 0;
    call->max_timestamp_index = valid ? max_index : -1;
}

void flowstone_find_timestamp(const uint8_t *buffer, struct find_timestamp_call *call) {
    const uint8_t *at = buffer + call->position, *end = at + call->size, *record_end;
    const int64_t record_count = call->record_count;
    const int64_t first_offset_delta = call->first_offset_delta, target_delta = call->target_delta;

    call->offset_delta = -1;
    call->timestamp_delta = 0;
    for (int64_t index = 0; index < record_count; index++) {
        int64_t timestamp_delta, offset_delta;
        if (read_record_length(&at, end, &record_end) != VALID || at == record_end)
            return;
        at++; /* the record's attributes */
        if (read_varint(&at, record_end, VARLONG_BITS, BAD_LENGTH, &timestamp_delta) != VALID ||
            read_varint(&at, record_end, VARINT_BITS, BAD_LENGTH, &offset_delta) != VALID || offset_delta < 0)
            return;
        if (timestamp_delta >= target_delta && offset_delta >= first_offset_delta) {
            call->offset_delta = offset_delta;
            call->timestamp_delta = timestamp_delta;
            return;
        }
        at = record_end;
    }
}
