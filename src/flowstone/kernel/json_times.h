/* Dates and times in the plain forms of ISO 8601, for json_rows.c, which includes it once. Other forms return 0. */

#include <stdint.h>

enum { DATE_BYTES = 10, TIME_BYTES = 19, FRACTION_DIGITS_MAX = 6, ZONE_HOURS_MAX = 17 };

static int digits_at(const uint8_t *text, int count, int64_t *value) {
    *value = 0;
    for (int index = 0; index < count; index++) {
        if (text[index] < '0' || text[index] > '9')
            return 0;
        *value = *value * 10 + (text[index] - '0');
    }
    return 1;
}

static int64_t month_days(int64_t year, int64_t month) {
    static const uint8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const int is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && is_leap);
}

/* Days since 1970-01-01, in years that begin in March, so that a leap day is the last one. */
static int64_t days_since_epoch(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    const int64_t era = year / 400, of_era = year % 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static int days_of(const uint8_t *text, int64_t *days) {
    int64_t year, month, day;
    if (!digits_at(text, 4, &year) || !digits_at(text + 5, 2, &month) || !digits_at(text + 8, 2, &day))
        return 0;
    if (text[4] != '-' || text[7] != '-' || year < 1 || month < 1 || month > 12 || day < 1 || day > month_days(year, month))
        return 0;
    *days = days_since_epoch(year, month, day);
    return 1;
}

/* YYYY-MM-DD */
static int date_of(const uint8_t *text, int64_t size, int32_t *value) {
    int64_t days;
    if (size != DATE_BYTES || !days_of(text, &days))
        return 0;
    *value = (int32_t)days;
    return 1;
}

/* Z, +HH:MM, or nothing where UTC is assumed. */
static int zone_seconds(const uint8_t *text, int64_t size, int assumes_utc, int64_t *seconds) {
    int64_t hours, minutes;
    *seconds = 0;
    if (size == 0)
        return assumes_utc;
    if (size == 1)
        return text[0] == 'Z';
    if (size != 6 || (text[0] != '+' && text[0] != '-') || text[3] != ':')
        return 0;
    if (!digits_at(text + 1, 2, &hours) || !digits_at(text + 4, 2, &minutes) || hours > ZONE_HOURS_MAX || minutes > 59)
        return 0;
    *seconds = (hours * 60 + minutes) * (text[0] == '-' ? -60 : 60);
    return 1;
}

/* YYYY-MM-DD, T or a space, HH:MM:SS, perhaps a fraction, a zone: in microseconds since 1970 in UTC. */
static int timestamp_of(const uint8_t *text, int64_t size, int64_t assumes_utc, int64_t *value) {
    int64_t days, hour, minute, second, fraction = 0, zone;
    if (size < TIME_BYTES || !days_of(text, &days) || (text[10] != 'T' && text[10] != ' '))
        return 0;
    if (!digits_at(text + 11, 2, &hour) || !digits_at(text + 14, 2, &minute) || !digits_at(text + 17, 2, &second))
        return 0;
    if (text[13] != ':' || text[16] != ':' || hour > 23 || minute > 59 || second > 59)
        return 0;
    int64_t at = TIME_BYTES;
    if (at < size && text[at] == '.') {
        int digits = 0;
        for (at++; at < size && text[at] >= '0' && text[at] <= '9' && digits <= FRACTION_DIGITS_MAX; at++, digits++)
            fraction = fraction * 10 + (text[at] - '0');
        if (digits == 0 || digits > FRACTION_DIGITS_MAX)
            return 0;
        for (; digits < FRACTION_DIGITS_MAX; digits++)
            fraction *= 10;
    }
    if (!zone_seconds(text + at, size - at, (int)assumes_utc, &zone))
        return 0;
    *value = (((days * 24 + hour) * 60 + minute) * 60 + second - zone) * 1000000 + fraction;
    return 1;
}
