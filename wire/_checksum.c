/* CRC-32C of two pieces from those of each: wire/checksum.py says what for, holds the same in Python,
 * and is what everybody imports.
 *
 * Owner of the state: nobody; the table of powers is made when the module is loaded.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* As in checksum.py: the polynomial, 1, and what can be joined. */
#define POLYNOMIAL 0x82F63B78u
#define ONE 0x80000000u
#define SIZE_BITS 48

/* x^(2^k); a size is multiplied by 8, which are the first three. */
static uint32_t squares[3 + SIZE_BITS];

/* The product of two polynomials modulo CRC-32C's. */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* A number of at most `bits` bits; 0, and no exception, if it is another one. */
static int number(PyObject *object, int bits, unsigned long long *found)
{
    *found = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Clear();
        return 0;
    }
    return !(*found >> bits);
}

static PyObject *joined(PyObject *module, PyObject *args)
{
    PyObject *first, *second, *third;
    unsigned long long crc, behind, size;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &first, &second, &third))
        return NULL;
    if (!(number(first, 32, &crc) && number(second, 32, &behind)
          && number(third, SIZE_BITS, &size))) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%S, %S and %S bytes: no checksums that can be joined",
                         first, second, third);
        return NULL;
    }
    uint32_t factor = ONE;
    for (int bit = 3; size; size >>= 1, bit++)
        if (size & 1)
            factor = times(squares[bit], factor);
    return PyLong_FromUnsignedLong(times(factor, (uint32_t)crc) ^ (uint32_t)behind);
}

static PyMethodDef METHODS[] = {
    {"joined", joined, METH_VARARGS, "See wire.checksum."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_checksum", .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__checksum(void)
{
    squares[0] = ONE >> 1;
    for (int bit = 1; bit < 3 + SIZE_BITS; bit++)
        squares[bit] = times(squares[bit - 1], squares[bit - 1]);
    return PyModuleDef_Init(&MODULE);
}
