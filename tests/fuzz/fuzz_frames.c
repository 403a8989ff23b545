/* The scan of compressed frames that a producer sends: lz4 and zstd. */

#include "frames.c"
#include "fuzz.h"

static void scan(void (*scan_one)(const uint8_t *, struct scan_frame_call *), const struct input *input) {
    struct scan_frame_call call = {.size = left(input)};
    scan_one(input->at, &call);
    REQUIRE(call.status >= FRAME_WHOLE && call.status <= FRAME_BAD_BLOCK);
    REQUIRE(call.frame_bytes >= 0 && call.frame_bytes <= call.size);
    REQUIRE(call.status != FRAME_WHOLE || call.content_bytes_max >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct input input = {data, data + size};
    scan(flowstone_scan_zstd_frame, &input);
    scan(flowstone_scan_lz4_frame, &input);
    return 0;
}
