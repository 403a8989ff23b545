/* Records into Arrow columns of any capacity, begun again when one is full as the reader does. */

#include "columns.c"
#include "fuzz.h"

enum { ROUNDS_MAX = 100 };

static struct binary_column new_column(int64_t values, int64_t capacity_bytes) {
    return (struct binary_column){.offsets = memory((values + 1) * 4, 0),
                                  .validity = memory((values + 7) / 8, 0),
                                  .data = memory(capacity_bytes, 0),
                                  .capacity_bytes = capacity_bytes};
}

static void free_column(struct binary_column *column) {
    free(column->offsets);
    free(column->validity);
    free(column->data);
}

static void empty(struct decode_columns_call *call) {
    struct binary_column *columns[] = {&call->key, &call->value, &call->header_key, &call->header_value};
    for (int i = 0; i < 4; i++)
        columns[i]->size_bytes = columns[i]->null_count = 0;
    call->row_count = call->header_count = call->rows_without_headers = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    struct decode_columns_call call = {.last_delta = -1, .end_offset = INT64_MAX};
    call.record_count = take_signed(&input, 2);
    call.base_offset = (int64_t)take(&input, 4);
    call.last_offset_delta = (int64_t)take(&input, 2);
    call.base_timestamp = take_signed(&input, 8);
    call.uses_log_append_time = take(&input, 1) & 1;
    call.start_offset = (int64_t)take(&input, 4);
    const uint64_t wanted = take(&input, 1);
    call.row_capacity = 1 + (int64_t)take(&input, 1);
    call.header_capacity = (int64_t)take(&input, 1);
    if (wanted & 1)
        call.key = new_column(call.row_capacity, (int64_t)take(&input, 1));
    if (wanted & 2)
        call.value = new_column(call.row_capacity, (int64_t)take(&input, 1));
    if (wanted & 4)
        call.offsets = memory(call.row_capacity * 8, 0);
    if (wanted & 8)
        call.timestamps = memory(call.row_capacity * 8, 0);
    if (wanted & 16) {
        call.header_offsets = memory((call.row_capacity + 1) * 4, 0);
        call.header_validity = memory((call.row_capacity + 7) / 8, 0);
        call.header_key = new_column(call.header_capacity, (int64_t)take(&input, 1));
        call.header_value = new_column(call.header_capacity, (int64_t)take(&input, 1));
    }
    call.size = left(&input);
    for (int round = 0; round < ROUNDS_MAX; round++) {
        flowstone_decode_columns(input.at, &call);
        REQUIRE(call.row_count <= call.row_capacity && call.position <= call.size);
        if (call.full == NOT_FULL || call.row_count == 0)
            break;
        empty(&call);
    }
    struct binary_column *columns[] = {&call.key, &call.value, &call.header_key, &call.header_value};
    for (int i = 0; i < 4; i++)
        free_column(columns[i]);
    free(call.offsets);
    free(call.timestamps);
    free(call.header_offsets);
    free(call.header_validity);
    return 0;
}
