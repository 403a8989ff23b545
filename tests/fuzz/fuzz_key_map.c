/* The map from keys to offsets, over records that were decompressed: no checksum covers what a payload turns into. */

#include "key_map.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    struct offset_map map = {.slot_count = 2 + (int64_t)take(&input, 1), .seed = {1, 2}};
    map.used_max = map.slot_count * 80 / 100;
    map.slots = memory(map.slot_count * (int64_t)sizeof *map.slots, 0);
    struct map_records_call call = {.map = &map, .record_count = (int64_t)take(&input, 4)};
    call.base_offset = (int64_t)take(&input, 4);
    call.last_offset = call.base_offset + (int64_t)take(&input, 4);
    call.from_offset = (int64_t)take(&input, 2);
    call.to_offset = (int64_t)take(&input, 8) & INT64_MAX;
    call.size = left(&input);
    flowstone_map_records(input.at, &call);
    REQUIRE(map.used <= map.used_max);
    free(map.slots);
    return 0;
}
