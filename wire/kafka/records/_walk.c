/* The walks over a batch's records at the speed of memory: wire/kafka/records/walk.py says what they
 * find, holds the same in Python, and is what everybody imports.
 *
 * Owner of the state: nobody; it keeps nothing and writes nothing into the data. It reads no byte
 * outside of [data, data + size): every length is compared with what is left before it is used.
 * Long data is walked without the interpreter's lock, so that a worker thread holds nobody up.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_records.h"

/* The sizes of a header's key and its value. */
#define HEADER_BYTES_MIN 2
#define SPAN_FIELDS 7
/* Below this a walk is shorter than giving the lock away. */
#define UNLOCKED_SIZE_MIN (64 * 1024)

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
    out.fault = WHOLE;
    out.index = out.position = out.late = out.keyless = out.blamed_count = 0;
    out.max_timestamp = -1;
    out.min_timestamp = INT64_MAX;
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

static PyMethodDef METHODS[] = {
    {"walk", walk, METH_VARARGS, "See wire.kafka.records.walk."},
    {"spans", spans, METH_VARARGS, "See wire.kafka.records.walk."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_walk", .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&MODULE);
}
