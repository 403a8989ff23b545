/* The copy of the records of a batch that have chosen offsets, for readers that need only a part of it.
 *
 * Records are copied unchanged, so the new batch keeps the base offset and the base timestamp. Like every loop of the
 * kernel it reads nothing outside the range it was given. stored_records_twin.py implements the same in Python.
 */

#include <string.h>

#include "records.h"

/* Filled and read by stored_records_native.py: keep the order there. */
struct copy_chosen_call {
    int64_t position, size, record_count;
    const int64_t *ranges; /* pairs of the first and last offset delta, in order and disjoint */
    int64_t range_count;
    uint8_t *output; /* of `size` bytes: nothing grows */
    int64_t status, output_size, chosen_count, last_delta;
};

void flowstone_copy_chosen(const uint8_t *buffer, struct copy_chosen_call *call) {
    const uint8_t *at = buffer + call->position, *end = at + call->size, *record_end;
    const int64_t *range = call->ranges, *ranges_end = range + 2 * call->range_count;
    uint8_t *out = call->output;
    int64_t chosen_count = 0, last_delta = -1, timestamp_delta, offset_delta;
    enum status status = VALID;

    for (int64_t index = 0; index < call->record_count && range < ranges_end; index++) {
        const uint8_t *record = at;
        status = read_record_length(&at, end, &record_end);
        if (status == VALID)
            status = at == record_end ? BAD_LENGTH : VALID;
        if (status != VALID)
            break;
        at++; /* the record's attributes */
        status = read_varint(&at, record_end, VARLONG_BITS, BAD_LENGTH, &timestamp_delta);
        if (status == VALID)
            status = read_varint(&at, record_end, VARINT_BITS, BAD_LENGTH, &offset_delta);
        if (status != VALID)
            break;
        at = record_end;
        while (range < ranges_end && range[1] < offset_delta)
            range += 2;
        if (range < ranges_end && range[0] <= offset_delta) {
            memcpy(out, record, (size_t)(record_end - record));
            out += record_end - record;
            last_delta = offset_delta;
            chosen_count++;
        }
    }
    call->status = status;
    call->output_size = out - call->output;
    call->chosen_count = chosen_count;
    call->last_delta = last_delta;
}
