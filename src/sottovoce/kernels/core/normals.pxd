from libc.math cimport sqrt
from libc.stdint cimport uint64_t
from .bits cimport MANTISSA, MASK, ONE, SQRT_HALF, TWO_52, as_bits, as_float
from .lanes cimport LANES, doubles, out_row, row

cdef extern from *:
    """
    #define SV_GAMMA 0x9E3779B97F4A7C15ULL
    #define SV_MIX_1 0xBF58476D1CE4E5B9ULL
    #define SV_MIX_2 0x94D049BB133111EBULL
    """
    const uint64_t GAMMA "SV_GAMMA"
    const uint64_t MIX_1 "SV_MIX_1"
    const uint64_t MIX_2 "SV_MIX_2"

cdef uint64_t mix(uint64_t z) noexcept nogil
cdef void pairs(const uint64_t* words, uint64_t jump, out_row one, out_row two) noexcept nogil
cdef void draw_rounds(uint64_t seed, uint64_t done, uint64_t count, double* out) noexcept nogil
cdef void draw_runs(const uint64_t* seeds, uint64_t done, uint64_t count, double* out) noexcept nogil
cpdef object fill_rounds(uint64_t seed, uint64_t done, uint64_t count, object out)
