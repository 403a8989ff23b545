/* Shared by the loops of compaction: big-endian numbers, batch headers, the map from keys to their last offsets. */

#ifndef FLOWSTONE_KERNEL_COMPACTION_H
#define FLOWSTONE_KERNEL_COMPACTION_H

#include <string.h>

#include "crc32c.h"
#include "records.h"

/* Positions of the fields of a batch's header (wire/record_batch.py). */
enum {
    BATCH_LENGTH_AT = 8,
    MAGIC_AT = 16,
    CRC_AT = 17,
    ATTRIBUTES_AT = 21, /* the checksum covers the batch from here on */
    LAST_OFFSET_DELTA_AT = 23,
    BASE_TIMESTAMP_AT = 27,
    MAX_TIMESTAMP_AT = 35,
    RECORD_COUNT_AT = 57,
    HEADER_BYTES = 61,
    LOG_OVERHEAD = 12, /* not included in the batch's length */
    MAGIC = 2,
};

enum {
    CODEC_MASK = 0x07,
    LOG_APPEND_TIME_FLAG = 0x08,
    TRANSACTIONAL_FLAG = 0x10,
    CONTROL_FLAG = 0x20,
    DELETE_HORIZON_FLAG = 0x40,
};
enum { NO_TIMESTAMP = -1 };

/* The reason why a walk over batches ended. Keep equal to Stop in compaction_contract.py. */
enum stop {
    MORE = 0,          /* the rest of the buffer is not a whole batch */
    COMPRESSED = 1,    /* the next batch must be decompressed first */
    TRANSACTIONAL = 2, /* the next batch is part of a transaction */
    FULL = 3,          /* the map is full */
    DONE = 4,          /* the next batch starts at the requested end */
    OUTPUT_FULL = 5,       /* the output may not have enough space for the next batch */
    DAMAGED = 6,
};

/* The defect of the next batch. Keep equal to Damage in compaction_contract.py. */
enum damage { NO_DAMAGE = 0, BAD_HEADER = 1, OUT_OF_ORDER = 2, BAD_CHECKSUM = 3, BAD_RECORD = 4 };

static inline uint64_t get_big_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static inline void put_big_endian(uint8_t *at, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
}

struct batch {
    int64_t base_offset, last_offset, size_bytes, base_timestamp, max_timestamp, record_count;
    int attributes;
};

static inline void read_header(const uint8_t *at, struct batch *batch) {
    batch->base_offset = (int64_t)get_big_endian(at, 8);
    batch->size_bytes = (int64_t)(int32_t)get_big_endian(at + BATCH_LENGTH_AT, 4) + LOG_OVERHEAD;
    batch->attributes = (int)get_big_endian(at + ATTRIBUTES_AT, 2);
    /* Unsigned: a damaged base offset must not overflow. */
    const int64_t last_offset_delta = (int32_t)get_big_endian(at + LAST_OFFSET_DELTA_AT, 4);
    batch->last_offset = (int64_t)((uint64_t)batch->base_offset + (uint64_t)last_offset_delta);
    batch->base_timestamp = (int64_t)get_big_endian(at + BASE_TIMESTAMP_AT, 8);
    batch->max_timestamp = (int64_t)get_big_endian(at + MAX_TIMESTAMP_AT, 8);
    batch->record_count = (int32_t)get_big_endian(at + RECORD_COUNT_AT, 4);
}

/* Whether there is a whole valid batch at `at`, with offsets from next_offset to below end_offset; if not, *stop is MORE,
 * *needed being its size, or DAMAGED. */
static inline int next_batch(const uint8_t *at, const uint8_t *end, int64_t next_offset, int64_t end_offset,
                             struct batch *batch, int64_t *stop, int64_t *needed, int64_t *damage) {
    *needed = HEADER_BYTES;
    *damage = NO_DAMAGE;
    *stop = MORE;
    if (end - at < HEADER_BYTES)
        return 0;
    read_header(at, batch);
    if (at[MAGIC_AT] != MAGIC || batch->size_bytes < HEADER_BYTES || batch->base_offset < 0 ||
        batch->last_offset < batch->base_offset || batch->record_count < 0) {
        *damage = BAD_HEADER;
    } else if (batch->base_offset < next_offset || batch->last_offset >= end_offset) {
        *damage = OUT_OF_ORDER;
    } else {
        *needed = batch->size_bytes;
        if (end - at < batch->size_bytes)
            return 0;
        const uint32_t crc = flowstone_crc32c(at + ATTRIBUTES_AT, (size_t)(batch->size_bytes - ATTRIBUTES_AT));
        if (crc == (uint32_t)get_big_endian(at + CRC_AT, 4))
            return 1;
        *damage = BAD_CHECKSUM;
    }
    *stop = DAMAGED;
    return 0;
}

/* The parts of a record that compaction uses. */
struct keyed_record {
    const uint8_t *timestamp_at, *offset_at, *key; /* inside the record; key is null where the record has none */
    int64_t timestamp_delta, offset_delta, key_bytes;
    int has_value;
};

static inline enum status read_keyed_record(const uint8_t *at, const uint8_t *end, struct keyed_record *record) {
    int64_t header_count, value_bytes;
    if (at == end)
        return BAD_LENGTH;
    record->timestamp_at = ++at; /* after the record's attributes, which are unused */
    TRY(read_varint(&at, end, VARLONG_BITS, BAD_LENGTH, &record->timestamp_delta));
    record->offset_at = at;
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &record->offset_delta));
    TRY(skip_bytes(&at, end, -1, BAD_KEY_LENGTH, &record->key_bytes));
    record->key = record->key_bytes < 0 ? NULL : at - record->key_bytes;
    TRY(skip_bytes(&at, end, -1, BAD_VALUE_LENGTH, &value_bytes));
    record->has_value = value_bytes >= 0;
    TRY(read_varint(&at, end, VARINT_BITS, BAD_LENGTH, &header_count));
    if (header_count != 0)
        TRY(skip_headers(&at, end, header_count));
    return at == end ? VALID : BAD_LENGTH;
}

/* The last offset of every key, by a hash with a secret random seed: nobody can construct two keys that
 * collide, and the probability that two of a billion keys do is 10^-20. Keep equal to _MapFields in compaction_native.py. */
struct slot {
    uint64_t hash[2];
    int64_t offset_plus_one; /* 0: the slot is empty */
};

struct offset_map {
    struct slot *slots;
    int64_t slot_count, used, used_max;
    uint64_t seed[2];
};

void flowstone_hash_key(const uint64_t seed[2], const uint8_t *key, int64_t key_bytes, uint64_t hash[2]);

static inline struct slot *first_slot(const struct offset_map *map, const uint64_t hash[2]) {
    return map->slots + (int64_t)((unsigned __int128)hash[0] * (uint64_t)map->slot_count >> 64);
}

/* The key's slot, or the empty slot for it. There always is an empty one: used_max is below slot_count. */
static inline struct slot *find_slot(const struct offset_map *map, const uint64_t hash[2]) {
    struct slot *slot = first_slot(map, hash);
    const struct slot *end = map->slots + map->slot_count;
    while (slot->offset_plus_one != 0 && (slot->hash[0] != hash[0] || slot->hash[1] != hash[1]))
        slot = slot + 1 == end ? map->slots : slot + 1;
    return slot;
}

/* Records are read in groups: when the first one's slot is accessed, the slots of all are being prefetched. */
enum { WINDOW = 16 };

struct window {
    int64_t count;
    struct window_record {
        const uint8_t *start, *body, *end; /* with its length, without it, and behind it */
        struct keyed_record record;
        uint64_t hash[2]; /* of its key, if it has one */
    } records[WINDOW];
};

/* The state of a walk over a batch's records. */
struct record_walk {
    const uint8_t *at, *end;
    int64_t left, last_delta, delta_max;
};

static inline struct record_walk walk_records(const struct batch *batch, const uint8_t *at, const uint8_t *end) {
    return (struct record_walk){at, end, batch->record_count, -1, batch->last_offset - batch->base_offset};
}

/* Fills the window with the next records; it is empty behind the last. */
static inline enum status next_window(struct record_walk *walk, const struct offset_map *map, struct window *window) {
    window->count = walk->left < WINDOW ? walk->left : WINDOW;
    walk->left -= window->count;
    for (struct window_record *each = window->records; each < window->records + window->count; each++) {
        each->start = walk->at;
        TRY(read_record_length(&walk->at, walk->end, &each->end));
        each->body = walk->at;
        TRY(read_keyed_record(each->body, each->end, &each->record));
        if (each->record.offset_delta <= walk->last_delta || each->record.offset_delta > walk->delta_max)
            return BAD_OFFSET_DELTA;
        walk->last_delta = each->record.offset_delta;
        walk->at = each->end;
        if (each->record.key != NULL) {
            flowstone_hash_key(map->seed, each->record.key, each->record.key_bytes, each->hash);
            __builtin_prefetch(first_slot(map, each->hash), 1);
        }
    }
    return walk->left == 0 && walk->at != walk->end ? TRAILING_BYTES : VALID;
}

#endif
