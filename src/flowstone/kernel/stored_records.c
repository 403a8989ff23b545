/* The check of the decompressed records of a stored batch, as every reader requires them.
 *
 * Compaction removes records from batches, so offset deltas only have to increase, up to the last one. Like every loop
 * of the kernel it reads nothing outside the range it was given. stored_records_twin.py implements the same in Python.
 */

#include "records.h"

/* Filled and read by stored_records_native.py: keep the order there. */
struct check_stored_call {
    int64_t position, size, record_count, last_offset_delta;
    int64_t status, record_index;
};

static enum status check_stored(const uint8_t *at, const uint8_t *end, int64_t last_offset_delta, int64_t *previous) {
    int64_t timestamp_delta, offset_delta, length, header_count;
    if (at == end)
        return BAD_LENGTH;
    at++; /* the record's attributes */
    TRY(read_varint(&at, end, VARLONG_BITS, BAD_LENGTH, &timestamp_delta));
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &offset_delta));
    if (offset_delta <= *previous || offset_delta > last_offset_delta)
        return BAD_OFFSET_DELTA;
    *previous = offset_delta;
    TRY(skip_bytes(&at, end, -1, BAD_KEY_LENGTH, &length));
    TRY(skip_bytes(&at, end, -1, BAD_VALUE_LENGTH, &length));
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &header_count));
    TRY(skip_headers(&at, end, header_count));
    return at == end ? VALID : BAD_LENGTH;
}

void flowstone_check_stored(const uint8_t *buffer, struct check_stored_call *call) {
    const uint8_t *at = buffer + call->position, *end = at + call->size, *record_end;
    const int64_t record_count = call->record_count, last_offset_delta = call->last_offset_delta;
    int64_t previous = -1, index;
    enum status status = VALID;

    for (index = 0; index < record_count; index++) {
        status = read_record_length(&at, end, &record_end);
        if (status == VALID)
            status = check_stored(at, record_end, last_offset_delta, &previous);
        if (!LIKELY(status == VALID))
            break;
        at = record_end;
    }
    if (status == VALID && at != end)
        status = TRAILING_BYTES;
    call->status = status;
    call->record_index = status == VALID ? -1 : index;
}
