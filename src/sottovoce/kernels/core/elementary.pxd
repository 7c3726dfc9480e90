cdef double exp(double x) noexcept nogil
cdef double log(double x) noexcept nogil
cdef double power(double x, double y) noexcept nogil
cpdef bint has_avx2() noexcept
