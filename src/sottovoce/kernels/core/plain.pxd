from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
)
from libc.math cimport fabs, pow, rint, sqrt
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    LANES = 16
    SPINS = 300  # rounds take microseconds, far less than waking a sleeping thread

cdef extern from *:
    """
    #include <math.h>
    #include <stdint.h>
    #include <string.h>
    #define SV_MASK 0xFFFFFFFFFFFFFFFFULL
    #define SV_ONE 0x3FF0000000000000ULL
    #define SV_MANTISSA 0x000FFFFFFFFFFFFFULL
    #define SV_SQRT_HALF 0x3FE6A09E667F3BCDULL
    #define SV_TWO_52 0x4330000000000000ULL
    #define SV_MAGIC 0x4338000000000000ULL
    #define SV_GAMMA 0x9E3779B97F4A7C15ULL
    #define SV_MIX_1 0xBF58476D1CE4E5B9ULL
    #define SV_MIX_2 0x94D049BB133111EBULL
    #if defined(_MSC_VER)
    #include <intrin.h>
    #include <windows.h>
    #define SV_RESTRICT __restrict
    static inline void sv_arrive(int64_t *c) { _InterlockedIncrement64((volatile long long *)c); }
    static inline int64_t sv_arrived(int64_t *c) { return _InterlockedOr64((volatile long long *)c, 0); }
    static inline void sv_yield(void) { SwitchToThread(); }
    #else
    #include <sched.h>
    #define SV_RESTRICT __restrict__
    static inline void sv_arrive(int64_t *c) { __atomic_fetch_add(c, 1, __ATOMIC_SEQ_CST); }
    static inline int64_t sv_arrived(int64_t *c) { return __atomic_load_n(c, __ATOMIC_SEQ_CST); }
    static inline void sv_yield(void) { sched_yield(); }
    #endif
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    static inline int sv_has_avx2(void) { return __builtin_cpu_supports("avx2") ? 1 : 0; }
    #elif defined(_M_X64)
    static inline int sv_has_avx2(void) {
        int r[4]; __cpuid(r, 1);
        if (!(r[2] & (1 << 27)) || (_xgetbv(0) & 6) != 6) return 0;
        __cpuidex(r, 7, 0); return (r[1] >> 5) & 1;
    }
    #else
    static inline int sv_has_avx2(void) { return 0; }
    #endif
    typedef double *SV_RESTRICT sv_out;
    typedef const double *SV_RESTRICT sv_in;
    static inline double sv_as_float(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
    static inline uint64_t sv_as_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
    """
    # Rows that do not overlap: loops over them become vector code.
    ctypedef double* out_row "sv_out"
    ctypedef const double* in_row "sv_in"
    const double inf "INFINITY"
    const double nan "NAN"
    const uint64_t MASK "SV_MASK"
    const uint64_t ONE "SV_ONE"
    const uint64_t MANTISSA "SV_MANTISSA"
    const uint64_t SQRT_HALF "SV_SQRT_HALF"
    const uint64_t TWO_52 "SV_TWO_52"
    const uint64_t MAGIC "SV_MAGIC"
    const uint64_t GAMMA "SV_GAMMA"
    const uint64_t MIX_1 "SV_MIX_1"
    const uint64_t MIX_2 "SV_MIX_2"
    double as_float "sv_as_float" (uint64_t bits) noexcept nogil
    uint64_t as_bits "sv_as_bits" (double x) noexcept nogil
    bint cpu_has_avx2 "sv_has_avx2" () noexcept nogil
    void arrive "sv_arrive" (int64_t* counter) noexcept nogil
    int64_t arrived "sv_arrived" (int64_t* counter) noexcept nogil
    void yield_thread "sv_yield" () noexcept nogil

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
    for i in range(count):
        to[i] = value

cdef inline bint any_positive(in_row a) noexcept nogil:
    cdef int lane
    for lane in range(LANES):
        if a[lane] > 0.0:
            return True
    return False

cdef inline void barrier(int64_t* counter, int64_t expected) noexcept nogil:
    """Spin until the counter, which every thread that arrives raises by 1, is ``expected``."""
    cdef int spins = 0
    arrive(counter)
    while arrived(counter) < expected:
        spins += 1
        if spins > SPINS:
            yield_thread()

cdef inline void* _begin(object x, char kind, Py_ssize_t size) except? NULL:
    """Where a contiguous array begins; its owner must keep it. Kind and size of items are checked."""
    cdef Py_buffer view
    PyObject_GetBuffer(x, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    cdef void* begin = view.buf
    cdef char given = view.format[0] if view.format is not NULL else 0
    cdef Py_ssize_t itemsize = view.itemsize
    PyBuffer_Release(&view)
    # Integers of 64 bits are "l" on Linux and "q" on Windows.
    if itemsize != size or not (given == kind or (given == c"q" and kind == c"l") or (given == c"Q" and kind == c"L")):
        raise TypeError("a kernel must get a contiguous array of the kind that it computes with")
    return begin

cdef inline double* doubles(object x) except? NULL:
    return <double*>_begin(x, c"d", 8)

cdef inline int32_t* ints(object x) except? NULL:
    return <int32_t*>_begin(x, c"i", 4)

cdef inline uint64_t* words(object x) except? NULL:
    return <uint64_t*>_begin(x, c"L", 8)

cdef inline int64_t* longs(object x) except? NULL:
    return <int64_t*>_begin(x, c"l", 8)
