/* Compaction, first pass: the last offset of each key.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (compaction_native.py) with the GIL
 * released. compaction_twin.py implements the same in Python, and the tests compare the two.
 *
 * The hash is SipHash-2-4 with 128 bits (Aumasson and Bernstein).
 */

#include "compaction.h"

/* Keep equal to _MapBatchesCall in compaction_native.py. `position`, `next_offset` and `mapped_end` are updated. */
struct map_batches_call {
    struct offset_map *map;
    int64_t position, size;
    int64_t next_offset, end_offset; /* the next batch starts at next_offset or later and ends before end_offset */
    int64_t from_offset, to_offset;  /* the records of this range are mapped */
    int64_t stop_attributes;         /* the caller handles a batch with any of these */
    int64_t mapped_end;              /* every record of the range below it is in the map */
    int64_t stop, damage, needed;
};

/* Keep equal to _MapRecordsCall in compaction_native.py: the records of one batch, decompressed. */
struct map_records_call {
    struct offset_map *map;
    int64_t size, record_count, base_offset, last_offset, from_offset, to_offset;
    int64_t mapped_end, stop;
};

static inline uint64_t rotate(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

static inline void sip_rounds(uint64_t v[4], int rounds) {
    for (; rounds > 0; rounds--) {
        v[0] += v[1], v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0], v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2], v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

void flowstone_hash_key(const uint64_t seed[2], const uint8_t *key, int64_t key_bytes, uint64_t hash[2]) {
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575, seed[1] ^ 0x646f72616e646f6d ^ 0xee, seed[0] ^ 0x6c7967656e657261,
                     seed[1] ^ 0x7465646279746573};
    uint64_t word, last = (uint64_t)key_bytes << 56;
    int64_t left = key_bytes;
    for (; left >= 8; left -= 8, key += 8) {
        word = 0;
        for (int i = 7; i >= 0; i--)
            word = word << 8 | key[i];
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    for (int64_t i = left - 1; i >= 0; i--)
        last |= (uint64_t)key[i] << 8 * i;
    v[3] ^= last;
    sip_rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Adds the key; returns whether there was space for it. */
static inline int map_key(struct offset_map *map, const uint64_t hash[2], int64_t offset) {
    struct slot *slot = find_slot(map, hash);
    if (slot->offset_plus_one == 0) {
        if (map->used == map->used_max)
            return 0;
        map->used++;
        slot->hash[0] = hash[0];
        slot->hash[1] = hash[1];
    }
    slot->offset_plus_one = offset + 1;
    return 1;
}

/* Maps the records of one batch. MORE: all of them; FULL: those before *mapped_end. */
static enum stop map_records(struct offset_map *map, const uint8_t *at, const uint8_t *end, const struct batch *batch,
                             int64_t from_offset, int64_t to_offset, int64_t *mapped_end) {
    struct record_walk walk = walk_records(batch, at, end);
    struct window window;
    do {
        if (next_window(&walk, map, &window) != VALID)
            return DAMAGED;
        for (const struct window_record *each = window.records; each < window.records + window.count; each++) {
            const int64_t offset = batch->base_offset + each->record.offset_delta;
            if (each->record.key == NULL || offset < from_offset || offset >= to_offset)
                continue;
            if (!map_key(map, each->hash, offset)) {
                *mapped_end = offset;
                return FULL;
            }
        }
    } while (window.count);
    *mapped_end = batch->last_offset < to_offset ? batch->last_offset + 1 : to_offset;
    return MORE;
}

void flowstone_map_records(const uint8_t *payload, struct map_records_call *call) {
    const struct batch batch = {
        .base_offset = call->base_offset, .last_offset = call->last_offset, .record_count = call->record_count};
    call->stop = map_records(call->map, payload, payload + call->size, &batch, call->from_offset, call->to_offset,
                             &call->mapped_end);
}

static enum stop map_batch(struct map_batches_call *call, const uint8_t *at, const struct batch *batch) {
    if (batch->base_offset >= call->to_offset) {
        call->mapped_end = call->to_offset;
        return DONE;
    }
    if (batch->attributes & call->stop_attributes)
        return TRANSACTIONAL;
    if (batch->attributes & CONTROL_FLAG) { /* a marker's key is not a record key */
        call->mapped_end = batch->last_offset + 1;
        return MORE;
    }
    if (batch->attributes & CODEC_MASK && batch->record_count)
        return COMPRESSED;
    enum stop stop = map_records(call->map, at + HEADER_BYTES, at + batch->size_bytes, batch, call->from_offset,
                                 call->to_offset, &call->mapped_end);
    call->damage = stop == DAMAGED ? BAD_RECORD : NO_DAMAGE;
    return stop;
}

void flowstone_map_batches(const uint8_t *buffer, struct map_batches_call *call) {
    const uint8_t *at = buffer + call->position, *end = buffer + call->size;
    struct batch batch;
    while (next_batch(at, end, call->next_offset, call->end_offset, &batch, &call->stop, &call->needed, &call->damage)) {
        call->stop = map_batch(call, at, &batch);
        if (call->stop != MORE)
            break;
        call->next_offset = batch.last_offset + 1;
        at += batch.size_bytes;
    }
    call->position = at - buffer;
}
