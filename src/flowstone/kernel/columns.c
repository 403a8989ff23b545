/* Decoding of a batch's records into columns in Arrow's layout: offsets, validity bits, data.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (columns_native.py) with the GIL
 * released. columns_twin.py implements the same in Python, and the tests compare the two.
 *
 * A record is parsed completely before any of it is written, so a bad one, or one that does not fit, leaves the
 * columns as they were after the previous one. Nothing is written outside the given capacities.
 */

#include <string.h>

#include "records.h"

/* The column that has no space for the next record. Keep equal to Full in columns.py. */
enum full {
    NOT_FULL = 0,
    ROWS_FULL = 1,
    KEY_FULL = 2,
    VALUE_FULL = 3,
    HEADERS_FULL = 4,
    HEADER_KEY_FULL = 5,
    HEADER_VALUE_FULL = 6,
};

/* A column of binary values that can grow; without offsets it is not requested. */
struct binary_column {
    int32_t *offsets; /* one more than there are values */
    uint8_t *validity;
    uint8_t *data;
    int64_t size_bytes, capacity_bytes, null_count;
};

/* Keep equal to DecodeCall in columns.py. Null pointers belong to columns that are not requested. */
struct decode_columns_call {
    /* The batch's header values (with LogAppendTime only the base timestamp is used) and the requested offsets. */
    int64_t size, record_count, base_offset, last_offset_delta, base_timestamp, uses_log_append_time;
    int64_t start_offset, end_offset;
    /* Progress: zero, zero and -1 at first; a call continues where the last one stopped. */
    int64_t position, record_index, last_delta;
    int64_t status, full, needed;
    /* The columns and how far they are filled. */
    int64_t row_count, row_capacity, header_count, header_capacity, rows_without_headers;
    int64_t *offsets, *timestamps;
    int32_t *header_offsets; /* the first header of each row, and the end */
    uint8_t *header_validity; /* a row without headers is null */
    struct binary_column key, value, header_key, header_value;
};

enum { MICROSECONDS_PER_MILLISECOND = 1000 };

struct record {
    int64_t timestamp_delta, offset_delta, header_count, header_key_bytes, header_value_bytes;
    const uint8_t *headers;
    struct field key, value;
};

static inline enum status read_field(const uint8_t **at, const uint8_t *end, int64_t least, enum status bad,
                                     struct field *field) {
    TRY(skip_bytes(at, end, least, bad, &field->length));
    field->data = *at - bytes_of(*field);
    return VALID;
}

static enum status read_headers(const uint8_t **at, const uint8_t *end, struct record *record) {
    struct field key, value;
    if (record->header_count < 0)
        return BAD_HEADERS;
    for (int64_t left = record->header_count; left > 0; left--) {
        TRY(read_field(at, end, 0, BAD_HEADERS, &key));
        TRY(read_field(at, end, -1, BAD_HEADERS, &value));
        record->header_key_bytes += key.length;
        record->header_value_bytes += bytes_of(value);
    }
    return VALID;
}

/* Offsets increase within a batch, at most up to the header's last one; compaction leaves gaps. */
static inline enum status read_record(const uint8_t *at, const uint8_t *end, const struct decode_columns_call *call,
                                      struct record *record) {
    if (at == end)
        return BAD_LENGTH;
    at++; /* the record's attributes: unused by the format, any value is legal */
    TRY(read_varint(&at, end, VARLONG_BITS, BAD_LENGTH, &record->timestamp_delta));
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &record->offset_delta));
    if (record->offset_delta <= call->last_delta || record->offset_delta > call->last_offset_delta)
        return BAD_OFFSET_DELTA;
    TRY(read_field(&at, end, -1, BAD_KEY_LENGTH, &record->key));
    TRY(read_field(&at, end, -1, BAD_VALUE_LENGTH, &record->value));
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &record->header_count));
    record->headers = at;
    record->header_key_bytes = record->header_value_bytes = 0;
    if (record->header_count != 0)
        TRY(read_headers(&at, end, record));
    return at == end ? VALID : BAD_LENGTH;
}

static inline int has_capacity(const struct binary_column *column, int64_t length) {
    return !column->offsets || length <= column->capacity_bytes - column->size_bytes;
}

/* The first column without space for the record, and how much it needs, in bytes or headers. */
static inline enum full find_full(const struct decode_columns_call *call, const struct record *record, int64_t *needed) {
    *needed = 1;
    if (call->row_count == call->row_capacity)
        return ROWS_FULL;
    *needed = bytes_of(record->key);
    if (!LIKELY(has_capacity(&call->key, *needed)))
        return KEY_FULL;
    *needed = bytes_of(record->value);
    if (!LIKELY(has_capacity(&call->value, *needed)))
        return VALUE_FULL;
    *needed = record->header_count;
    if (call->header_offsets && *needed > call->header_capacity - call->header_count)
        return HEADERS_FULL;
    *needed = record->header_key_bytes;
    if (!LIKELY(has_capacity(&call->header_key, *needed)))
        return HEADER_KEY_FULL;
    *needed = record->header_value_bytes;
    if (!LIKELY(has_capacity(&call->header_value, *needed)))
        return HEADER_VALUE_FULL;
    *needed = 0;
    return NOT_FULL;
}

/* Bits are set in order: the first one of a byte clears the others. */
static inline void set_bit(uint8_t *bits, int64_t index, int is_set) {
    if ((index & 7) == 0)
        bits[index >> 3] = 0;
    bits[index >> 3] |= (uint8_t)(is_set << (index & 7));
}

static inline void append(struct binary_column *column, int64_t index, struct field field) {
    set_bit(column->validity, index, field.length >= 0);
    if (field.length >= 0) {
        memcpy(column->data + column->size_bytes, field.data, (size_t)field.length);
        column->size_bytes += field.length;
    } else {
        column->null_count++;
    }
    column->offsets[index + 1] = (int32_t)column->size_bytes;
}

/* The headers have been parsed before, and all of them fit. */
static void append_headers(struct decode_columns_call *call, const struct record *record, const uint8_t *end) {
    const uint8_t *at = record->headers;
    struct field key, value;
    for (int64_t left = record->header_count; left > 0; left--) {
        if (read_field(&at, end, 0, BAD_HEADERS, &key) != VALID || read_field(&at, end, -1, BAD_HEADERS, &value) != VALID)
            return;
        append(&call->header_key, call->header_count, key);
        append(&call->header_value, call->header_count, value);
        call->header_count++;
    }
    set_bit(call->header_validity, call->row_count, record->header_count != 0);
    call->rows_without_headers += record->header_count == 0;
    call->header_offsets[call->row_count + 1] = (int32_t)call->header_count;
}

/* Milliseconds out of the range of microseconds are limited to that range. */
static inline int64_t microseconds(const struct decode_columns_call *call, int64_t timestamp_delta) {
    int64_t sum, product;
    if (call->uses_log_append_time)
        timestamp_delta = 0;
    if (!LIKELY(!__builtin_add_overflow(call->base_timestamp, timestamp_delta, &sum)))
        return timestamp_delta < 0 ? INT64_MIN : INT64_MAX;
    if (!LIKELY(!__builtin_mul_overflow(sum, MICROSECONDS_PER_MILLISECOND, &product)))
        return sum < 0 ? INT64_MIN : INT64_MAX;
    return product;
}

static inline void append_record(struct decode_columns_call *call, const struct record *record, const uint8_t *end) {
    const int64_t row = call->row_count;
    if (call->offsets)
        call->offsets[row] = call->base_offset + record->offset_delta;
    if (call->timestamps)
        call->timestamps[row] = microseconds(call, record->timestamp_delta);
    if (call->key.offsets)
        append(&call->key, row, record->key);
    if (call->value.offsets)
        append(&call->value, row, record->value);
    if (call->header_offsets)
        append_headers(call, record, end);
    call->row_count = row + 1;
}

static void begin(struct decode_columns_call *call) {
    struct binary_column *columns[] = {&call->key, &call->value, &call->header_key, &call->header_value};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (columns[i]->offsets)
            columns[i]->offsets[0] = 0;
    if (call->header_offsets)
        call->header_offsets[0] = 0;
}

static enum status decode(const uint8_t *payload, struct decode_columns_call *call) {
    const uint8_t *at = payload + call->position, *end = payload + call->size, *record_end;
    for (; call->record_index < call->record_count; call->record_index++) {
        struct record record;
        TRY(read_record_length(&at, end, &record_end));
        TRY(read_record(at, record_end, call, &record));
        const int64_t offset = call->base_offset + record.offset_delta;
        if (offset >= call->start_offset && offset < call->end_offset) {
            call->full = find_full(call, &record, &call->needed);
            if (!LIKELY(call->full == NOT_FULL))
                return VALID;
            append_record(call, &record, record_end);
        }
        call->last_delta = record.offset_delta;
        at = record_end;
        call->position = at - payload;
    }
    return at == end ? VALID : TRAILING_BYTES;
}

/* Appends the batch's records from where the last call stopped, until one is bad, a column is full, or all are done.
 * The state is copied, so that the compiler knows that no byte written to a column changes it. */
void flowstone_decode_columns(const uint8_t *payload, struct decode_columns_call *call) {
    struct decode_columns_call state = *call;
    if (state.row_count == 0)
        begin(&state);
    state.full = NOT_FULL;
    state.needed = 0;
    state.status = decode(payload, &state);
    *call = state;
}
