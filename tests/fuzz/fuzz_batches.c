/* Rows of Arrow columns, as another program may hand them over, into the records of batches. */

#include "batches.c"
#include "fuzz.h"

enum { TOPICS = 2, ROUNDS_MAX = 100 };

static void *take_bytes(struct input *input, int64_t size, int shift) {
    uint8_t *area = memory(size, shift);
    for (int64_t i = 0; i < size; i++)
        area[i] = (uint8_t)take(input, 1);
    return area;
}

/* Numbers that are mostly small: offsets that lie in their data, and some that do not. */
static void *take_numbers(struct input *input, int64_t count, int bytes, int shift) {
    uint8_t *area = memory(count * bytes, shift);
    for (int64_t i = 0; i < count; i++) {
        const int64_t value = take_signed(input, 1);
        memcpy(area + i * bytes, &value, (size_t)bytes);
    }
    return area;
}

static struct binary_input take_binary(struct input *input, int64_t count, int shift) {
    const uint64_t flags = take(input, 1);
    struct binary_input column = {.is_large = flags & 1};
    if (flags & 2)
        return column;
    column.offsets = take_numbers(input, count + 1, column.is_large ? 8 : 4, shift);
    if (flags & 4)
        column.validity = take_bytes(input, (count + 7) / 8, 0);
    column.data_bytes = flags & 8 ? 0 : (int64_t)take(input, 1);
    if (column.data_bytes)
        column.data = memory(column.data_bytes, 0);
    return column;
}

static struct number_input take_number(struct input *input, int64_t count, int bytes, int shift) {
    const uint64_t flags = take(input, 1);
    struct number_input column = {0};
    if (flags & 1)
        column.values = take_numbers(input, count, bytes, shift);
    if (flags & 2)
        column.validity = take_bytes(input, (count + 7) / 8, 0);
    return column;
}

static void free_binary(struct binary_input *column, int shift) {
    if (column->offsets)
        give_back((void *)column->offsets, shift);
    free((void *)column->validity);
    free((void *)column->data);
}

static void free_number(struct number_input *column, int shift) {
    if (column->values)
        give_back((void *)column->values, shift);
    free((void *)column->validity);
}

static void build_all(struct build_call *call, int64_t row_count) {
    uint8_t *out = memory(call->capacity_bytes, 0);
    call->end = row_count;
    for (int round = 0; round < ROUNDS_MAX && call->next < row_count; round++) {
        flowstone_build_records(out, call);
        REQUIRE(call->size_bytes <= call->capacity_bytes);
        if (call->status != ROW_GOOD)
            break;
    }
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    const int64_t counts[TOPICS] = {1 + (int64_t)take(&input, 1), 3}, firsts[TOPICS] = {0, counts[0]};
    int64_t keyless[TOPICS] = {0, 1}, keyless_bytes[TOPICS] = {0, 0};
    struct spread_call spread = {.row_count = (int64_t)take(&input, 1) % 33, .topic_count = TOPICS};
    struct build_call build = {.capacity_bytes = (int64_t)take(&input, 1), .now_ms = (int64_t)take(&input, 4)};
    const int shift = (int)take(&input, 1) % 8;
    const int64_t rows = spread.row_count;
    spread.slot_count = counts[0] + counts[1];
    spread.keyless_bytes_max = (int64_t)take(&input, 2);
    spread.partition_counts = counts, spread.first_slots = firsts;
    spread.keyless_partitions = keyless, spread.keyless_bytes = keyless_bytes;
    build.key = spread.key = take_binary(&input, rows, shift);
    build.value = spread.value = take_binary(&input, rows, shift);
    spread.topic = take_number(&input, rows, 4, shift);
    spread.partition = take_number(&input, rows, 4, shift);
    build.timestamp = take_number(&input, rows, 8, shift);
    struct headers_input *headers = &build.headers;
    headers->header_count = (int64_t)take(&input, 1) % 17;
    if (headers->header_count) {
        headers->offsets = take_numbers(&input, rows + 1, 4, shift);
        headers->key = take_binary(&input, headers->header_count, shift);
        headers->value = take_binary(&input, headers->header_count, shift);
    }
    spread.slots = memory(rows * 4, 0);
    build.order = spread.order = memory(rows * 4, 0);
    spread.slot_ends = memory(spread.slot_count * 8, 0);

    flowstone_spread_rows(&spread);
    if (spread.status == ROW_GOOD)
        build_all(&build, rows);

    free_binary(&build.key, shift), free_binary(&build.value, shift);
    free_number(&spread.topic, shift), free_number(&spread.partition, shift), free_number(&build.timestamp, shift);
    if (headers->offsets)
        give_back((void *)headers->offsets, shift);
    free_binary(&headers->key, shift), free_binary(&headers->value, shift);
    free(spread.slots), free(spread.order), free(spread.slot_ends);
    return 0;
}
