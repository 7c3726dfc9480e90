from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
)
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    LANES = 16

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_MSC_VER)
    #define SV_RESTRICT __restrict
    #else
    #define SV_RESTRICT __restrict__
    #endif
    typedef double *SV_RESTRICT sv_out;
    typedef const double *SV_RESTRICT sv_in;
    """
    # Rows that do not overlap: loops over them become vector code.
    ctypedef double* out_row "sv_out"
    ctypedef const double* in_row "sv_in"

cdef inline double* row(double* p, Py_ssize_t i) noexcept nogil:
    return p + LANES * i

cdef inline double* skip(double* p, Py_ssize_t i) noexcept nogil:
    return p + i

cdef inline int32_t* skip_int(int32_t* p, Py_ssize_t i) noexcept nogil:
    return p + i

cdef inline void spread(out_row to, double value) noexcept nogil:
    cdef int lane
    for lane in range(LANES):
        to[lane] = value

cdef inline void copy(out_row to, in_row a) noexcept nogil:
    cdef int lane
    for lane in range(LANES):
        to[lane] = a[lane]

cdef inline void copy_some(double* to, const double* a, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    if count == 1:  # a scalar state alone: no vector loop to set up
        to[0] = a[0]
        return
    for i in range(count):
        to[i] = a[i]

cdef inline void fill(double* to, double value, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    if count == 1:
        to[0] = value
        return
    for i in range(count):
        to[i] = value

cdef inline bint any_positive(in_row a) noexcept nogil:
    cdef int lane
    for lane in range(LANES):
        if a[lane] > 0.0:
            return True
    return False

cdef inline void* _begin(object x, char kind, Py_ssize_t size, bint write) except? NULL:
    """Where a contiguous array begins; its owner must keep it. Kind and size of items are checked."""
    cdef Py_buffer view
    PyObject_GetBuffer(x, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if write else 0))
    cdef void* begin = view.buf
    cdef char found = view.format[0] if view.format is not NULL else 0
    cdef Py_ssize_t itemsize = view.itemsize
    PyBuffer_Release(&view)
    # Integers of 64 bits are "l" on Linux and "q" on Windows.
    if itemsize != size or not (found == kind or (found == c"q" and kind == c"l") or (found == c"Q" and kind == c"L")):
        raise TypeError("a kernel must get a contiguous array of the kind that it computes with")
    return begin

cdef inline double* doubles(object x) except? NULL:
    return <double*>_begin(x, c"d", 8, False)

cdef inline int32_t* ints(object x) except? NULL:
    return <int32_t*>_begin(x, c"i", 4, False)

cdef inline uint64_t* words(object x) except? NULL:
    return <uint64_t*>_begin(x, c"L", 8, False)

cdef inline int64_t* longs(object x) except? NULL:
    return <int64_t*>_begin(x, c"l", 8, False)
