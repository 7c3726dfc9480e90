from libc.math cimport fabs
from libc.stdint cimport int32_t
from .lanes cimport copy_some, skip
from .tape cimport tape_run_one

cdef struct GradientTape:
    Py_ssize_t d
    int32_t* one
    Py_ssize_t one_size
    double* r
    Py_ssize_t x             # the first register of x
    int32_t* outputs         # of the gradient

cdef Py_ssize_t NEWTON_STEPS, CONJUGATE_STEPS, HALVINGS
cdef double NEAR, SMALL, NUDGE, RESIDUAL

cpdef Py_ssize_t newton_work(Py_ssize_t d) noexcept nogil
cdef void gradient(GradientTape* problem, double* x, double* out) noexcept nogil
cdef void minimise(GradientTape* problem, double* anchor, double* lower, double* upper, double* weight, double* x, double* work) noexcept nogil
cdef double clip(double value, double lower, double upper) noexcept nogil
cdef double nearness(Py_ssize_t d, double* x, double* force, double* lower, double* upper) noexcept nogil
cdef void newton_step(GradientTape* problem, double* x, double* force, double* lower, double* upper, double* weight, double* step, double* work) noexcept nogil
cdef void conjugate_gradients(GradientTape* problem, double* lower, double* upper, double* weight, double* step, double* work) noexcept nogil
