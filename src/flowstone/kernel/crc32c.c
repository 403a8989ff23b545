/* CRC-32C: with the processor's instruction if it has one, else eight table lookups per eight bytes.
 *
 * The tables are filled when the library is loaded and never change after that, so any thread may call.
 */

#include "crc32c.h"

#include <string.h>

enum { TABLES = 8, REFLECTED_POLYNOMIAL = 0x82f63b78 };

static uint32_t tables[TABLES][256];

__attribute__((constructor)) static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? (uint32_t)REFLECTED_POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < TABLES; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][before & 0xff];
        }
}

static uint32_t update_by_tables(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; size; size--, data++)
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xff];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t update_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t wide = crc, word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size; size--, data++)
        crc = __builtin_ia32_crc32qi(crc, *data);
    return crc;
}
#endif

uint32_t flowstone_crc32c(const uint8_t *data, size_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~update_by_instruction(~0u, data, size);
#endif
    return ~update_by_tables(~0u, data, size);
}
