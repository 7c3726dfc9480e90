cdef double exp(double x) noexcept nogil
cdef double log(double x) noexcept nogil
cdef double power(double x, double y) noexcept nogil
cdef void exp_row(out_row to, in_row a) noexcept nogil
cdef void log_row(out_row to, in_row a) noexcept nogil
cpdef bint has_avx2() noexcept
