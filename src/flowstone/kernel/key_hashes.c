/* The hashes of the keys of a batch's records, for readers that need to know which records have the same key.
 *
 * The hash has a secret random seed (key_map.c): nobody can construct keys that have the same one. Like every loop of the
 * kernel it reads nothing outside the range it was given. stored_records_twin.py implements the same in Python.
 */

#include "compaction.h"
#include "records.h"

/* Filled and read by stored_records_native.py: keep the order there. */
struct hash_keys_call {
    int64_t position, size, record_count;
    const uint64_t *seed; /* two words */
    int64_t *deltas;      /* `record_count` of each */
    uint64_t *hashes;     /* 0: the record has no key */
    int64_t status, is_dense;
};

static enum status hash_record(const uint8_t **at, const uint8_t *end, const uint64_t *seed, int64_t *delta, uint64_t *hash) {
    const uint8_t *record_end;
    int64_t timestamp_delta, key_bytes;
    uint64_t words[2];
    TRY(read_record_length(at, end, &record_end));
    if (*at == record_end)
        return BAD_LENGTH;
    (*at)++; /* the record's attributes */
    TRY(read_varint(at, record_end, VARLONG_BITS, BAD_LENGTH, &timestamp_delta));
    TRY(read_varint(at, record_end, VARINT_BITS, BAD_LENGTH, delta));
    const uint8_t *key = *at;
    TRY(skip_bytes(at, record_end, -1, BAD_KEY_LENGTH, &key_bytes));
    *hash = 0;
    if (key_bytes >= 0) {
        key = *at - key_bytes;
        flowstone_hash_key(seed, key, key_bytes, words);
        *hash = words[0] ? words[0] : 1;
    }
    *at = record_end;
    return VALID;
}

void flowstone_hash_keys(const uint8_t *buffer, struct hash_keys_call *call) {
    const uint8_t *at = buffer + call->position, *end = at + call->size;
    int64_t before = -1;
    enum status status = VALID;

    call->is_dense = 1;
    for (int64_t index = 0; index < call->record_count; index++) {
        int64_t *delta = call->deltas + index;
        status = hash_record(&at, end, call->seed, delta, call->hashes + index);
        if (status == VALID && *delta <= before)
            status = BAD_OFFSET_DELTA;
        if (status != VALID)
            break;
        before = *delta;
        call->is_dense &= before == index;
    }
    call->status = status;
}
