cdef struct CostStep:
    Py_ssize_t sums          # how many of the variables w are sums
    Py_ssize_t size          # of w
    Py_ssize_t rows          # c
    Py_ssize_t all           # these and two bounds for each variable
    double* rising           # by sum: 1 where prices may not be negative
    double* least            # what w can be
    double* most
    double* low              # its bounds
    double* high
    double* registers        # the tape: slopes of psi, c, its slopes, the Lagrangian's curvature
    int32_t* outputs
    int32_t* code
    Py_ssize_t length
    double* w
    double* metric           # d
    double* aim              # v
    double* move             # of w
    double* before           # w before a step
    double* off              # the Lagrangian's slope
    double* solved
    double* matrix           # M, or its factor
    double* slack
    double* mu
    double* c
    double* slack_move
    double* mu_move
    double* slack_before
    double* mu_before
    double* force            # mu / s

cdef Py_ssize_t COST_STEPS, COST_HALVINGS
cdef double COST_EXACT, COST_ROUNDING, COST_PIVOT, ENOUGH, TO_BOUND, CENTRED, LEAST, STIFF, UNMOVED

cpdef Py_ssize_t cost_work(Py_ssize_t size, Py_ssize_t rows) noexcept nogil
cdef void prox(double* v, double* weight, PublicSet* public_set, double* u, double* work) noexcept nogil
cdef void lay_out_cost(CostStep* step, PublicSet* public_set, Py_ssize_t r) noexcept nogil
cdef void minimise_cost(CostStep* step) noexcept nogil
cdef void settle(CostStep* step) noexcept nogil
cdef void begin_cost(CostStep* step) noexcept nogil
cdef double slope_of(CostStep* step, Py_ssize_t k, Py_ssize_t j) noexcept nogil
cdef void evaluate_cost(CostStep* step) noexcept nogil
cdef void lagrangian_slope(CostStep* step, double* mu, double* out) noexcept nogil
cdef void factor_cost(CostStep* step) noexcept nogil
cdef void direction(CostStep* step, double target, double corrected) noexcept nogil
cdef double to_bound(CostStep* step, double part) noexcept nogil
cdef void take(CostStep* step, double share) noexcept nogil
cdef bint advance(CostStep* step, double target, double mean, Py_ssize_t halvings) noexcept nogil
cdef double distance(CostStep* step, double target, double mean) noexcept nogil
cdef void slope_column(CostStep* step, Py_ssize_t j) noexcept nogil
