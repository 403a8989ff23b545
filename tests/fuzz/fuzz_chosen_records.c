/* The copy of chosen records of a batch, which may be damaged. */

#include <stdlib.h>

#include "chosen_records.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    const int64_t count = take_signed(&input, 4), first = take_signed(&input, 1), length = take_signed(&input, 1);
    const int64_t ranges[] = {first, first + length, first + length + 2, first + length + 3};
    struct copy_chosen_call call = {.record_count = count, .ranges = ranges, .range_count = 2};
    call.size = left(&input);
    call.output = malloc((size_t)call.size);
    flowstone_copy_chosen(input.at, &call);
    REQUIRE(call.status >= VALID && call.status <= TRAILING_BYTES);
    REQUIRE(call.output_size >= 0 && call.output_size <= call.size);
    free(call.output);
    return 0;
}
