cdef struct Interior:
    Py_ssize_t n             # components
    Py_ssize_t m             # inequalities
    Py_ssize_t q             # equalities
    TapeView* rows           # their derivatives, scattered
    TapeView* objective      # phi's
    bint with_objective
    double* r                # registers: x, and the rows' multipliers from row_multiplier on
    Py_ssize_t row_multiplier
    double* iterate
    double* step
    double* trial
    double* x                # of the trial, in its own units
    double* unit             # of each component; 0 where it cannot move
    double* bounded          # whether it has a lower and an upper bound, 2 n
    double* row_unit
    double* multiplier
    double* gradient         # of phi with its proximal term
    double* values           # of the rows
    double* jacobian         # (m + q, n)
    double* hessian          # of phi plus multipliers times rows, lower half
    double* matrix           # of the step's equations, then its factor
    double* solved_rows      # L^-1 times gradients of equalities, (q, n)
    double* schur            # (q, q)
    double* residual         # of the gradient and of all rows
    double* complementarity  # to be removed by the step: slacks, lower and upper bounds
    double* best

cdef Py_ssize_t ITERATIONS, HALVINGS
cdef double START_MARGIN, MIN_SLACK, TO_BOUNDARY, GAP, RESIDUAL, ROUNDING, PIVOT

cdef Py_ssize_t iterate_size(Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cpdef Py_ssize_t interior_work(Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef void lay_out_interior(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q, double* work) noexcept nogil
cdef void derive(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef void scatter(TapeView* tape, double* r, Interior* ip) noexcept nogil
cdef void interior_minimum(Interior* ip, double* anchor, double* weight, double* lower, double* upper, double* out, double* work) noexcept nogil
cdef void start_interior(Interior* ip, double* anchor, double* lower, double* upper, Py_ssize_t n) noexcept nogil
cdef double choose_scales(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef void scale_derivatives(Interior* ip, double scale, Py_ssize_t n, Py_ssize_t rows) noexcept nogil
cdef void start_slacks(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef double residuals(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef double mean_gap(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q, double share) noexcept nogil
cdef void factorise_newton(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef void pivoted(Py_ssize_t n, double* matrix, double* least) noexcept nogil
cdef double predictor_corrector(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q, double gap) noexcept nogil
cdef void newton_step(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef double longest_share(Interior* ip, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
cdef void take_step(Interior* ip, double share, double* lower, double* upper, Py_ssize_t n, Py_ssize_t m, Py_ssize_t q) noexcept nogil
