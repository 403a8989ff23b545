/* Compaction, second pass: copies batches with only the records to keep, and builds the indexes of the result.
 *
 * Plain C11, no Python headers, no allocation, no global state: called through ctypes (compaction_native.py) with the GIL
 * released. compaction_twin.py implements the same in Python, and the tests compare the two.
 *
 * A kept record is copied unchanged, so its batch keeps its base offset and base timestamp. Only if a batch
 * gets a delete horizon, which replaces the base timestamp, are the records' timestamps rewritten.
 */

#include "compaction.h"

/* Keep equal to _FilterFields in compaction_native.py: the parameters of a whole pass. */
struct filter {
    const struct offset_map *map;
    int64_t mapped_end; /* records from here on are not mapped, and are kept */
    int64_t now_ms;
    int64_t delete_horizon_ms; /* for batches whose tombstones are compacted for the first time */
    const int64_t *kept_offsets; /* sorted; batches that end with them are kept even if empty */
    int64_t kept_offset_count;
};

/* Keep equal to _FilterBatchesCall in compaction_native.py. `position`, `next_offset` and `output_size` are updated. */
struct filter_batches_call {
    const struct filter *filter;
    int64_t position, size;
    int64_t next_offset, end_offset; /* the next batch starts at next_offset or later and ends before end_offset */
    int64_t keeps_last;      /* the last batch in the buffer is kept even if empty */
    int64_t stop_attributes; /* the caller handles a batch with any of these, unless it is kept anyway */
    uint8_t *output;
    int64_t output_capacity, output_size;
    int64_t stop, damage, needed;
};

/* Keep equal to _FilterRecordsCall in compaction_native.py: the records of one batch, decompressed, or of a marker. */
struct filter_records_call {
    const struct filter *filter;
    int64_t size, record_count, base_offset, last_offset, base_timestamp, attributes;
    int64_t is_marker; /* its record is kept and gets a delete horizon */
    uint8_t *output;
    int64_t output_capacity;
    /* Results: whether anything changed, what is left, and whether the delete horizon is the new base timestamp. */
    int64_t stop, changed, output_size, kept_count, max_timestamp, has_new_horizon;
};

/* Keep equal to _IndexBatchesCall in compaction_native.py. The entries are those of log/segments/index_pair.py. */
struct index_batches_call {
    int64_t size, base_offset, file_position, interval_bytes;
    int64_t unindexed_bytes, newest_timestamp, newest_offset, indexed_timestamp;
    uint8_t *offset_entries, *time_entries; /* capacity for an entry per batch */
    int64_t offset_entries_size, time_entries_size;
    int64_t stop; /* DAMAGED: no whole batch at file_position, or one that an entry cannot represent */
};

enum { OUTPUT_PER_INPUT_MAX = 3 }; /* a record of 7 bytes may grow by 10 when its timestamp is rewritten */
enum { OFFSET_ENTRY_BYTES = 8, TIME_ENTRY_BYTES = 12 };

/* The result of filtering a batch's records. */
struct filtered {
    uint8_t *output_end;
    int64_t kept_count, max_timestamp, tombstone_count;
};

static inline int record_stays(const struct filter *filter, int64_t offset, const struct window_record *read,
                               int keeps_tombstones) {
    if (offset >= filter->mapped_end)
        return 1;
    if (read->record.key == NULL || (!read->record.has_value && !keeps_tombstones))
        return 0;
    return offset + 1 >= find_slot(filter->map, read->hash)->offset_plus_one;
}

static inline uint8_t *write_varint(uint8_t *out, int64_t value) {
    uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    for (; raw > 0x7f; raw >>= 7)
        *out++ = (uint8_t)(raw | 0x80);
    *out++ = (uint8_t)raw;
    return out;
}

/* The record with another timestamp delta. */
static uint8_t *write_restamped(uint8_t *out, const struct window_record *read, int64_t timestamp_delta) {
    uint8_t stamp[10];
    const int64_t stamp_bytes = write_varint(stamp, timestamp_delta) - stamp;
    const int64_t rest_bytes = read->end - read->record.offset_at;
    out = write_varint(out, 1 + stamp_bytes + rest_bytes);
    *out++ = *read->body;
    memcpy(out, stamp, (size_t)stamp_bytes);
    memcpy(out + stamp_bytes, read->record.offset_at, (size_t)rest_bytes);
    return out + stamp_bytes + rest_bytes;
}

/* The output of kept records: copied in runs, or one by one with timestamps relative to *new_base. */
struct copy {
    const uint8_t *run;
    uint8_t *out;
    const int64_t *new_base;
};

static inline void copy_record(struct copy *copy, const struct window_record *read, int stays, int64_t timestamp) {
    if (copy->new_base != NULL) {
        if (stays) /* unsigned: timestamps of a compressed batch were never checked */
            copy->out = write_restamped(copy->out, read, (int64_t)((uint64_t)timestamp - (uint64_t)*copy->new_base));
    } else if (!stays) {
        memcpy(copy->out, copy->run, (size_t)(read->start - copy->run));
        copy->out += read->start - copy->run;
        copy->run = read->end;
    }
}

static inline uint8_t *end_copy(struct copy *copy, const uint8_t *end) {
    if (copy->new_base != NULL)
        return copy->out;
    memcpy(copy->out, copy->run, (size_t)(end - copy->run));
    return copy->out + (end - copy->run);
}

/* Copies the kept records; with `new_base` their timestamps are relative to it. */
static enum status filter_records(const struct filter *filter, const struct batch *batch, const uint8_t *at,
                                  const uint8_t *end, int keeps_all, const int64_t *new_base, uint8_t *out,
                                  struct filtered *filtered) {
    const int keeps_tombstones = !(batch->attributes & DELETE_HORIZON_FLAG) || filter->now_ms < batch->base_timestamp;
    struct record_walk walk = walk_records(batch, at, end);
    struct copy copy = {at, out, new_base};
    struct window window;
    *filtered = (struct filtered){.max_timestamp = NO_TIMESTAMP};
    do {
        TRY(next_window(&walk, filter->map, &window));
        for (const struct window_record *each = window.records; each < window.records + window.count; each++) {
            const int64_t offset = batch->base_offset + each->record.offset_delta;
            const int64_t timestamp = (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)each->record.timestamp_delta);
            const int stays = keeps_all || record_stays(filter, offset, each, keeps_tombstones);
            copy_record(&copy, each, stays, timestamp);
            if (!stays)
                continue;
            if (filtered->kept_count == 0 || timestamp > filtered->max_timestamp)
                filtered->max_timestamp = timestamp;
            filtered->kept_count++;
            filtered->tombstone_count += !each->record.has_value;
        }
    } while (window.count);
    filtered->output_end = end_copy(&copy, end);
    return VALID;
}

/* Filters a payload into `out`. With `is_marker` all of it is kept and gets a delete horizon. */
static enum status filter_payload(const struct filter *filter, const struct batch *batch, const uint8_t *at,
                                  const uint8_t *end, int is_marker, uint8_t *out, struct filtered *filtered,
                                  int64_t *has_new_horizon) {
    *has_new_horizon = is_marker;
    if (!is_marker) {
        TRY(filter_records(filter, batch, at, end, 0, NULL, out, filtered));
        /* A tombstone's retention starts when the records it deletes are removed: once the whole batch is mapped. */
        *has_new_horizon = filtered->tombstone_count && !(batch->attributes & DELETE_HORIZON_FLAG) &&
                           batch->last_offset < filter->mapped_end;
    }
    if (!*has_new_horizon)
        return VALID;
    return filter_records(filter, batch, at, end, is_marker, &filter->delete_horizon_ms, out, filtered);
}

static int is_kept_offset(const struct filter *filter, int64_t offset) {
    int64_t low = 0, high = filter->kept_offset_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (filter->kept_offsets[middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < filter->kept_offset_count && filter->kept_offsets[low] == offset;
}

static void seal_header(uint8_t *out, int64_t size_bytes, int attributes, int64_t base_timestamp, int64_t max_timestamp,
                        int64_t record_count) {
    put_big_endian(out + BATCH_LENGTH_AT, (uint64_t)(size_bytes - LOG_OVERHEAD), 4);
    put_big_endian(out + ATTRIBUTES_AT, (uint64_t)attributes, 2);
    put_big_endian(out + BASE_TIMESTAMP_AT, (uint64_t)base_timestamp, 8);
    put_big_endian(out + MAX_TIMESTAMP_AT, (uint64_t)max_timestamp, 8);
    put_big_endian(out + RECORD_COUNT_AT, (uint64_t)record_count, 4);
    put_big_endian(out + CRC_AT, flowstone_crc32c(out + ATTRIBUTES_AT, (size_t)(size_bytes - ATTRIBUTES_AT)), 4);
}

/* Writes the rest of a batch to `out`; *written is the number of bytes. */
static enum stop filter_batch(const struct filter_batches_call *call, const uint8_t *at, const struct batch *batch,
                              int is_last, uint8_t *out, int64_t *written) {
    const struct filter *filter = call->filter;
    struct filtered filtered = {.kept_count = 0};
    int64_t has_new_horizon = 0;
    const int stays_anyway = batch->base_offset >= filter->mapped_end;
    if (!stays_anyway && batch->attributes & call->stop_attributes)
        return TRANSACTIONAL;
    if (!stays_anyway && batch->attributes & CODEC_MASK && batch->record_count)
        return COMPRESSED;
    if (!stays_anyway && filter_payload(filter, batch, at + HEADER_BYTES, at + batch->size_bytes, 0, out + HEADER_BYTES,
                                        &filtered, &has_new_horizon) != VALID)
        return DAMAGED;
    const int stays_empty = is_last || is_kept_offset(filter, batch->last_offset);
    const int loses_nothing = filtered.kept_count == batch->record_count && !has_new_horizon;
    *written = 0;
    if (stays_anyway || (loses_nothing && (batch->record_count || stays_empty))) {
        memcpy(out, at, (size_t)batch->size_bytes);
        *written = batch->size_bytes;
    } else if (filtered.kept_count) {
        memcpy(out, at, HEADER_BYTES);
        *written = filtered.output_end - out;
        seal_header(out, *written, batch->attributes | (has_new_horizon ? DELETE_HORIZON_FLAG : 0),
                    has_new_horizon ? filter->delete_horizon_ms : batch->base_timestamp,
                    batch->attributes & LOG_APPEND_TIME_FLAG ? batch->max_timestamp : filtered.max_timestamp,
                    filtered.kept_count);
    } else if (stays_empty) {
        memcpy(out, at, HEADER_BYTES);
        *written = HEADER_BYTES;
        seal_header(out, HEADER_BYTES, batch->attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG), NO_TIMESTAMP,
                    batch->max_timestamp, 0);
    }
    return MORE;
}

void flowstone_filter_batches(const uint8_t *buffer, struct filter_batches_call *call) {
    const uint8_t *at = buffer + call->position, *end = buffer + call->size;
    struct batch batch;
    int64_t written;
    while (next_batch(at, end, call->next_offset, call->end_offset, &batch, &call->stop, &call->needed, &call->damage)) {
        const int is_last = call->keeps_last && end - at == batch.size_bytes;
        if (call->output_capacity - call->output_size < OUTPUT_PER_INPUT_MAX * batch.size_bytes) {
            call->stop = OUTPUT_FULL;
            break;
        }
        call->stop = filter_batch(call, at, &batch, is_last, call->output + call->output_size, &written);
        if (call->stop != MORE) {
            call->damage = call->stop == DAMAGED ? BAD_RECORD : NO_DAMAGE;
            break;
        }
        call->output_size += written;
        call->next_offset = batch.last_offset + 1;
        at += batch.size_bytes;
    }
    call->position = at - buffer;
}

void flowstone_filter_records(const uint8_t *payload, struct filter_records_call *call) {
    const struct batch batch = {.base_offset = call->base_offset,
                                .last_offset = call->last_offset,
                                .base_timestamp = call->base_timestamp,
                                .record_count = call->record_count,
                                .attributes = (int)call->attributes};
    struct filtered filtered;
    call->stop = OUTPUT_FULL;
    if (call->output_capacity < OUTPUT_PER_INPUT_MAX * call->size)
        return;
    enum status status = filter_payload(call->filter, &batch, payload, payload + call->size, call->is_marker != 0,
                                        call->output, &filtered, &call->has_new_horizon);
    call->stop = status == VALID ? MORE : DAMAGED;
    if (status != VALID)
        return;
    call->output_size = filtered.output_end - call->output;
    call->kept_count = filtered.kept_count;
    call->max_timestamp = filtered.max_timestamp;
    call->changed = call->has_new_horizon || filtered.kept_count != call->record_count;
}

/* Whether there is a whole batch at the position that the segment's indexes can represent. */
static int read_indexable(const uint8_t *buffer, const struct index_batches_call *call, int64_t position,
                          struct batch *batch) {
    if (call->size - position < HEADER_BYTES)
        return 0;
    read_header(buffer + position, batch);
    const uint64_t relative_offset = (uint64_t)batch->last_offset - (uint64_t)call->base_offset;
    return batch->size_bytes >= HEADER_BYTES && batch->size_bytes <= call->size - position &&
           relative_offset <= INT32_MAX && call->file_position <= INT32_MAX;
}

void flowstone_index_batches(const uint8_t *buffer, struct index_batches_call *call) {
    struct batch batch;
    call->offset_entries_size = call->time_entries_size = 0;
    call->stop = MORE;
    for (int64_t position = 0; position < call->size; position += batch.size_bytes) {
        if (!read_indexable(buffer, call, position, &batch)) {
            call->stop = DAMAGED;
            return;
        }
        if (batch.record_count && batch.max_timestamp > call->newest_timestamp) {
            call->newest_timestamp = batch.max_timestamp;
            call->newest_offset = batch.last_offset;
        }
        if (call->unindexed_bytes > call->interval_bytes) {
            uint8_t *entry = call->offset_entries + call->offset_entries_size;
            put_big_endian(entry, (uint64_t)(batch.last_offset - call->base_offset), 4);
            put_big_endian(entry + 4, (uint64_t)call->file_position, 4);
            call->offset_entries_size += OFFSET_ENTRY_BYTES;
            call->unindexed_bytes = 0;
            if (call->newest_timestamp > call->indexed_timestamp) {
                entry = call->time_entries + call->time_entries_size;
                put_big_endian(entry, (uint64_t)call->newest_timestamp, 8);
                put_big_endian(entry + 8, (uint64_t)(call->newest_offset - call->base_offset), 4);
                call->time_entries_size += TIME_ENTRY_BYTES;
                call->indexed_timestamp = call->newest_timestamp;
            }
        }
        call->unindexed_bytes += batch.size_bytes;
        call->file_position += batch.size_bytes;
    }
}
