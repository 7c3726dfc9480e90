cdef uint64_t scramble(uint64_t z) noexcept nogil
cdef void pairs(const uint64_t* words, uint64_t jump, out_row one, out_row two) noexcept nogil
cdef void draw_rounds(uint64_t seed, uint64_t done, uint64_t count, double* out) noexcept nogil
cdef void draw_runs(const uint64_t* seeds, uint64_t done, uint64_t count, double* out) noexcept nogil
cpdef object fill_rounds(uint64_t seed, uint64_t done, uint64_t count, object out)
