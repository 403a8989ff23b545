/* The check of every batch that a producer sends. */

#include "records.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    struct check_records_call call = {.record_count = take_signed(&input, 4)};
    call.position = (int64_t)take(&input, 1);
    if (call.position > left(&input))
        return 0;
    call.size = left(&input) - call.position;
    flowstone_check_records(input.at, &call);
    REQUIRE(call.status >= VALID && call.status <= TRAILING_BYTES);
    REQUIRE(call.null_keys >= 0 && call.null_keys <= call.size);
    return 0;
}
