/* Decoding of JSON objects, one for each value of a binary column, into columns in Arrow's layout.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (json_arrow.py, of pipelines) with the GIL
 * released.
 *
 * Only values whose meaning is beyond doubt are decoded: exactly one JSON object by the strict grammar, in valid UTF-8,
 * whose fields for the columns have the plain form of their types and occur once. Every other value is left to the
 * caller, whether it is bad or only unusual, and its row is null in all columns. The columns' capacities follow from the
 * values: a string is never longer than its JSON text.
 */

#include <string.h>

#include "json_scan.h"
#include "json_times.h"

/* Keep equal to JsonKind in json_arrow.py. */
enum json_kind {
    JSON_STRING = 0,
    JSON_BOOLEAN = 1,
    JSON_INT8 = 2,
    JSON_INT16 = 3,
    JSON_INT32 = 4,
    JSON_INT64 = 5,
    JSON_DOUBLE = 6,
    JSON_DECIMAL = 7,
    JSON_DATE = 8,
    JSON_TIMESTAMP = 9,
};

/* Keep equal to _JsonColumn in json_arrow.py. */
struct json_column {
    int64_t kind, is_required, precision, scale;
    int64_t name_size;
    const uint8_t *name;
    uint8_t *validity;
    void *values;     /* of the fixed width of the kind; bits for booleans; offsets for strings */
    uint8_t *strings; /* the bytes of strings */
    int64_t size_bytes; /* of strings */
};

/* Keep equal to _JsonCall in json_arrow.py. */
struct decode_json_call {
    int64_t row_count, column_count, assumes_utc;
    const int32_t *offsets;
    const uint8_t *data;
    uint8_t *decoded; /* bits: which values were decoded */
    struct json_column *columns;
    int64_t decoded_count;
};

static void set_bit(uint8_t *bits, int64_t index, int is_set) {
    const uint8_t mask = (uint8_t)(1 << (index & 7));
    bits[index >> 3] = (uint8_t)(is_set ? bits[index >> 3] | mask : bits[index >> 3] & ~mask);
}

static int has_bit(const uint8_t *bits, int64_t index) {
    return bits[index >> 3] >> (index & 7) & 1;
}

static int store_integer(const struct json_column *column, int64_t row, int64_t value) {
    switch (column->kind) {
    case JSON_INT8:
        ((int8_t *)column->values)[row] = (int8_t)value;
        return value >= INT8_MIN && value <= INT8_MAX;
    case JSON_INT16:
        ((int16_t *)column->values)[row] = (int16_t)value;
        return value >= INT16_MIN && value <= INT16_MAX;
    case JSON_INT32:
        ((int32_t *)column->values)[row] = (int32_t)value;
        return value >= INT32_MIN && value <= INT32_MAX;
    default:
        ((int64_t *)column->values)[row] = value;
        return 1;
    }
}

/* Decimals are 128 bits wide, low half first. */
static int store_decimal(const struct json_column *column, int64_t row, const struct json_number *number) {
    int64_t unscaled = number->mantissa, places = column->scale - number->fraction_digits;
    if (number->has_exponent || places < 0 || number->digits + places > MANTISSA_DIGITS_MAX)
        return 0;
    for (; places; places--)
        unscaled *= 10;
    int64_t limit = 1;
    for (int64_t left = column->precision < MANTISSA_DIGITS_MAX ? column->precision : MANTISSA_DIGITS_MAX; left; left--)
        limit *= 10;
    if (unscaled >= limit)
        return 0;
    int64_t *halves = (int64_t *)column->values + 2 * row;
    halves[0] = number->is_negative ? -unscaled : unscaled;
    halves[1] = halves[0] < 0 ? -1 : 0;
    return 1;
}

static int store_number(const struct json_column *column, int64_t row, const struct json_number *number) {
    if (column->kind == JSON_DECIMAL)
        return number->is_exact && store_decimal(column, row, number);
    if (column->kind == JSON_DOUBLE)
        return double_of(number, (double *)column->values + row);
    if (!number->is_exact || number->fraction_digits || number->has_fraction || number->has_exponent)
        return 0;
    return store_integer(column, row, number->is_negative ? -number->mantissa : number->mantissa);
}

static int store_time(const struct decode_json_call *call, const struct json_column *column, int64_t row,
                      const uint8_t *text, int64_t size) {
    if (column->kind == JSON_DATE)
        return date_of(text, size, (int32_t *)column->values + row);
    return timestamp_of(text, size, call->assumes_utc, (int64_t *)column->values + row);
}

/* A field's value that belongs to a column. */
static int read_column(const struct decode_json_call *call, struct json_column *column, int64_t row, const uint8_t **at,
                       const uint8_t *end) {
    if (skip_word(at, end, "null", 4))
        return !column->is_required;
    set_bit(column->validity, row, 1);
    if (column->kind == JSON_STRING)
        return read_string(at, end, column->strings, &column->size_bytes);
    if (column->kind == JSON_BOOLEAN) {
        const int is_true = skip_word(at, end, "true", 4);
        set_bit(column->values, row, is_true);
        return is_true || skip_word(at, end, "false", 5);
    }
    if (column->kind == JSON_DATE || column->kind == JSON_TIMESTAMP) {
        const uint8_t *text;
        int64_t size;
        return skip_plain_string(at, end, &text, &size) && store_time(call, column, row, text, size);
    }
    struct json_number number;
    return read_number(at, end, &number) && store_number(column, row, &number);
}

/* Fields mostly come in the order of the columns: the search begins at `expected`. */
static struct json_column *column_of(const struct decode_json_call *call, const uint8_t *name, int64_t size,
                                     int64_t *expected) {
    for (int64_t tried = 0; tried < call->column_count; tried++) {
        const int64_t index = *expected < call->column_count ? *expected : 0;
        struct json_column *column = call->columns + index;
        *expected = index + 1;
        if (column->name_size == size && !memcmp(column->name, name, (size_t)size))
            return column;
    }
    return NULL;
}

static int read_member(const struct decode_json_call *call, int64_t row, const uint8_t **at, const uint8_t *end,
                       int64_t *expected, uint64_t *seen) {
    const uint8_t *name;
    int64_t size;
    if (!skip_plain_string(at, end, &name, &size) || !skip_mark(at, end, ':'))
        return 0;
    const int64_t before = *expected;
    struct json_column *column = column_of(call, name, size, expected);
    if (!column) {
        *expected = before;
        return skip_value(at, end);
    }
    const int64_t index = column - call->columns;
    if (seen[index >> 6] >> (index & 63) & 1)
        return 0; /* twice: which one counts is the caller's business */
    seen[index >> 6] |= UINT64_C(1) << (index & 63);
    return read_column(call, column, row, at, end);
}

static int has_required(const struct decode_json_call *call, int64_t row) {
    for (int64_t index = 0; index < call->column_count; index++)
        if (call->columns[index].is_required && !has_bit(call->columns[index].validity, row))
            return 0;
    return 1;
}

static int read_object(const struct decode_json_call *call, int64_t row, const uint8_t *at, const uint8_t *end) {
    uint64_t seen[COLUMNS_MAX / 64] = {0};
    int64_t expected = 0;
    skip_space(&at, end);
    if (!skip_mark(&at, end, '{'))
        return 0;
    if (!skip_mark(&at, end, '}')) {
        do {
            if (!read_member(call, row, &at, end, &expected, seen))
                return 0;
            skip_space(&at, end);
        } while (skip_mark(&at, end, ','));
        if (!skip_mark(&at, end, '}'))
            return 0;
    }
    return at == end && has_required(call, row);
}

static void begin_row(const struct decode_json_call *call, int64_t row) {
    for (int64_t index = 0; index < call->column_count; index++) {
        const struct json_column *column = call->columns + index;
        set_bit(column->validity, row, 0);
        if (column->kind == JSON_STRING)
            ((int32_t *)column->values)[row] = (int32_t)column->size_bytes;
    }
}

/* Make a row null whose value was not decoded, or only in part. */
static void undo_row(const struct decode_json_call *call, int64_t row) {
    for (int64_t index = 0; index < call->column_count; index++) {
        struct json_column *column = call->columns + index;
        set_bit(column->validity, row, 0);
        if (column->kind == JSON_STRING)
            column->size_bytes = ((int32_t *)column->values)[row];
    }
}

/* The fixed-width values of null rows are left as they are: the caller provides zeroed memory. */
void flowstone_decode_json(struct decode_json_call *call) {
    call->decoded_count = 0;
    for (int64_t row = 0; row < call->row_count; row++) {
        begin_row(call, row);
        const int is_decoded = read_object(call, row, call->data + call->offsets[row], call->data + call->offsets[row + 1]);
        if (!is_decoded)
            undo_row(call, row);
        set_bit(call->decoded, row, is_decoded);
        call->decoded_count += is_decoded;
    }
    for (int64_t index = 0; index < call->column_count; index++)
        if (call->columns[index].kind == JSON_STRING)
            ((int32_t *)call->columns[index].values)[call->row_count] = (int32_t)call->columns[index].size_bytes;
}
