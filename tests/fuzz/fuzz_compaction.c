/* Both passes of compaction over a log, and the index of what is left. */

#include "key_map.c"
#include "compaction.c"
#include "fuzz.h"

enum { ROUNDS_MAX = 1000, KEPT_OFFSETS = 3 };

/* Whoever damages a batch and knows how computes its checksum anew: else the fuzzer would not get past it. */
static void put_checksums(uint8_t *log, int64_t size) {
    struct batch batch;
    for (int64_t at = 0; size - at >= HEADER_BYTES; at += batch.size_bytes) {
        read_header(log + at, &batch);
        if (batch.size_bytes < HEADER_BYTES || batch.size_bytes > size - at)
            return;
        const size_t covered = (size_t)(batch.size_bytes - ATTRIBUTES_AT);
        put_big_endian(log + at + CRC_AT, flowstone_crc32c(log + at + ATTRIBUTES_AT, covered), 4);
    }
}

static void index_all(const uint8_t *log, int64_t size, int64_t base_offset, int64_t interval_bytes) {
    const int64_t entries_bytes = (size / HEADER_BYTES + 1) * TIME_ENTRY_BYTES;
    struct index_batches_call call = {.size = size,
                                      .base_offset = base_offset,
                                      .interval_bytes = interval_bytes,
                                      .newest_timestamp = NO_TIMESTAMP,
                                      .newest_offset = base_offset,
                                      .indexed_timestamp = NO_TIMESTAMP,
                                      .offset_entries = memory(entries_bytes, 0),
                                      .time_entries = memory(entries_bytes, 0)};
    flowstone_index_batches(log, &call);
    free(call.offset_entries);
    free(call.time_entries);
}

static void map_all(const uint8_t *log, struct map_batches_call *call) {
    struct batch batch;
    for (int round = 0; round < ROUNDS_MAX; round++) {
        flowstone_map_batches(log, call);
        if (call->stop != COMPRESSED && call->stop != TRANSACTIONAL)
            return;
        read_header(log + call->position, &batch); /* for the caller: as if its payload were decompressed already */
        struct map_records_call records = {call->map, batch.size_bytes - HEADER_BYTES, batch.record_count,
                                           batch.base_offset, batch.last_offset, call->from_offset, call->to_offset,
                                           call->mapped_end, 0};
        flowstone_map_records(log + call->position + HEADER_BYTES, &records);
        if (records.stop != MORE)
            return;
        call->mapped_end = records.mapped_end;
        call->position += batch.size_bytes;
        call->next_offset = batch.last_offset + 1;
    }
}

static void filter_one(const uint8_t *log, struct filter_batches_call *call) {
    struct batch batch;
    read_header(log + call->position, &batch);
    const int64_t size = batch.size_bytes - HEADER_BYTES;
    struct filter_records_call records = {call->filter, size, batch.record_count, batch.base_offset, batch.last_offset,
                                          batch.base_timestamp, batch.attributes, batch.attributes & CONTROL_FLAG,
                                          memory(OUTPUT_PER_INPUT_MAX * size, 0), OUTPUT_PER_INPUT_MAX * size,
                                          0, 0, 0, 0, 0, 0};
    flowstone_filter_records(log + call->position + HEADER_BYTES, &records);
    REQUIRE(records.stop != MORE || records.kept_count <= batch.record_count);
    free(records.output);
    call->position += batch.size_bytes;
    call->next_offset = batch.last_offset + 1;
}

static void filter_all(const uint8_t *log, struct filter_batches_call *call, int64_t interval_bytes) {
    for (int round = 0; round < ROUNDS_MAX; round++) {
        flowstone_filter_batches(log, call);
        REQUIRE(call->output_size <= call->output_capacity);
        index_all(call->output, call->output_size, 0, interval_bytes);
        const int is_stuck = call->stop == OUTPUT_FULL && call->output_size == 0;
        call->output_size = 0;
        if (call->stop == COMPRESSED || call->stop == TRANSACTIONAL)
            filter_one(log, call);
        else if (call->stop != OUTPUT_FULL || is_stuck)
            return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    struct offset_map map = {.slot_count = 2 + (int64_t)take(&input, 1), .seed = {1, 2}};
    const uint64_t flags = take(&input, 1);
    const int64_t kept[KEPT_OFFSETS] = {0, 5, 1000};
    struct filter filter = {.map = &map, .kept_offsets = kept, .kept_offset_count = KEPT_OFFSETS};
    filter.now_ms = take_signed(&input, 8);
    filter.delete_horizon_ms = take_signed(&input, 8);
    struct map_batches_call mapping = {.map = &map, .end_offset = INT64_MAX};
    mapping.from_offset = (int64_t)take(&input, 2);
    mapping.to_offset = flags & 1 ? INT64_MAX : (int64_t)take(&input, 2);
    mapping.stop_attributes = flags & 2 ? TRANSACTIONAL_FLAG | CONTROL_FLAG : 0;
    struct filter_batches_call filtering = {.filter = &filter, .end_offset = INT64_MAX, .keeps_last = (flags & 4) != 0};
    filtering.stop_attributes = mapping.stop_attributes;
    filtering.output_capacity = (int64_t)take(&input, 2);
    const int64_t interval_bytes = (int64_t)take(&input, 1);

    mapping.size = filtering.size = left(&input);
    uint8_t *log = memory(mapping.size, 0);
    memcpy(log, input.at, (size_t)mapping.size);
    if (flags & 8)
        put_checksums(log, mapping.size);
    map.used_max = map.slot_count * 80 / 100;
    map.slots = memory(map.slot_count * (int64_t)sizeof *map.slots, 0);
    filtering.output = memory(filtering.output_capacity, 0);

    map_all(log, &mapping);
    REQUIRE(map.used <= map.used_max);
    filter.mapped_end = mapping.mapped_end;
    filter_all(log, &filtering, interval_bytes);
    index_all(log, mapping.size, 0, interval_bytes);
    free(map.slots);
    free(filtering.output);
    free(log);
    return 0;
}
