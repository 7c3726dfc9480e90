cdef Py_ssize_t SWEEPS
cdef double NEGLIGIBLE

cdef void cholesky(Py_ssize_t n, double* matrix, double* least, bint fixes) noexcept nogil
cdef void forward(Py_ssize_t n, double* factor, double* b) noexcept nogil
cdef void backward(Py_ssize_t n, double* factor, double* b) noexcept nogil
cdef void eliminate(Py_ssize_t n, double* matrix, double* right) noexcept nogil
cdef void multiply_matrices(Py_ssize_t p, double* left, double* right, double* product) noexcept nogil
cdef void add_spectral(Py_ssize_t p, double* vectors, double* values, double* matrix) noexcept nogil
cdef void eigen(Py_ssize_t size, double* matrix, double* values, double* vectors) noexcept nogil
cdef void rotate(Py_ssize_t size, double* matrix, double* vectors, Py_ssize_t i, Py_ssize_t j) noexcept nogil
