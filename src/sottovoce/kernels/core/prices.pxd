cdef struct DualModel:
    Py_ssize_t p
    bint dense               # H has p^2 entries, row by row; otherwise its diagonal
    double* H
    double recent            # A
    double* total            # S
    double* unit
    PublicSet* public_set
    double* right            # b; filled by maximise, as are those below
    double* metric           # D
    double* residual         # G

cdef Py_ssize_t EXCHANGES, PRICE_STEPS, PRICE_HALVINGS, LARGEST_REGION
cdef double GAIN_ROUNDING, TINY, PRICE_PIVOT, PRICE_EXACT, RESIDUAL_ROUNDING, MIN_ROW, EDGE_ROUNDING

cpdef Py_ssize_t prices_work(Py_ssize_t p, Py_ssize_t entries) noexcept nogil
cdef double row_of(DualModel* model, Py_ssize_t o, double* price) noexcept nogil
cdef void maximise(DualModel* model, double* center, double* price, double* aim, double* work) noexcept nogil
cdef void by_exchange(DualModel* model, double* price, double* work) noexcept nogil
cdef bint activate(DualModel* model, double* price, double* side) noexcept nogil
cdef void solve_active(DualModel* model, double* side, double* goal, double* work) noexcept nogil
cdef void by_regions(DualModel* model, double* price, double* aim, double* work) noexcept nogil
cdef void by_newton(DualModel* model, double* price, double* aim, double* work) noexcept nogil
cdef double price_residual(DualModel* model, double* z, double* price, double* aim, double* work) noexcept nogil
cdef void newton_direction(DualModel* model, double* z, double* price, double* aim, double* step, double* work) noexcept nogil
cdef void region_slope(DualModel* model, Py_ssize_t r, double* price, double* aim, double* slope, double* work) noexcept nogil
cdef bint at_edge(DualModel* model, Py_ssize_t r, Py_ssize_t i, double* price, double u) noexcept nogil
cdef void cost_slopes(DualModel* model, Py_ssize_t r, double* slope) noexcept nogil
