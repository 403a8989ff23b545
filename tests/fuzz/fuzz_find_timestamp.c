/* The search for a timestamp, over batches as they were stored. */

#include "records.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    struct find_timestamp_call call = {.record_count = take_signed(&input, 4)};
    call.first_offset_delta = take_signed(&input, 4);
    call.target_delta = take_signed(&input, 8);
    call.size = left(&input);
    flowstone_find_timestamp(input.at, &call);
    REQUIRE(call.offset_delta == -1 || call.offset_delta >= call.first_offset_delta);
    return 0;
}
