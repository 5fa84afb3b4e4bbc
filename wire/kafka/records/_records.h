/* How a batch's records are walked: shared by _walk.c, for which wire/kafka/records/walk.py says what
 * is found, and by ../_produce.c. Includes nothing of Python's.
 *
 * No byte outside of [data, data + size) is read: every length is compared with what is left before
 * it is used.
 */

#ifndef QUIRE_RECORDS_H
#define QUIRE_RECORDS_H

#include <stddef.h>
#include <stdint.h>

/* As in walk.py: the numbers are one enumeration. */
enum {
    WHOLE,
    CUT_SHORT,
    LONG_VARINT,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_KEY,
    BAD_VALUE,
    BAD_HEADERS,
    LEFT_OVER
};

#define BLAMED_MAX 500

typedef struct {
    const uint8_t *at, *end;
} Cursor;

typedef struct {
    int fault;
    ptrdiff_t index, position, late, keyless, blamed_count;
    int64_t max_timestamp, min_timestamp;
    ptrdiff_t blamed[BLAMED_MAX];
} Walked;

/* A zigzag varint of at most `bits` bits: WHOLE, CUT_SHORT or LONG_VARINT. */
static inline int read_varint(Cursor *cursor, unsigned bits, int64_t *value)
{
    const uint8_t *at = cursor->at;
    if (at == cursor->end)
        return CUT_SHORT;
    uint64_t raw = *at++;
    if (raw >= 0x80) {
        unsigned shift = 7;
        uint64_t byte;
        raw &= 0x7f;
        do {
            if (shift >= bits)
                return LONG_VARINT;
            if (at == cursor->end)
                return CUT_SHORT;
            byte = *at++;
            if (shift + 7 > bits && (byte & 0x7f) >> (bits - shift))
                return LONG_VARINT;
            raw |= (byte & 0x7f) << shift;
            shift += 7;
        } while (byte >= 0x80);
    }
    cursor->at = at;
    *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return WHOLE;
}

/* Steps over a length and as many bytes; -1 is null, and `*is_null` tells. */
static inline int skip_bytes(Cursor *cursor, int *is_null, int fault)
{
    int64_t size;
    int status = read_varint(cursor, 32, &size);
    if (status)
        return status;
    *is_null = size == -1;
    if (size < -1)
        return fault;
    if (size > 0) {
        if (size > cursor->end - cursor->at)
            return fault;
        cursor->at += size;
    }
    return WHOLE;
}

static inline int skip_headers(Cursor *cursor)
{
    int64_t count;
    int status, is_null;
    if (cursor->at != cursor->end && *cursor->at == 0) {
        cursor->at++;
        return WHOLE;
    }
    if ((status = read_varint(cursor, 32, &count)))
        return status;
    if (count < 0)
        return BAD_HEADERS;
    for (; count; count--) {
        if ((status = skip_bytes(cursor, &is_null, BAD_HEADERS)))
            return status;
        if (is_null)
            return BAD_HEADERS;
        if ((status = skip_bytes(cursor, &is_null, BAD_HEADERS)))
            return status;
    }
    return WHOLE;
}

/* One record, which begins at the cursor: its key and its timestamp's delta. */
static inline int walk_record(Cursor *batch, int64_t index, int64_t *delta, int *is_keyless)
{
    int64_t length, offset_delta;
    int status, is_null;
    if ((status = read_varint(batch, 32, &length)))
        return status;
    if (length < 1 || length > batch->end - batch->at)
        return BAD_LENGTH;
    Cursor record = {batch->at + 1, batch->at + length}; /* 1: the attributes, which mean nothing */
    if ((status = read_varint(&record, 64, delta)))
        return status;
    if ((status = read_varint(&record, 32, &offset_delta)))
        return status;
    if (offset_delta != index)
        return BAD_OFFSET;
    if ((status = skip_bytes(&record, is_keyless, BAD_KEY)))
        return status;
    if ((status = skip_bytes(&record, &is_null, BAD_VALUE)))
        return status;
    if ((status = skip_headers(&record)))
        return status;
    if (record.at != record.end)
        return BAD_LENGTH;
    batch->at = record.end;
    return WHOLE;
}

static inline void walk_all(const uint8_t *data, ptrdiff_t size, ptrdiff_t count, int64_t base,
                            int64_t earliest, int64_t latest, int wants_keys, Walked *out)
{
    Cursor batch = {data, data + size};
    ptrdiff_t index;
    for (index = 0; index < count; index++) {
        int64_t delta, timestamp;
        int is_keyless = 0;
        out->position = batch.at - data;
        out->fault = walk_record(&batch, index, &delta, &is_keyless);
        if (out->fault)
            break;
        int overflows = __builtin_add_overflow(base, delta, &timestamp);
        int is_late = overflows || (timestamp != -1 && (timestamp < earliest || timestamp > latest));
        if (!overflows && timestamp > out->max_timestamp)
            out->max_timestamp = timestamp;
        if (!overflows && timestamp < out->min_timestamp)
            out->min_timestamp = timestamp;
        is_keyless &= wants_keys;
        if (is_late || is_keyless) {
            out->late += is_late;
            out->keyless += is_keyless;
            if (out->blamed_count < BLAMED_MAX)
                out->blamed[out->blamed_count++] = index;
        }
    }
    out->index = index;
    if (!out->fault) {
        out->position = batch.at - data;
        if (batch.at != batch.end)
            out->fault = LEFT_OVER;
    }
}

#endif
