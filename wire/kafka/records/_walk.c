/* The walks over a batch's records at the speed of memory, and all that is asked of a usual batch:
 * wire/kafka/records/walk.py says what they find, holds the walks in Python, too, and is what
 * everybody imports.
 *
 * Owner of the state: nobody; it keeps nothing and writes nothing into the data. It reads no byte
 * outside of [data, data + size): every length is compared with what is left before it is used.
 * Long data is walked without the interpreter's lock, so that a worker thread holds nobody up.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
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
/* The sizes of a header's key and its value. */
#define HEADER_BYTES_MIN 2
#define SPAN_FIELDS 7
/* Below this a walk is shorter than giving the lock away. */
#define UNLOCKED_SIZE_MIN (64 * 1024)

typedef struct {
    const uint8_t *at, *end;
} Cursor;

typedef struct {
    int fault;
    Py_ssize_t index, position, late, keyless, blamed_count;
    int64_t max_timestamp, min_timestamp;
    Py_ssize_t blamed[BLAMED_MAX];
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

static inline void begin_walk(Walked *out)
{
    out->fault = WHOLE;
    out->index = out->position = out->late = out->keyless = out->blamed_count = 0;
    out->max_timestamp = -1;
    out->min_timestamp = INT64_MAX;
}

static void walk_all(const uint8_t *data, Py_ssize_t size, Py_ssize_t count, int64_t base,
                     int64_t earliest, int64_t latest, int wants_keys, Walked *out)
{
    Cursor batch = {data, data + size};
    Py_ssize_t index;
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

static PyObject *walk(PyObject *module, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count;
    long long base, earliest, latest;
    int wants_keys;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nLLLp", &data, &count, &base, &earliest, &latest, &wants_keys))
        return NULL;
    Walked out;
    begin_walk(&out);
    if (data.len < UNLOCKED_SIZE_MIN) {
        walk_all(data.buf, data.len, count, base, earliest, latest, wants_keys, &out);
    } else {
        Py_BEGIN_ALLOW_THREADS
        walk_all(data.buf, data.len, count, base, earliest, latest, wants_keys, &out);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyObject *blamed = PyTuple_New(out.blamed_count);
    if (blamed == NULL)
        return NULL;
    for (Py_ssize_t n = 0; n < out.blamed_count; n++) {
        PyObject *number = PyLong_FromSsize_t(out.blamed[n]);
        if (number == NULL || PyTuple_SetItem(blamed, n, number) < 0) {
            Py_DECREF(blamed);
            return NULL;
        }
    }
    return Py_BuildValue("(innLnnNL)", out.fault, out.index, out.position,
                         (long long)out.max_timestamp, out.late, out.keyless, blamed,
                         (long long)out.min_timestamp);
}

/* Where a record and its key lie, as numbers of bytes from the first on. */
typedef struct {
    Py_ssize_t rest, end, key;
    int64_t delta, offset_delta, key_size;
    int has_value;
} Place;

/* One record, which begins at the cursor; its headers are passed by. */
static inline int find_record(Cursor *batch, const uint8_t *data, Place *out)
{
    int64_t length, count;
    int status, is_null;
    if ((status = read_varint(batch, 32, &length)))
        return status;
    if (length < 1 || length > batch->end - batch->at)
        return BAD_LENGTH;
    Cursor record = {batch->at + 1, batch->at + length};
    if ((status = read_varint(&record, 64, &out->delta)))
        return status;
    out->rest = record.at - data;
    if ((status = read_varint(&record, 32, &out->offset_delta)))
        return status;
    if ((status = read_varint(&record, 32, &out->key_size)))
        return status;
    if (out->key_size < -1 || out->key_size > record.end - record.at)
        return BAD_KEY;
    out->key = record.at - data;
    if (out->key_size > 0)
        record.at += out->key_size;
    if ((status = skip_bytes(&record, &is_null, BAD_VALUE)))
        return status;
    out->has_value = !is_null;
    if ((status = read_varint(&record, 32, &count)))
        return status;
    if (count < 0 || count > (record.end - record.at) / HEADER_BYTES_MIN)
        return BAD_HEADERS;
    if (!count && record.at != record.end)
        return BAD_LENGTH;
    batch->at = record.end;
    out->end = record.end - data;
    return WHOLE;
}

/* The tuple of one; NULL without memory. */
static PyObject *span_of(const uint8_t *data, Py_ssize_t start, const Place *place)
{
    PyObject *fields[SPAN_FIELDS];
    fields[0] = PyLong_FromSsize_t(start);
    fields[1] = PyLong_FromSsize_t(place->rest);
    fields[2] = PyLong_FromSsize_t(place->end);
    fields[3] = PyLong_FromLongLong(place->delta);
    fields[4] = PyLong_FromLongLong(place->offset_delta);
    if (place->key_size < 0) {
        fields[5] = Py_None;
        Py_INCREF(Py_None);
    } else {
        fields[5] = PyBytes_FromStringAndSize((const char *)data + place->key,
                                              (Py_ssize_t)place->key_size);
    }
    fields[6] = PyBool_FromLong(place->has_value);
    PyObject *span = PyTuple_New(SPAN_FIELDS);
    int is_whole = span != NULL;
    for (int n = 0; n < SPAN_FIELDS; n++)
        is_whole &= fields[n] != NULL;
    for (int n = 0; n < SPAN_FIELDS; n++) {
        if (is_whole)
            PyTuple_SetItem(span, n, fields[n]); /* takes it over */
        else
            Py_XDECREF(fields[n]);
    }
    if (is_whole)
        return span;
    Py_XDECREF(span);
    return NULL;
}

static PyObject *spans(PyObject *module, PyObject *args)
{
    Py_buffer records;
    Py_ssize_t position, count, bytes_max;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nnn", &records, &position, &count, &bytes_max))
        return NULL;
    if (position < 0 || position > records.len) {
        PyBuffer_Release(&records);
        PyErr_SetString(PyExc_ValueError, "position is outside of the records");
        return NULL;
    }
    const uint8_t *data = records.buf;
    Cursor batch = {data + position, data + records.len};
    PyObject *found = PyList_New(0);
    if (found == NULL) {
        PyBuffer_Release(&records);
        return NULL;
    }
    int fault = WHOLE;
    Py_ssize_t first = position;
    for (Py_ssize_t n = 0; n < count && (n == 0 || position - first < bytes_max); n++) {
        Place place;
        if ((fault = find_record(&batch, data, &place)))
            break;
        PyObject *span = span_of(data, position, &place);
        if (span == NULL || PyList_Append(found, span) < 0) {
            Py_XDECREF(span);
            Py_DECREF(found);
            PyBuffer_Release(&records);
            return NULL;
        }
        Py_DECREF(span);
        position = place.end;
    }
    PyBuffer_Release(&records);
    return Py_BuildValue("(inN)", fault, position, found);
}

/* Of a record batch, as in batch.py: where its fields are. */
enum {
    BATCH_LENGTH = 8,
    LEADER_EPOCH = 12,
    MAGIC = 16,
    CRC = 17,
    ATTRIBUTES = 21,
    LAST_OFFSET_DELTA = 23,
    BASE_TIMESTAMP = 27,
    MAX_TIMESTAMP = 35,
    PRODUCER_ID = 43,
    PRODUCER_EPOCH = 51,
    BASE_SEQUENCE = 53,
    RECORD_COUNT = 57,
    BATCH_OVERHEAD = 61
};
#define LENGTH_OVERHEAD 12
#define MAGIC_2 2
/* Codec, timestamp type, transactional, control: none of them. */
#define UNUSUAL_ATTRIBUTES 0x3f

static inline uint64_t big_endian(const uint8_t *at, int size)
{
    uint64_t value = 0;
    for (int n = 0; n < size; n++)
        value = value << 8 | at[n];
    return value;
}

static inline int16_t int16_at(const uint8_t *at) { return (int16_t)big_endian(at, 2); }
static inline int32_t int32_at(const uint8_t *at) { return (int32_t)big_endian(at, 4); }
static inline int64_t int64_at(const uint8_t *at) { return (int64_t)big_endian(at, 8); }

/* CRC-32C where the processor has an instruction for it. Without one no batch is found whole. */
#if defined(__x86_64__)
static int has_crc32c(void) { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) static uint32_t crc32c(const uint8_t *at, Py_ssize_t size)
{
    uint64_t crc = 0xffffffff, eight;
    for (; size >= 8; at += 8, size -= 8) {
        __builtin_memcpy(&eight, at, 8);
        crc = __builtin_ia32_crc32di(crc, eight);
    }
    for (; size; at++, size--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *at);
    return ~(uint32_t)crc;
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static int has_crc32c(void) { return 1; }

static uint32_t crc32c(const uint8_t *at, Py_ssize_t size)
{
    uint32_t crc = 0xffffffff;
    uint64_t eight;
    for (; size >= 8; at += 8, size -= 8) {
        __builtin_memcpy(&eight, at, 8);
        crc = __crc32cd(crc, eight);
    }
    for (; size; at++, size--)
        crc = __crc32cb(crc, *at);
    return ~crc;
}
#else
static int has_crc32c(void) { return 0; }
static uint32_t crc32c(const uint8_t *at, Py_ssize_t size) { (void)at, (void)size; return 0; }
#endif

/* Whether all is as it should be that does not depend on a topic's settings. */
static int is_whole(const uint8_t *batch, Py_ssize_t size, Py_ssize_t count_max, Walked *out)
{
    if (size < BATCH_OVERHEAD || batch[MAGIC] != MAGIC_2)
        return 0;
    if (int32_at(batch + BATCH_LENGTH) != size - LENGTH_OVERHEAD || int64_at(batch))
        return 0;
    int32_t count = int32_at(batch + RECORD_COUNT);
    if (count <= 0 || count > count_max || int32_at(batch + LAST_OFFSET_DELTA) != count - 1)
        return 0;
    if (int16_at(batch + ATTRIBUTES) & UNUSUAL_ATTRIBUTES)
        return 0;
    if (int64_at(batch + PRODUCER_ID) >= 0
        && (int16_at(batch + PRODUCER_EPOCH) < 0 || int32_at(batch + BASE_SEQUENCE) < 0))
        return 0;
    if (!has_crc32c() || crc32c(batch + ATTRIBUTES, size - ATTRIBUTES) != big_endian(batch + CRC, 4))
        return 0;
    begin_walk(out);
    walk_all(batch + BATCH_OVERHEAD, size - BATCH_OVERHEAD, count, int64_at(batch + BASE_TIMESTAMP),
             INT64_MIN, INT64_MAX, 1, out);
    return !out->fault && !out->late && out->max_timestamp == int64_at(batch + MAX_TIMESTAMP);
}

static PyObject *whole_batch(PyObject *module, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count_max;
    Walked walked;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*n", &data, &count_max))
        return NULL;
    const uint8_t *batch = data.buf;
    PyObject *found;
    if (is_whole(batch, data.len, count_max, &walked)) {
        found = Py_BuildValue(
            "((LiiiIhiLLLhii)Ln)", (long long)int64_at(batch), int32_at(batch + BATCH_LENGTH),
            int32_at(batch + LEADER_EPOCH), MAGIC_2, (unsigned)big_endian(batch + CRC, 4),
            int16_at(batch + ATTRIBUTES), int32_at(batch + LAST_OFFSET_DELTA),
            (long long)int64_at(batch + BASE_TIMESTAMP), (long long)int64_at(batch + MAX_TIMESTAMP),
            (long long)int64_at(batch + PRODUCER_ID), int16_at(batch + PRODUCER_EPOCH),
            int32_at(batch + BASE_SEQUENCE), int32_at(batch + RECORD_COUNT),
            (long long)walked.min_timestamp, walked.keyless);
    } else {
        found = Py_None;
        Py_INCREF(found);
    }
    PyBuffer_Release(&data);
    return found;
}

static PyMethodDef METHODS[] = {
    {"walk", walk, METH_VARARGS, "See wire.kafka.records.walk."},
    {"spans", spans, METH_VARARGS, "See wire.kafka.records.walk."},
    {"whole_batch", whole_batch, METH_VARARGS, "See wire.kafka.records.walk."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_walk", .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&MODULE);
}
