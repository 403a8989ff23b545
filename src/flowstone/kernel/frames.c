/* The extent of a compressed frame, from its headers alone: its end and its maximum content. Nothing is
 * decompressed.
 *
 * The bytes come from a peer. Nothing is read outside the range a caller was given: every length is compared with the bytes
 * that are left before it is used. frames_twin.py implements the same in Python.
 */

#include <stdint.h>

/* Keep equal to FrameStatus in frames_twin.py. */
enum frame_status {
    FRAME_WHOLE = 0,
    FRAME_TRUNCATED = 1,
    FRAME_NO_MAGIC = 2,
    FRAME_SKIPPABLE = 3,
    FRAME_RESERVED_BITS = 4,
    FRAME_BAD_BLOCK = 5,
};

/* Filled and read by frames_native.py: keep the order there. */
struct scan_frame_call {
    int64_t size;
    int64_t status, frame_bytes, window_bytes, content_bytes, content_bytes_max, dictionary_id;
};

enum { ZSTD_BLOCK_BYTES_MAX = 128 << 10, ZSTD_BLOCK_HEADER_BYTES = 3, LZ4_BLOCK_HEADER_BYTES = 4, CHECKSUM_BYTES = 4 };

static uint64_t little_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int index = 0; index < bytes; index++)
        value |= (uint64_t)at[index] << (8 * index);
    return value;
}

static int is_skippable(uint64_t magic) {
    return (magic & 0xfffffff0) == 0x184d2a50;
}

/* No caller accepts a content size that does not fit. */
static int64_t within_int64(uint64_t value) {
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

static enum frame_status scan_zstd_blocks(const uint8_t *at, const uint8_t *end, int has_checksum, struct scan_frame_call *call,
                                          const uint8_t **frame_end) {
    const int64_t block_max = call->window_bytes < ZSTD_BLOCK_BYTES_MAX ? call->window_bytes : ZSTD_BLOCK_BYTES_MAX;
    for (int is_last = 0; !is_last;) {
        if (end - at < ZSTD_BLOCK_HEADER_BYTES)
            return FRAME_TRUNCATED;
        const uint64_t head = little_endian(at, ZSTD_BLOCK_HEADER_BYTES);
        at += ZSTD_BLOCK_HEADER_BYTES;
        is_last = head & 1;
        const int type = (head >> 1) & 3; /* raw, one byte repeated, compressed, reserved */
        const int64_t size = (int64_t)(head >> 3), stored = type == 1 ? 1 : size;
        if (type == 3 || size > ZSTD_BLOCK_BYTES_MAX)
            return FRAME_BAD_BLOCK;
        if (stored > end - at)
            return FRAME_TRUNCATED;
        at += stored;
        call->content_bytes_max += type == 2 ? block_max : size;
    }
    if (has_checksum) {
        if (end - at < CHECKSUM_BYTES)
            return FRAME_TRUNCATED;
        at += CHECKSUM_BYTES;
    }
    *frame_end = at;
    return FRAME_WHOLE;
}

static enum frame_status scan_zstd(const uint8_t *at, const uint8_t *end, struct scan_frame_call *call, const uint8_t **frame_end) {
    static const int dictionary_bytes[] = {0, 1, 2, 4}, content_bytes[] = {0, 2, 4, 8};
    if (end - at < 5)
        return FRAME_TRUNCATED;
    const uint64_t magic = little_endian(at, 4);
    if (is_skippable(magic))
        return FRAME_SKIPPABLE;
    if (magic != 0xfd2fb528)
        return FRAME_NO_MAGIC;
    const int descriptor = at[4], is_single_segment = (descriptor >> 5) & 1;
    const int id_bytes = dictionary_bytes[descriptor & 3];
    const int size_bytes = descriptor >> 6 ? content_bytes[descriptor >> 6] : is_single_segment;
    at += 5;
    if (descriptor & 8)
        return FRAME_RESERVED_BITS;
    if (end - at < !is_single_segment + id_bytes + size_bytes)
        return FRAME_TRUNCATED;
    if (!is_single_segment) {
        const int64_t base = INT64_C(1) << (10 + (*at >> 3));
        call->window_bytes = base + base / 8 * (*at & 7);
        at++;
    }
    call->dictionary_id = (int64_t)little_endian(at, id_bytes);
    at += id_bytes;
    if (size_bytes)
        call->content_bytes = within_int64(little_endian(at, size_bytes) + (size_bytes == 2 ? 256 : 0));
    at += size_bytes;
    if (is_single_segment)
        call->window_bytes = call->content_bytes;
    return scan_zstd_blocks(at, end, descriptor & 4, call, frame_end);
}

static enum frame_status scan_lz4(const uint8_t *at, const uint8_t *end, struct scan_frame_call *call, const uint8_t **frame_end) {
    if (end - at < 7)
        return FRAME_TRUNCATED;
    const uint64_t magic = little_endian(at, 4);
    if (is_skippable(magic))
        return FRAME_SKIPPABLE;
    if (magic != 0x184d2204)
        return FRAME_NO_MAGIC;
    const int flags = at[4], sizes = at[5], has_content_size = (flags >> 3) & 1, has_dictionary = flags & 1;
    if ((flags & 0xc2) != 0x40 || sizes & 0x8f || sizes < 0x40)
        return FRAME_RESERVED_BITS;
    const int64_t block_max = INT64_C(1) << (8 + 2 * (sizes >> 4));
    const int block_checksum_bytes = flags & 0x10 ? CHECKSUM_BYTES : 0, content_checksum_bytes = flags & 4 ? CHECKSUM_BYTES : 0;
    at += 6;
    if (end - at < 8 * has_content_size + 4 * has_dictionary + 1)
        return FRAME_TRUNCATED;
    call->window_bytes = block_max;
    if (has_content_size) {
        call->content_bytes = within_int64(little_endian(at, 8));
        at += 8;
    }
    if (has_dictionary) {
        call->dictionary_id = (int64_t)little_endian(at, 4);
        at += 4;
    }
    at++; /* the header's checksum, which the decoder verifies */
    for (;;) {
        if (end - at < LZ4_BLOCK_HEADER_BYTES)
            return FRAME_TRUNCATED;
        const int64_t head = (int64_t)little_endian(at, LZ4_BLOCK_HEADER_BYTES), size = head & 0x7fffffff;
        at += LZ4_BLOCK_HEADER_BYTES;
        if (!head)
            break;
        if (size > block_max)
            return FRAME_BAD_BLOCK;
        if (size + block_checksum_bytes > end - at)
            return FRAME_TRUNCATED;
        at += size + block_checksum_bytes;
        call->content_bytes_max += head >> 31 ? size : block_max;
    }
    if (end - at < content_checksum_bytes)
        return FRAME_TRUNCATED;
    *frame_end = at + content_checksum_bytes;
    return FRAME_WHOLE;
}

typedef enum frame_status scanner(const uint8_t *, const uint8_t *, struct scan_frame_call *, const uint8_t **);

static void scan_frame(scanner *scan, const uint8_t *buffer, struct scan_frame_call *call) {
    const uint8_t *frame_end = buffer;
    call->window_bytes = call->content_bytes_max = call->dictionary_id = 0;
    call->content_bytes = -1;
    call->status = scan(buffer, buffer + call->size, call, &frame_end);
    call->frame_bytes = frame_end - buffer;
}

void flowstone_scan_zstd_frame(const uint8_t *buffer, struct scan_frame_call *call) {
    scan_frame(scan_zstd, buffer, call);
}

void flowstone_scan_lz4_frame(const uint8_t *buffer, struct scan_frame_call *call) {
    scan_frame(scan_lz4, buffer, call);
}
