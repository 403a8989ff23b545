/* JSON values into a column of each kind, named a to j; two values, split anywhere. */

#include "fuzz.h"
#include "json_rows.c"

enum { KINDS = JSON_TIMESTAMP + 1, ROWS = 2, WIDEST_BYTES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    const uint64_t flags = take(&input, 1), split = take(&input, 2);
    const int64_t text_bytes = left(&input);
    uint8_t *text = memory(text_bytes, 0), *names = memory(KINDS, 0);
    memcpy(text, input.at, (size_t)text_bytes);
    int32_t offsets[ROWS + 1] = {0, (int32_t)(split % (uint64_t)(text_bytes + 1)), (int32_t)text_bytes};
    struct json_column *columns = memory(KINDS * sizeof *columns, 0);
    for (int kind = 0; kind < KINDS; kind++) {
        names[kind] = (uint8_t)('a' + kind);
        columns[kind] = (struct json_column){.kind = kind, .precision = 8 + 30 * (int64_t)(flags & 1), .scale = 2, .name_size = 1,
                                             .is_required = kind == 0 && flags & 2, .name = names + kind};
        columns[kind].validity = memory(1, 0);
        columns[kind].values = memory(kind == JSON_STRING ? (ROWS + 1) * 4 : ROWS * WIDEST_BYTES, 0);
        columns[kind].strings = memory(text_bytes, 0);
    }
    uint8_t *decoded = memory(1, 0);
    struct decode_json_call call = {.row_count = ROWS, .column_count = KINDS, .assumes_utc = (int64_t)(flags & 4), .offsets = offsets,
                                    .data = text, .decoded = decoded, .columns = columns};
    flowstone_decode_json(&call);
    REQUIRE(call.decoded_count == has_bit(decoded, 0) + has_bit(decoded, 1));
    REQUIRE(columns[JSON_STRING].size_bytes <= text_bytes);
    for (int kind = 0; kind < KINDS; kind++) {
        REQUIRE(has_bit(decoded, 0) || !has_bit(columns[kind].validity, 0));
        free(columns[kind].validity);
        free(columns[kind].values);
        free(columns[kind].strings);
    }
    free(columns);
    free(decoded);
    free(names);
    free(text);
    return 0;
}
