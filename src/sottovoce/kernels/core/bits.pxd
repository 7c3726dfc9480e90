from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define SV_MASK 0xFFFFFFFFFFFFFFFFULL
    #define SV_ONE 0x3FF0000000000000ULL
    #define SV_MANTISSA 0x000FFFFFFFFFFFFFULL
    #define SV_SQRT_HALF 0x3FE6A09E667F3BCDULL
    #define SV_TWO_52 0x4330000000000000ULL
    #define SV_MAGIC 0x4338000000000000ULL
    static inline double sv_as_float(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
    static inline uint64_t sv_as_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
    """
    const uint64_t MASK "SV_MASK"
    const uint64_t ONE "SV_ONE"
    const uint64_t MANTISSA "SV_MANTISSA"
    const uint64_t SQRT_HALF "SV_SQRT_HALF"
    const uint64_t TWO_52 "SV_TWO_52"
    const uint64_t MAGIC "SV_MAGIC"
    double as_float "sv_as_float" (uint64_t bits) noexcept nogil
    uint64_t as_bits "sv_as_bits" (double x) noexcept nogil
