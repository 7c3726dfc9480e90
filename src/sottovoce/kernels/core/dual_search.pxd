cdef struct RowSearch:
    int32_t* factor          # a, d registers
    double[16] least
    double[16] most
    double[16] slack         # residual per multiplier; 0 for a row that must hold
    double[16] start         # a'x and its fall with the bounds that hold the last state
    double[16] start_fall
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
    double[16] share         # of the right end in the answer

cdef struct SeparableProblem:
    Py_ssize_t d
    double* r                # registers
    int32_t* outputs         # g, f'', pull, d each; by row: a, then least, most, slack
    double* point            # p; d rows each
    double* last             # the last state: its bounds are tried first
    double* lower
    double* upper
    double* x                # the answer
    double* flexibility      # 1/w
    double* unpriced         # p - g/w, of two rows
    double* left_end         # x at the ends of the second row's bracket
    double* right_end
    double[16] least         # w width: the least that is divided by
    double[16] proximal      # theta W
    double[16] stiffest      # the largest w width
    double[16] narrowest     # width
    double[16] force         # what takes every component to a bound
    RowSearch first
    RowSearch second

cdef Py_ssize_t MAX_STEPS, BEFORE_BISECTION, OUTER_STEPS, OUTER_BEFORE_BISECTION
cdef double ROW_EXACT, OUTER_EXACT, MIN_CURVATURE, NEARLY_PARALLEL

cpdef Py_ssize_t search_rows(Py_ssize_t d) noexcept nogil
cdef void lay_out_separable(SeparableProblem* problem, Py_ssize_t d, double* work) noexcept nogil
cdef void point_to_row(SeparableProblem* problem, RowSearch* line, Py_ssize_t start) noexcept nogil
cdef void free_minimum(SeparableProblem* problem, in_row worth, double theta, double near) noexcept nogil
cdef void keep_largest(out_row largest, in_row a) noexcept nogil
cdef void free_component(SeparableProblem* problem, out_row x, out_row flexibility, in_row point, in_row slope, in_row curvature, in_row lower, in_row upper, double near) noexcept nogil
cdef void search(SeparableProblem* problem, Py_ssize_t rows, Py_ssize_t start) noexcept nogil
cdef void clip_rows(out_row x, in_row lower, in_row upper) noexcept nogil
cdef void search_two(SeparableProblem* problem) noexcept nogil
cdef void search_one(SeparableProblem* problem) noexcept nogil
cdef void survey(SeparableProblem* problem, RowSearch* line) noexcept nogil
cdef bint any_interval(RowSearch* line) noexcept nogil
@cython.locals(interval=bint, over=bint, under=bint, inactive=bint)
cdef void choose_goal(RowSearch* line) noexcept nogil
@cython.locals(within=bint)
cdef void first_multiplier(RowSearch* line) noexcept nogil
cdef void row_residual(SeparableProblem* problem) noexcept nogil
cdef void advance_row(RowSearch* line, bint newton_too) noexcept nogil
cdef void choose_share(RowSearch* line) noexcept nogil
cdef void end_row(out_row x, in_row flexibility, in_row factor, in_row lower, in_row upper, in_row nu) noexcept nogil
cdef void mix_row(out_row x, in_row flexibility, in_row factor, in_row lower, in_row upper, RowSearch* line) noexcept nogil
@cython.locals(inactive=bint)
cdef void outer_residual(SeparableProblem* problem, double* force, double* strongest) noexcept nogil
cdef void price_row(out_row x, in_row unpriced, in_row factor, in_row flexibility, in_row nu) noexcept nogil
cdef void keep_end(in_row xs, out_row left_end, out_row right_end, RowSearch* line, bint starting) noexcept nogil
cdef void mix_ends(out_row x, in_row right_end, in_row lower, in_row upper, in_row share) noexcept nogil
cpdef object run_search(Py_ssize_t d, Py_ssize_t rows, object data, object outputs, object work)
