/* The checks of a batch's records and the search for a timestamp: loops over records, which Python must not run.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (native.py), possibly from several
 * threads at once and with the GIL released. twin.py implements the same in Python, and the tests compare the two.
 */

#include "records.h"

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
