cimport cython
from libc.math cimport fabs
from .lanes cimport LANES, any_positive, copy, doubles, in_row, out_row, row, spread

cdef struct RowSearch:
    double* factor           # a, d rows
    double* step             # a/w, d rows
    double* least
    double* most
    double* slack            # residual per multiplier; 0 for a row that must hold
    double* nu
    double* goal
    double* left             # the bracket of nu
    double* right
    double* residual_left
    double* residual_right
    double* open             # whether anything is left to do
    double* residual
    double* fall
    double* exact

cdef struct SeparableProblem:
    Py_ssize_t d
    double* point            # p; d rows each
    double* gradient         # g
    double* curvature        # w
    double* lower
    double* upper
    double* x                # the answer
    double* unpriced         # p - g/w, of two rows
    double* left_end         # x at the ends of the second row's bracket
    double* right_end
    RowSearch first
    RowSearch second

cdef Py_ssize_t MAX_STEPS, NEWTON_STEPS, OUTER_STEPS, OUTER_NEWTON_STEPS, VECTORS, NUMBERS
cdef double EXACT, OUTER_EXACT, MIN_CURVATURE, NEARLY_PARALLEL

cpdef Py_ssize_t search_rows(Py_ssize_t d) noexcept nogil
cdef void lay_out(SeparableProblem* problem, Py_ssize_t d, double* work) noexcept nogil
cdef void lay_out_row(RowSearch* line, double* work) noexcept nogil
cdef void box_search(SeparableProblem* problem) noexcept nogil
cdef void row_search(SeparableProblem* problem) noexcept nogil
cdef void two_row_search(SeparableProblem* problem) noexcept nogil
cdef void solve_row(SeparableProblem* problem) noexcept nogil
cdef void free_minimum(SeparableProblem* problem) noexcept nogil
cdef void steepest(out_row largest, in_row slope) noexcept nogil
cdef void free_component(in_row lower, in_row upper, in_row steep, out_row curvature, in_row point, in_row slope, out_row x) noexcept nogil
cdef void clip_rows(out_row x, in_row lower, in_row upper) noexcept nogil
cdef void row_steps(SeparableProblem* problem, double* factor, double* step) noexcept nogil
cdef void quotient(out_row to, in_row a, in_row b) noexcept nogil
cdef void bracket(SeparableProblem* problem) noexcept nogil
cdef void extremes(in_row lower, in_row upper, in_row free, in_row factor, in_row curvature, out_row greatest, out_row least, out_row scale, out_row strongest, out_row weakest) noexcept nogil
cdef void set_bracket(in_row greatest, in_row least, in_row scale, in_row strongest, in_row weakest, out_row left, out_row right, out_row residual_left, out_row residual_right, out_row exact) noexcept nogil
cdef bint any_interval(in_row least, in_row most, out_row nu, out_row goal) noexcept nogil
@cython.locals(interval=bint, over=bint, under=bint, inactive=bint)
cdef void choose_goal(in_row least, in_row most, in_row values, out_row goal, out_row open_, out_row residual_left, out_row residual_right, out_row left, out_row right, out_row exact) noexcept nogil
cdef void first_multiplier(SeparableProblem* problem) noexcept nogil
cdef void inactive_part(in_row point, in_row factor, in_row lower, in_row upper, in_row free, in_row step, out_row total, out_row fall) noexcept nogil
@cython.locals(within=bint)
cdef void guess(in_row total, in_row fall, in_row left, in_row right, out_row nu) noexcept nogil
cdef void residual(SeparableProblem* problem) noexcept nogil
cdef void residual_part(in_row factor, in_row step, in_row lower, in_row upper, in_row free, in_row nu, out_row total, out_row fall) noexcept nogil
cdef void advance(out_row nus, in_row residuals, in_row falls, out_row open_, out_row lefts, out_row rights, out_row residual_left, out_row residual_right, in_row exact, double newton_too) noexcept nogil
cdef void mix(out_row x, in_row step, in_row lower, in_row upper, in_row left, in_row right, in_row residual_left, in_row residual_right) noexcept nogil
cdef void outer_bracket(SeparableProblem* problem) noexcept nogil
cdef void outer_extremes(in_row lower, in_row upper, in_row free, in_row factor, in_row curvature, out_row strongest, out_row scale) noexcept nogil
@cython.locals(inactive=bint)
cdef void outer_residual(SeparableProblem* problem) noexcept nogil
cdef void price_row(out_row x, in_row unpriced, in_row step, in_row nu) noexcept nogil
cdef void outer_part(in_row xs, in_row lower, in_row upper, in_row factor, in_row step, in_row factor2, in_row step2, out_row total, out_row fall, out_row own, out_row cross) noexcept nogil
cdef void keep_end(in_row xs, in_row residuals, in_row open_, out_row left_end, out_row right_end, double starting) noexcept nogil
cdef void mix_ends(out_row x, in_row left_end, in_row right_end, in_row lower, in_row upper, in_row residual_left, in_row residual_right) noexcept nogil
cpdef object search(Py_ssize_t d, Py_ssize_t rows, object work)
