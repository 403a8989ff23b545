/* The check of the records of a stored batch, which may be damaged. */

#include "stored_records.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    struct check_stored_call call = {.record_count = take_signed(&input, 4), .last_offset_delta = take_signed(&input, 4)};
    call.size = left(&input);
    flowstone_check_stored(input.at, &call);
    REQUIRE(call.status >= VALID && call.status <= TRAILING_BYTES);
    REQUIRE((call.status == VALID) == (call.record_index == -1));
    return 0;
}
