/* The search for the records because of which a batch is refused: a missing key, or a timestamp out of range.
 *
 * It runs only if a batch contains such a record, to list each of them in the response. Like every loop of the
 * kernel it reads nothing outside the range it was given, whatever the bytes say; damage ends the search.
 * refused_records_twin.py implements the same in Python.
 */

#include "records.h"

struct refused_record {
    int64_t index, is_keyless, timestamp_delta;
};

/* Filled and read by refused_records_native.py: keep the order there. `limit` records fit after the call's own fields. */
struct find_refused_call {
    int64_t position, size, record_count, needs_key, low_delta, high_delta, exempt_delta, limit;
    int64_t found_count;
    struct refused_record found[];
};

void flowstone_find_refused(const uint8_t *buffer, struct find_refused_call *call) {
    const uint8_t *at = buffer + call->position, *end = at + call->size, *record_end;
    const int64_t record_count = call->record_count, limit = call->limit;
    int64_t found_count = 0;

    call->found_count = 0;
    for (int64_t index = 0; index < record_count && found_count < limit; index++) {
        int64_t timestamp_delta, offset_delta, key_length;
        if (read_record_length(&at, end, &record_end) != VALID || at == record_end)
            break;
        at++; /* the record's attributes */
        if (read_varint(&at, record_end, VARLONG_BITS, BAD_LENGTH, &timestamp_delta) != VALID ||
            read_varint(&at, record_end, VARINT_BITS, BAD_LENGTH, &offset_delta) != VALID ||
            read_varint(&at, record_end, VARINT_BITS, BAD_LENGTH, &key_length) != VALID)
            break;
        const int is_keyless = call->needs_key && key_length < 0;
        const int is_out_of_range = timestamp_delta != call->exempt_delta &&
                                    (timestamp_delta < call->low_delta || timestamp_delta > call->high_delta);
        if (is_keyless || is_out_of_range) {
            call->found[found_count].index = index;
            call->found[found_count].is_keyless = is_keyless;
            call->found[found_count].timestamp_delta = timestamp_delta;
            found_count++;
        }
        at = record_end;
    }
    call->found_count = found_count;
}
