cdef struct RowSearch:
    double* factor           # a, d rows
    double* step             # a/w, d rows
    double[16] least
    double[16] most
    double[16] slack         # residual per multiplier; 0 for a row that must hold
    double[16] nu
    double[16] goal
    double[16] left          # the bracket of nu
    double[16] right
    double[16] residual_left
    double[16] residual_right
    double[16] open          # whether anything is left to do
    double[16] residual
    double[16] fall
    double[16] exact

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

cdef Py_ssize_t MAX_STEPS, BEFORE_BISECTION, OUTER_STEPS, OUTER_BEFORE_BISECTION
cdef double ROW_EXACT, OUTER_EXACT, MIN_CURVATURE, NEARLY_PARALLEL

cpdef Py_ssize_t search_rows(Py_ssize_t d) noexcept nogil
cdef void lay_out_separable(SeparableProblem* problem, Py_ssize_t d, double* work) noexcept nogil
cdef void search(SeparableProblem* problem, Py_ssize_t rows) noexcept nogil
cdef void search_two(SeparableProblem* problem) noexcept nogil
cdef void search_one(SeparableProblem* problem) noexcept nogil
cdef void free_minimum(SeparableProblem* problem) noexcept nogil
cdef void free_component(in_row lower, in_row upper, in_row steep, out_row curvature, in_row point, in_row slope, out_row x) noexcept nogil
cdef void clip_rows(out_row x, in_row lower, in_row upper) noexcept nogil
cdef void set_steps(SeparableProblem* problem, RowSearch* line) noexcept nogil
cdef void quotient(out_row to, in_row a, in_row b) noexcept nogil
cdef void bracket(SeparableProblem* problem) noexcept nogil
cdef bint any_interval(RowSearch* line) noexcept nogil
@cython.locals(interval=bint, over=bint, under=bint, inactive=bint)
cdef void choose_goal(RowSearch* line) noexcept nogil
@cython.locals(within=bint)
cdef void first_multiplier(SeparableProblem* problem) noexcept nogil
cdef void row_residual(SeparableProblem* problem) noexcept nogil
cdef void advance_row(RowSearch* line, bint newton_too) noexcept nogil
cdef void mix_row(out_row x, in_row step, in_row lower, in_row upper, RowSearch* line) noexcept nogil
cdef void outer_bracket(SeparableProblem* problem) noexcept nogil
@cython.locals(inactive=bint)
cdef void outer_residual(SeparableProblem* problem) noexcept nogil
cdef void price_row(out_row x, in_row unpriced, in_row step, in_row nu) noexcept nogil
cdef void keep_end(in_row xs, out_row left_end, out_row right_end, RowSearch* line, bint starting) noexcept nogil
cdef void mix_ends(out_row x, in_row left_end, in_row right_end, in_row lower, in_row upper, RowSearch* line) noexcept nogil
cpdef object run_search(Py_ssize_t d, Py_ssize_t rows, object data, object work)
