/* The checksum of record batches: CRC-32C (Castagnoli). */

#ifndef FLOWSTONE_KERNEL_CRC32C_H
#define FLOWSTONE_KERNEL_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t flowstone_crc32c(const uint8_t *data, size_t size);

#endif
