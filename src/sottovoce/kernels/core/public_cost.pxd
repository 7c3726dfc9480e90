cdef Py_ssize_t SEARCH_STEPS, BEFORE_HALVING
cdef double SEARCH_EXACT

cdef void prox(double* v, double* weight, PublicSet* public_set, double* u, double* work) noexcept nogil
cdef void prox_norm(Py_ssize_t size, double* v, double* weight, double* center, double most, double* u, double* work) noexcept nogil
cdef void minimise_one(PublicSet* public_set, Py_ssize_t r, double v, double weight, double* u, double* work) noexcept nogil
cdef void lower_peak(PublicSet* public_set, Py_ssize_t r, double* v, double* weight, double* u, double* work) noexcept nogil
cdef void cost_gradient(PublicSet* public_set, Py_ssize_t r, double* u, double* g, double* hessian) noexcept nogil
