from libc.math cimport pow
from libc.stdint cimport uint64_t
from .bits cimport MAGIC, MANTISSA, MASK, ONE, SQRT_HALF, TWO_52, as_bits, as_float
from .lanes cimport LANES, doubles, in_row, out_row

cdef extern from *:
    """
    #include <math.h>
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    static inline int sv_has_avx2(void) { return __builtin_cpu_supports("avx2") ? 1 : 0; }
    #elif defined(_M_X64)
    #include <intrin.h>
    static inline int sv_has_avx2(void) {
        int r[4]; __cpuid(r, 1);
        if (!(r[2] & (1 << 27)) || (_xgetbv(0) & 6) != 6) return 0;
        __cpuidex(r, 7, 0); return (r[1] >> 5) & 1;
    }
    #else
    static inline int sv_has_avx2(void) { return 0; }
    #endif
    """
    const double inf "INFINITY"
    const double nan "NAN"
    bint cpu_has_avx2 "sv_has_avx2" () noexcept nogil

cdef double exp(double x) noexcept nogil
cdef double log(double x) noexcept nogil
cdef double power(double x, double y) noexcept nogil
cdef void exp_row(out_row to, in_row a) noexcept nogil
cdef void log_row(out_row to, in_row a) noexcept nogil
cpdef object exp_array(object x, object out)
cpdef object log_array(object x, object out)
cpdef bint has_avx2() noexcept
