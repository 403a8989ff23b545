/* Conversion of columns in Arrow's layout to the records of batches: first each row's partition, then its bytes.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (batches_native.py) with the GIL
 * released. batches_twin.py implements the same in Python, and the tests compare the two.
 *
 * A column's offsets are compared with the size of its data before they are used: rows come from other programs.
 */

#include <string.h>

#include "records.h"

/* The defect of a row. Keep equal to RowStatus in row_columns.py. */
enum row_status {
    ROW_GOOD = 0,
    ROW_TOO_LARGE = 1,
    BAD_PARTITION = 2,
    BAD_TIMESTAMP = 3,
    NULL_HEADER_KEY = 4,
    BAD_COLUMN = 5, /* its offsets are outside its data */
};

/* A binary column: row 0 is value `first` of it. Without offsets every value is null. */
struct binary_input {
    const void *offsets;
    const uint8_t *validity; /* none: no value is null */
    const uint8_t *data;
    int64_t first, is_large, data_bytes;
};

/* A column of numbers; without values every one is null. */
struct number_input {
    const void *values;
    const uint8_t *validity;
    int64_t first;
};

struct headers_input {
    const void *offsets; /* int32 */
    const uint8_t *validity;
    int64_t first, header_count;
    struct binary_input key, value;
};

/* Keep equal to SpreadCall in row_columns.py. Slots number the partitions of all topics, consecutively per topic. */
struct spread_call {
    int64_t row_count, topic_count, slot_count, keyless_bytes_max;
    int64_t status, row;
    struct binary_input key, value;
    struct number_input topic, partition;          /* int32 */
    const int64_t *partition_counts, *first_slots; /* of each topic */
    int64_t *keyless_partitions, *keyless_bytes;   /* of each topic: the partition for rows without a key, the bytes it has received */
    int32_t *slots;                                /* of each row */
    int32_t *order;                                /* rows by slot, in their own order within one */
    int64_t *slot_ends;                            /* where each slot's rows end in `order` */
};

/* Keep equal to BuildCall in row_columns.py. */
struct build_call {
    int64_t next, end, capacity_bytes, now_ms; /* the range in `order`: `next` is set to the row after the last one written */
    int64_t status, row, needed_bytes;
    int64_t size_bytes, record_count, base_timestamp, max_timestamp;
    const int32_t *order;
    struct binary_input key, value;
    struct number_input timestamp; /* int64, milliseconds */
    struct headers_input headers;
};

#define TRY_ROW(expression)                                                                                                 \
    do {                                                                                                                    \
        enum row_status tried = (expression);                                                                               \
        if (!LIKELY(tried == ROW_GOOD))                                                                                     \
            return tried;                                                                                                   \
    } while (0)

/* Numbers of a column, which may be unaligned: the column may be anywhere in another program's buffer. */
static inline int32_t get_int32(const void *values, int64_t index) {
    int32_t value;
    memcpy(&value, (const uint8_t *)values + index * (int64_t)sizeof value, sizeof value);
    return value;
}

static inline int64_t get_int64(const void *values, int64_t index) {
    int64_t value;
    memcpy(&value, (const uint8_t *)values + index * (int64_t)sizeof value, sizeof value);
    return value;
}

static inline int is_valid(const uint8_t *validity, int64_t index) {
    return !validity || (validity[index >> 3] >> (index & 7) & 1);
}

static inline enum row_status get_field(const struct binary_input *column, int64_t row, struct field *field) {
    int64_t index = column->first + row, start, end;
    field->data = NULL;
    field->length = -1;
    if (!column->offsets || !is_valid(column->validity, index))
        return ROW_GOOD;
    if (column->is_large) {
        start = get_int64(column->offsets, index);
        end = get_int64(column->offsets, index + 1);
    } else {
        start = get_int32(column->offsets, index);
        end = get_int32(column->offsets, index + 1);
    }
    if (!LIKELY(start >= 0 && start <= end && end <= column->data_bytes))
        return BAD_COLUMN;
    if (end > start) /* a column whose values are all empty may have no data at all */
        field->data = column->data + start;
    field->length = end - start;
    return ROW_GOOD;
}

/* ---- Which partition ---- */

/* Kafka's murmur2, as its Java client computes it. */
static uint32_t murmur2(const uint8_t *data, int64_t length) {
    const uint32_t multiplier = 0x5bd1e995;
    uint32_t hash = 0x9747b28cu ^ (uint32_t)length;
    for (; length >= 4; data += 4, length -= 4) {
        uint32_t block = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        block *= multiplier;
        block ^= block >> 24;
        hash = hash * multiplier ^ block * multiplier;
    }
    if (length >= 3)
        hash ^= (uint32_t)data[2] << 16;
    if (length >= 2)
        hash ^= (uint32_t)data[1] << 8;
    if (length >= 1)
        hash = (hash ^ data[0]) * multiplier;
    hash = (hash ^ hash >> 13) * multiplier;
    return hash ^ hash >> 15;
}

/* Maximum bytes of a record's lengths, deltas and counts in a batch of usual size. Keep equal to the twin's. */
enum { RECORD_OVERHEAD_BYTES = 20 };

/* Rows without a key go to one partition until it has received a batch's worth: fewer, larger batches. */
static enum row_status place_keyless(struct spread_call *call, int64_t row, int64_t topic, int64_t *partition) {
    const int64_t count = call->partition_counts[topic];
    struct field value;
    TRY_ROW(get_field(&call->value, row, &value));
    const int64_t size_bytes = bytes_of(value) + RECORD_OVERHEAD_BYTES;
    if (size_bytes > call->keyless_bytes_max - call->keyless_bytes[topic]) {
        call->keyless_partitions[topic]++;
        call->keyless_bytes[topic] = 0;
    }
    call->keyless_bytes[topic] += size_bytes;
    *partition = call->keyless_partitions[topic] %= count;
    return ROW_GOOD;
}

static inline enum row_status place(struct spread_call *call, int64_t row, int32_t *slot) {
    const int64_t topic = call->topic.values ? get_int32(call->topic.values, call->topic.first + row) : 0;
    if (topic < 0 || topic >= call->topic_count)
        return BAD_COLUMN;
    const int64_t count = call->partition_counts[topic], index = call->partition.first + row;
    int64_t partition;
    if (call->partition.values && is_valid(call->partition.validity, index)) {
        partition = get_int32(call->partition.values, index);
        if (partition < 0 || partition >= count)
            return BAD_PARTITION;
    } else {
        struct field key;
        TRY_ROW(get_field(&call->key, row, &key));
        if (key.length < 0)
            TRY_ROW(place_keyless(call, row, topic, &partition));
        else
            partition = (murmur2(key.data, key.length) & 0x7fffffff) % count;
    }
    *slot = (int32_t)(call->first_slots[topic] + partition);
    return ROW_GOOD;
}

/* Groups the rows by slot: counts them, then places each after the previous rows of its slot. */
void flowstone_spread_rows(struct spread_call *call) {
    int64_t *ends = call->slot_ends, start = 0;
    memset(ends, 0, (size_t)call->slot_count * sizeof *ends);
    for (int64_t row = 0; row < call->row_count; row++) {
        call->status = place(call, row, &call->slots[row]);
        if (call->status != ROW_GOOD) {
            call->row = row;
            return;
        }
        ends[call->slots[row]]++;
    }
    for (int64_t slot = 0; slot < call->slot_count; slot++) {
        const int64_t count = ends[slot];
        ends[slot] = start;
        start += count;
    }
    for (int64_t row = 0; row < call->row_count; row++)
        call->order[ends[call->slots[row]]++] = (int32_t)row;
}

/* ---- What bytes ---- */

struct row {
    int64_t timestamp, first_header, header_count, header_bytes;
    struct field key, value;
};

static inline uint64_t zigzag(int64_t value) {
    return (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
}

static inline int64_t varint_bytes(int64_t value) {
    return (70 - __builtin_clzll(zigzag(value) | 1)) / 7;
}

static inline uint8_t *write_varint(uint8_t *at, int64_t value) {
    uint64_t raw = zigzag(value);
    for (; raw > 0x7f; raw >>= 7)
        *at++ = (uint8_t)(raw | 0x80);
    *at++ = (uint8_t)raw;
    return at;
}

static inline int64_t field_bytes(struct field field) {
    return varint_bytes(field.length) + bytes_of(field);
}

static inline uint8_t *write_field(uint8_t *at, struct field field) {
    at = write_varint(at, field.length);
    if (field.length <= 0)
        return at;
    memcpy(at, field.data, (size_t)field.length);
    return at + field.length;
}

static enum row_status measure_headers(const struct headers_input *headers, struct row *row, int64_t index) {
    struct field key, value;
    const int64_t start = get_int32(headers->offsets, index), end = get_int32(headers->offsets, index + 1);
    if (start < 0 || start > end || end > headers->header_count)
        return BAD_COLUMN;
    row->first_header = start;
    row->header_count = end - start;
    for (int64_t i = start; i < end; i++) {
        TRY_ROW(get_field(&headers->key, i, &key));
        TRY_ROW(get_field(&headers->value, i, &value));
        if (key.length < 0)
            return NULL_HEADER_KEY;
        row->header_bytes += field_bytes(key) + field_bytes(value);
    }
    return ROW_GOOD;
}

static inline enum row_status get_row(const struct build_call *call, int64_t index, struct row *row) {
    const struct number_input *timestamp = &call->timestamp;
    TRY_ROW(get_field(&call->key, index, &row->key));
    TRY_ROW(get_field(&call->value, index, &row->value));
    row->timestamp = call->now_ms;
    if (timestamp->values && is_valid(timestamp->validity, timestamp->first + index)) {
        row->timestamp = get_int64(timestamp->values, timestamp->first + index);
        if (row->timestamp < 0)
            return BAD_TIMESTAMP;
    }
    row->first_header = row->header_count = row->header_bytes = 0;
    if (call->headers.offsets && is_valid(call->headers.validity, call->headers.first + index))
        TRY_ROW(measure_headers(&call->headers, row, call->headers.first + index));
    return ROW_GOOD;
}

static uint8_t *write_headers(uint8_t *at, const struct headers_input *headers, const struct row *row) {
    struct field field;
    for (int64_t i = row->first_header; i < row->first_header + row->header_count; i++) {
        (void)get_field(&headers->key, i, &field);
        at = write_field(at, field);
        (void)get_field(&headers->value, i, &field);
        at = write_field(at, field);
    }
    return at;
}

static inline uint8_t *write_row(uint8_t *at, const struct build_call *call, const struct row *row, int64_t body_bytes) {
    at = write_varint(at, body_bytes);
    *at++ = 0; /* the record's attributes */
    at = write_varint(at, row->timestamp - call->base_timestamp);
    at = write_varint(at, call->record_count);
    at = write_field(at, row->key);
    at = write_field(at, row->value);
    at = write_varint(at, row->header_count);
    return row->header_count ? write_headers(at, &call->headers, row) : at;
}

static enum row_status build(uint8_t *out, struct build_call *call) {
    uint8_t *at = out, *const end = out + call->capacity_bytes;
    for (; call->next < call->end; call->next++) {
        struct row row;
        call->row = call->order[call->next];
        TRY_ROW(get_row(call, call->row, &row));
        if (call->record_count == 0)
            call->base_timestamp = call->max_timestamp = row.timestamp;
        const int64_t body_bytes = 1 + varint_bytes(row.timestamp - call->base_timestamp) +
            varint_bytes(call->record_count) + field_bytes(row.key) + field_bytes(row.value) +
            varint_bytes(row.header_count) + row.header_bytes;
        call->needed_bytes = varint_bytes(body_bytes) + body_bytes;
        if (call->needed_bytes > end - at)
            return call->record_count ? ROW_GOOD : ROW_TOO_LARGE;
        at = write_row(at, call, &row, body_bytes);
        call->record_count++;
        call->size_bytes = at - out;
        if (row.timestamp > call->max_timestamp)
            call->max_timestamp = row.timestamp;
    }
    return ROW_GOOD;
}

/* Writes records until the next row does not fit or none is left.
 * The state is copied, so that the compiler knows that written bytes cannot change it. */
void flowstone_build_records(uint8_t *out, struct build_call *call) {
    struct build_call state = *call;
    state.size_bytes = state.record_count = state.base_timestamp = state.max_timestamp = 0;
    state.status = build(out, &state);
    *call = state;
}
