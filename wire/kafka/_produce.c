/* The ordinary Produce request, taken apart in one step: wire/kafka/plain_produce.py says
 * what that is, what is given, and what everything else leads to.
 *
 * Owner of the state: nobody; it keeps nothing and writes nothing into the frame. It reads no byte
 * outside of it: every length is compared with what is left before it is used. What is not ordinary
 * is None, whatever it is: who decodes it in Python finds the words for it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define VERSION_MIN 7
#define VERSION_FLEXIBLE 9
#define VERSION_TOPIC_ID 13
#define TOPIC_ID_BYTES 16
#define ACKS_ALL (-1)

static inline uint64_t big_endian(const uint8_t *at, int size)
{
    uint64_t value = 0;
    for (int n = 0; n < size; n++)
        value = value << 8 | at[n];
    return value;
}

static inline int16_t int16_at(const uint8_t *at) { return (int16_t)big_endian(at, 2); }
static inline int32_t int32_at(const uint8_t *at) { return (int32_t)big_endian(at, 4); }

/* What is left of the frame. */
typedef struct {
    const uint8_t *at, *end;
} Cursor;

/* The frame's parts, as pointers into it. */
typedef struct {
    int version, acks;
    int32_t correlation_id;
    const uint8_t *place, *place_end, *records, *records_end;
} Plain;

/* Steps over so many bytes, which it points to; NULL if there are fewer. */
static inline const uint8_t *take(Cursor *from, Py_ssize_t size)
{
    if (size > from->end - from->at)
        return NULL;
    const uint8_t *at = from->at;
    from->at += size;
    return at;
}

/* Whether a byte, or an int32, of this value is next; it is stepped over. */
static inline int take_byte(Cursor *from, uint8_t value)
{
    const uint8_t *at = take(from, 1);
    return at != NULL && *at == value;
}

static inline int take_int32(Cursor *from, int32_t value)
{
    const uint8_t *at = take(from, 4);
    return at != NULL && int32_at(at) == value;
}

/* An unsigned varint in its shortest form, of 28 bits at most; -1 if it is none. */
static inline Py_ssize_t take_size(Cursor *from)
{
    Py_ssize_t value = 0;
    for (int shift = 0; shift < 28; shift += 7) {
        const uint8_t *at = take(from, 1);
        if (at == NULL)
            return -1;
        value |= (Py_ssize_t)(*at & 0x7f) << shift;
        if (*at < 0x80)
            return *at || !shift ? value : -1;
    }
    return -1;
}

static int take_header(Cursor *from, Plain *out)
{
    const uint8_t *at = take(from, 10);
    if (at == NULL || int16_at(at) != 0)
        return 0;
    out->version = int16_at(at + 2);
    out->correlation_id = int32_at(at + 4);
    if (out->version < VERSION_MIN || out->version > VERSION_TOPIC_ID)
        return 0;
    int size = int16_at(at + 8);
    if (size < -1)
        return 0;
    if (size > 0) {
        if ((at = take(from, size)) == NULL)
            return 0;
        for (int n = 0; n < size; n++) {
            if (at[n] >= 0x80) /* is it UTF-8? */
                return 0;
        }
    }
    return out->version < VERSION_FLEXIBLE || take_byte(from, 0);
}

/* Behind the place, in versions before 9 and from then on. */
static int take_records(Cursor *from, Plain *out)
{
    Py_ssize_t size;
    if (out->version < VERSION_FLEXIBLE) {
        const uint8_t *at = take(from, 4);
        if (at == NULL)
            return 0;
        size = int32_at(at);
    } else {
        size = take_size(from) - 1;
    }
    if (size < 0 || (out->records = take(from, size)) == NULL)
        return 0;
    out->records_end = from->at;
    if (out->version >= VERSION_FLEXIBLE
        && !(take_byte(from, 0) && take_byte(from, 0) && take_byte(from, 0)))
        return 0;
    return from->at == from->end;
}

static int take_place(Cursor *from, Plain *out)
{
    const uint8_t *at;
    out->place = from->at;
    if (out->version < VERSION_FLEXIBLE) {
        if (!take_int32(from, 1) || (at = take(from, 2)) == NULL)
            return 0;
        int size = int16_at(at);
        if (size < 0 || take(from, size) == NULL || !take_int32(from, 1))
            return 0;
    } else {
        if (!take_byte(from, 2)) /* one topic: counts are one more than there are */
            return 0;
        Py_ssize_t size = TOPIC_ID_BYTES;
        if (out->version < VERSION_TOPIC_ID)
            size = take_size(from) - 1;
        if (size < 0 || size > INT16_MAX || take(from, size) == NULL || !take_byte(from, 2))
            return 0;
    }
    if (take(from, 4) == NULL) /* the partition */
        return 0;
    out->place_end = from->at;
    return 1;
}

static int take_apart(const uint8_t *data, Py_ssize_t size, Plain *out)
{
    Cursor from = {data, data + size};
    const uint8_t *at;
    if (!take_header(&from, out))
        return 0;
    if (out->version < VERSION_FLEXIBLE) {
        if ((at = take(&from, 2)) == NULL || int16_at(at) != -1) /* a transactional id */
            return 0;
    } else if (!take_byte(&from, 0)) {
        return 0;
    }
    if ((at = take(&from, 6)) == NULL) /* acks, and a timeout that nobody looks at */
        return 0;
    out->acks = int16_at(at);
    if (out->acks != ACKS_ALL && out->acks != 1)
        return 0;
    return take_place(&from, out) && take_records(&from, out);
}

static PyObject *plain_produce(PyObject *module, PyObject *frame)
{
    Py_buffer data;
    Plain plain;
    (void)module;
    if (PyObject_GetBuffer(frame, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found;
    if (take_apart(data.buf, data.len, &plain)) {
        const uint8_t *start = data.buf;
        found = Py_BuildValue(
            "(iiiy#nn)", plain.version, plain.correlation_id, plain.acks, plain.place,
            (Py_ssize_t)(plain.place_end - plain.place), (Py_ssize_t)(plain.records - start),
            (Py_ssize_t)(plain.records_end - start));
    } else {
        found = Py_None;
        Py_INCREF(found);
    }
    PyBuffer_Release(&data);
    return found;
}

static PyMethodDef METHODS[] = {
    {"plain_produce", plain_produce, METH_O, "See wire.kafka.plain_produce."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_produce", .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__produce(void)
{
    return PyModuleDef_Init(&MODULE);
}
