from libc.math cimport fabs
from libc.stdint cimport int32_t
from .lanes cimport LANES, copy, in_row, out_row, row
from .tape cimport tape_run, tape_run_one

cdef struct SlopeTape:
    int32_t* one
    Py_ssize_t one_size
    int32_t* lanes
    Py_ssize_t lanes_size
    double* r
    Py_ssize_t x             # the register of x
    Py_ssize_t output        # of the slope

cdef struct LaneSearch:
    double* anchor
    double* lower
    double* upper
    double* weight
    double* a
    double* slope_a
    double* b
    double* slope_b
    double* reach
    double* distance
    double* phase
    double* answer
    double* evaluations

cdef double PRECISION, FIRST_STEP, GROWTH, OUTWARDS, CLOSING, DONE
cdef Py_ssize_t MAX_EVALUATIONS

cdef double slope(SlopeTape* problem, double x) noexcept nogil
cdef double minimise(SlopeTape* problem, double anchor, double lower, double upper, double weight) noexcept nogil
cdef double find_zero(SlopeTape* problem, double anchor, double weight, double b, double slope_b, double a, double slope_a, double tolerance) noexcept nogil
cpdef Py_ssize_t search_rows() noexcept nogil
cdef void lay_out(LaneSearch* search, double* work) noexcept nogil
cdef void minimise_lanes(SlopeTape* problem, LaneSearch* search) noexcept nogil
cdef bint any_open(in_row phase) noexcept nogil
cdef void start_lanes(in_row anchors, in_row lowers, in_row uppers, in_row weights, in_row force, out_row x, out_row a, out_row slope_a, out_row b, out_row slope_b, out_row reaches, out_row distances, out_row phases, out_row answers, out_row evaluations) noexcept nogil
cdef void advance_lanes(in_row anchors, in_row lowers, in_row uppers, in_row weights, in_row force, out_row xs, out_row as_, out_row slopes_a, out_row bs, out_row slopes_b, in_row reaches, out_row distances, out_row phases, out_row answers, out_row evaluations) noexcept nogil
