/* Reading of JSON's tokens by its strict grammar, for json_rows.c, which includes it once.
 *
 * A function returns 0 for anything that is not plainly right, and may then have moved the position. Nothing is read at
 * or after `end`.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS_MAX = 1024,
    DEPTH_MAX = 64,
    NUMBER_BYTES_MAX = 64,
    STRING_BYTES_MAX = 1 << 20,
    NAME_BYTES_MAX = 50000, /* Spark's parser refuses longer names */
    MANTISSA_DIGITS_MAX = 18,
    EXPONENT_MAX = 250,
};

static inline void skip_space(const uint8_t **at, const uint8_t *end) {
    while (*at < end && (**at == ' ' || **at == '\n' || **at == '\r' || **at == '\t'))
        ++*at;
}

/* One character of the grammar and the space after it. */
static inline int skip_mark(const uint8_t **at, const uint8_t *end, uint8_t mark) {
    skip_space(at, end);
    if (*at == end || **at != mark)
        return 0;
    ++*at;
    skip_space(at, end);
    return 1;
}

static int skip_word(const uint8_t **at, const uint8_t *end, const char *word, int64_t size) {
    if (end - *at < size || memcmp(*at, word, (size_t)size) != 0)
        return 0;
    *at += size;
    return 1;
}

static inline int is_continuation(uint8_t byte) {
    return (byte & 0xc0) == 0x80;
}

/* Return the size of the character of several bytes at `at`, or 0: overlong forms and surrogates are no UTF-8. */
static int utf8_size(const uint8_t *at, const uint8_t *end) {
    const int64_t left = end - at;
    if (at[0] >= 0xc2 && at[0] <= 0xdf)
        return left >= 2 && is_continuation(at[1]) ? 2 : 0;
    if (at[0] >= 0xe0 && at[0] <= 0xef) {
        const uint8_t low = at[0] == 0xe0 ? 0xa0 : 0x80, high = at[0] == 0xed ? 0x9f : 0xbf;
        return left >= 3 && at[1] >= low && at[1] <= high && is_continuation(at[2]) ? 3 : 0;
    }
    if (at[0] >= 0xf0 && at[0] <= 0xf4) {
        const uint8_t low = at[0] == 0xf0 ? 0x90 : 0x80, high = at[0] == 0xf4 ? 0x8f : 0xbf;
        return left >= 4 && at[1] >= low && at[1] <= high && is_continuation(at[2]) && is_continuation(at[3]) ? 4 : 0;
    }
    return 0;
}

/* Skip characters that stand for themselves, up to a quote or a backslash. */
static int skip_plain(const uint8_t **at, const uint8_t *end) {
    const uint8_t *here = *at;
    while (here < end && *here != '"' && *here != '\\') {
        if (*here < 0x20)
            return 0;
        const int size = *here < 0x80 ? 1 : utf8_size(here, end);
        if (!size)
            return 0;
        here += size;
    }
    *at = here;
    return here < end;
}

/* A field's name, or another short string, without escapes. */
static int skip_plain_string(const uint8_t **at, const uint8_t *end, const uint8_t **text, int64_t *size) {
    if (*at == end || **at != '"')
        return 0;
    *text = ++*at;
    if (!skip_plain(at, end) || **at != '"')
        return 0;
    *size = *at - *text;
    ++*at;
    return *size <= NAME_BYTES_MAX;
}

static int hex_of(const uint8_t **at, const uint8_t *end, uint32_t *code) {
    if (end - *at < 4)
        return 0;
    *code = 0;
    for (int index = 0; index < 4; index++) {
        const uint8_t byte = *(*at)++, lower = byte | 0x20;
        if (byte >= '0' && byte <= '9')
            *code = *code << 4 | (uint32_t)(byte - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return 0;
    }
    return 1;
}

static int64_t put_utf8(uint8_t *out, uint32_t code) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    const int size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int index = size - 1; index > 0; index--, code >>= 6)
        out[index] = (uint8_t)(0x80 | (code & 0x3f));
    out[0] = (uint8_t)(0xf00 >> size | code);
    return size;
}

/* \u and four digits, or two of them for a character of two surrogates. */
static int read_unicode_escape(const uint8_t **at, const uint8_t *end, uint32_t *code) {
    if (!hex_of(at, end, code))
        return 0;
    if (*code < 0xd800 || *code > 0xdfff)
        return 1;
    uint32_t second;
    if (*code > 0xdbff || !skip_word(at, end, "\\u", 2) || !hex_of(at, end, &second) || second < 0xdc00 || second > 0xdfff)
        return 0;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (second - 0xdc00);
    return 1;
}

static int read_escape(const uint8_t **at, const uint8_t *end, uint8_t *out, int64_t *size) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (*at == end)
        return 0;
    const uint8_t letter = *(*at)++;
    if (letter == 'u') {
        uint32_t code;
        if (!read_unicode_escape(at, end, &code))
            return 0;
        *size += put_utf8(out + *size, code);
        return 1;
    }
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (!found)
        return 0;
    out[(*size)++] = (uint8_t)meant[found - letters];
    return 1;
}

/* Read a string to `out + *size` and add its size. It is never longer there than in the JSON. */
static int read_string(const uint8_t **at, const uint8_t *end, uint8_t *out, int64_t *size) {
    if (*at == end || **at != '"')
        return 0;
    const uint8_t *first = ++*at;
    for (;;) {
        const uint8_t *from = *at;
        if (!skip_plain(at, end))
            return 0;
        memcpy(out + *size, from, (size_t)(*at - from));
        *size += *at - from;
        if (*(*at)++ == '"')
            return *at - first <= STRING_BYTES_MAX;
        if (!read_escape(at, end, out, size))
            return 0;
    }
}

static int skip_string(const uint8_t **at, const uint8_t *end) {
    const uint8_t *first = ++*at;
    for (;;) {
        uint8_t ignored[4];
        int64_t size = 0;
        if (!skip_plain(at, end))
            return 0;
        if (*(*at)++ == '"')
            return *at - first <= STRING_BYTES_MAX;
        if (!read_escape(at, end, ignored, &size))
            return 0;
    }
}

/* A number as its digits: mantissa without point, how many of them are after it, the exponent. */
struct json_number {
    const uint8_t *text;
    int64_t size, mantissa, digits, fraction_digits, exponent;
    int is_negative, has_fraction, has_exponent;
    int is_exact; /* the mantissa has all digits */
};

static int read_digits(const uint8_t **at, const uint8_t *end, struct json_number *number, int is_fraction) {
    const uint8_t *first = *at;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        if (number->digits || **at != '0')
            number->digits++;
        if (number->digits > MANTISSA_DIGITS_MAX)
            number->is_exact = 0;
        else
            number->mantissa = number->mantissa * 10 + (**at - '0');
        number->fraction_digits += is_fraction;
    }
    return *at > first;
}

static int read_exponent(const uint8_t **at, const uint8_t *end, struct json_number *number) {
    const int is_negative = *at < end && **at == '-';
    if (*at < end && (**at == '-' || **at == '+'))
        ++*at;
    const uint8_t *first = *at;
    for (; *at < end && **at >= '0' && **at <= '9' && number->exponent <= EXPONENT_MAX; ++*at)
        number->exponent = number->exponent * 10 + (**at - '0');
    const int is_read = *at > first && number->exponent <= EXPONENT_MAX;
    if (is_negative)
        number->exponent = -number->exponent;
    return is_read;
}

static int read_number(const uint8_t **at, const uint8_t *end, struct json_number *number) {
    *number = (struct json_number){.text = *at, .is_exact = 1};
    if (*at < end && **at == '-') {
        number->is_negative = 1;
        ++*at;
    }
    const uint8_t *first = *at;
    if (!read_digits(at, end, number, 0) || (*first == '0' && *at - first > 1))
        return 0;
    if (*at < end && **at == '.') {
        ++*at;
        number->has_fraction = 1;
        if (!read_digits(at, end, number, 1))
            return 0;
    }
    if (*at < end && (**at == 'e' || **at == 'E')) {
        ++*at;
        number->has_exponent = 1;
        if (!read_exponent(at, end, number))
            return 0;
    }
    number->size = *at - number->text;
    return number->size < NUMBER_BYTES_MAX;
}

/* The nearest double: a quotient or product of two exact ones is rounded once. The library reads all others. */
static int double_of(const struct json_number *number, double *value) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const int64_t exponent = number->exponent - number->fraction_digits;
    if (number->is_exact && number->digits <= 15 && exponent >= -22 && exponent <= 22) {
        const double exact = (double)number->mantissa;
        *value = exponent < 0 ? exact / powers[-exponent] : exact * powers[exponent];
        /* A zero without point is an integer, which has no sign. */
        if (number->is_negative && (number->mantissa || number->has_fraction || number->has_exponent))
            *value = -*value;
        return 1;
    }
    if (!number->has_fraction && !number->has_exponent)
        return 0;
    char text[NUMBER_BYTES_MAX], *last;
    memcpy(text, number->text, (size_t)number->size);
    text[number->size] = 0;
    *value = strtod(text, &last);
    return last == text + number->size; /* another decimal point than JSON's ends it early */
}

/* The bits of `kinds` say which brackets are open, 1 for an object. */
static int skip_value(const uint8_t **at, const uint8_t *end) {
    struct json_number number;
    const uint8_t *name;
    int64_t size;
    uint64_t kinds = 0;
    int depth = 0;
    for (;;) {
        if (*at == end)
            return 0;
        int is_opened = 0;
        if (**at == '"') {
            if (!skip_string(at, end))
                return 0;
        } else if (**at == '{' || **at == '[') {
            const int is_object = **at == '{';
            if (++depth > DEPTH_MAX)
                return 0;
            kinds = kinds << 1 | (uint64_t)is_object;
            skip_mark(at, end, **at);
            is_opened = *at < end && **at != (is_object ? '}' : ']');
        } else if (!skip_word(at, end, "true", 4) && !skip_word(at, end, "false", 5) && !skip_word(at, end, "null", 4) &&
                   !read_number(at, end, &number)) {
            return 0;
        }
        /* Close what ends here, and go on to the next element of what does not. */
        while (depth && !is_opened) {
            if (skip_mark(at, end, ','))
                is_opened = 1;
            else if (skip_mark(at, end, kinds & 1 ? '}' : ']'))
                depth--, kinds >>= 1;
            else
                return 0;
        }
        if (!depth)
            return 1;
        if (kinds & 1 && (!skip_plain_string(at, end, &name, &size) || !skip_mark(at, end, ':')))
            return 0;
    }
}
