/* The hashes of the keys of a batch, which may be damaged. */

#include <stdlib.h>

#include "fuzz.h"
#include "key_hashes.c"
#include "key_map.c"

enum { RECORD_BYTES_MIN = 5 }; /* as stored_records_native.py has it, which bounds the count of records */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint64_t seed[2] = {1, 2};
    struct input input = {data, data + size};
    struct hash_keys_call call = {.record_count = take_signed(&input, 4), .seed = seed};
    call.size = left(&input);
    if (call.record_count < 0 || call.record_count > call.size / RECORD_BYTES_MIN)
        call.record_count = call.size / RECORD_BYTES_MIN;
    call.deltas = malloc((size_t)call.record_count * sizeof *call.deltas + 1);
    call.hashes = malloc((size_t)call.record_count * sizeof *call.hashes + 1);
    flowstone_hash_keys(input.at, &call);
    REQUIRE(call.status >= VALID && call.status <= TRAILING_BYTES);
    free(call.deltas);
    free(call.hashes);
    return 0;
}
