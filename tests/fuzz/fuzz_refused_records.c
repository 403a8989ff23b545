/* The search for the records that make a produced batch refused. */

#include "refused_records.c"
#include "fuzz.h"

enum { FOUND_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    const int64_t limit = (int64_t)take(&input, 1) % (FOUND_MAX + 1);
    struct find_refused_call *call = malloc(sizeof *call + (size_t)limit * sizeof call->found[0]);
    REQUIRE(call != NULL);
    *call = (struct find_refused_call){.limit = limit, .needs_key = (int64_t)take(&input, 1) & 1};
    call->record_count = take_signed(&input, 4);
    call->low_delta = take_signed(&input, 8);
    call->high_delta = take_signed(&input, 8);
    call->exempt_delta = take_signed(&input, 8);
    call->size = left(&input);
    flowstone_find_refused(input.at, call);
    REQUIRE(call->found_count >= 0 && call->found_count <= limit);
    free(call);
    return 0;
}
