cdef struct LaneSearch:
    double[16] anchor
    double[16] lower
    double[16] upper
    double[16] weight
    double[16] a
    double[16] slope_a
    double[16] b
    double[16] slope_b
    double[16] reach
    double[16] distance
    double[16] overshoot
    double[16] phase
    double[16] answer
    double[16] evaluations

cdef double PRECISION, FIRST_STEP, OVERSHOOT, GROWTH, OUTWARDS, CLOSING, DONE, NEAR, SMALL, NUDGE, CG_TOLERANCE
cdef Py_ssize_t MAX_EVALUATIONS, BOX_STEPS, CONJUGATE_STEPS, BOX_HALVINGS

cdef double slope(TapeView* tape, double* r, double x) noexcept nogil
cdef double minimise_scalar(TapeView* tape, double* r, double force, double curvature, double lower, double upper, double weight) noexcept nogil
cdef double find_zero(TapeView* tape, double* r, double anchor, double weight, double b, double slope_b, double a, double slope_a, double tolerance) noexcept nogil
cdef void minimise_lanes(TapeView* tape, double* r, double* force, in_row curvature, LaneSearch* search) noexcept nogil
cdef bint any_open(in_row phase) noexcept nogil
cdef void start_lanes(LaneSearch* s, in_row force, in_row curvature, out_row x) noexcept nogil
cdef void advance_lanes(LaneSearch* s, in_row force, out_row xs) noexcept nogil
cpdef Py_ssize_t newton_work(Py_ssize_t d) noexcept nogil
cdef void gradient(TapeView* tape, double* r, double* x, double* out) noexcept nogil
cdef void minimise_box(TapeView* tape, double* r, double* lower, double* upper, double* weight, double* x, double* work) noexcept nogil
cdef double clip(double value, double lower, double upper) noexcept nogil
cdef double nearness(Py_ssize_t d, double* x, double* force, double* lower, double* upper) noexcept nogil
cdef void box_step(TapeView* tape, double* r, double* x, double* force, double* lower, double* upper, double* weight, double* step, double* work) noexcept nogil
cdef void conjugate_gradients(TapeView* tape, double* r, double* lower, double* upper, double* weight, double* step, double* work) noexcept nogil
