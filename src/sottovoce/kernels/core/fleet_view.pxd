cdef enum:
    GRADIENT, SCALAR, SEPARABLE, NEWTON, INTERIOR

cdef struct FleetView:
    int how                  # agents move by gradient steps, a search, or a method
    Py_ssize_t count         # agents
    Py_ssize_t d             # components of a state
    Py_ssize_t n             # variables: components and what stands for non-smooth terms
    Py_ssize_t width         # lanes of a block, 16 or 1
    Py_ssize_t blocks
    Py_ssize_t terms
    Py_ssize_t parameters
    Py_ssize_t multiplier    # the first register of the terms' multipliers
    Py_ssize_t row_multiplier  # of the local rows' multipliers
    Py_ssize_t inequalities
    Py_ssize_t equalities
    Py_ssize_t linear_rows   # of a separable problem, squares included
    Py_ssize_t hard_rows     # without squares
    Py_ssize_t local_rows    # rows of the agents' own sets beside their bounds
    Py_ssize_t lower_stride  # from block to block; 0 where all agents have the same bounds
    Py_ssize_t upper_stride
    Py_ssize_t dense
    Py_ssize_t entries
    Py_ssize_t weighted
    Py_ssize_t sum_rows
    double* r
    double* x
    double* center           # z, which trails x; x itself where agents take gradient steps
    double* worth            # W of every agent
    double* mean             # the answer; x itself where nothing is averaged
    double* hat              # the solution, or NaN
    double* data
    double* lower
    double* upper
    double* extra_lower      # bounds of the n - d variables more, by agent
    double* extra_upper
    int64_t* term_row
    int64_t* dense_row
    int64_t* dense_rows
    int64_t* dense_terms
    int64_t* dense_first
    int64_t* dense_start
    int64_t* dense_sum
    double* dense_weights
    int64_t* entry_start
    int32_t* entry_row
    int32_t* entry_term
    double* entry_weight
    double* lane_sums
    double* result           # minimisers of a block
    double* work
    TapeView contributions   # h
    TapeView pull            # d(lambda'h)/dx; of a scalar d(f + lambda'h)/dx and its derivative, too
    TapeView slope           # d(f + lambda'h)/dx
    TapeView step            # h, d(f + lambda'h)/dx
    TapeView problem         # of a separable problem: gradient, curvature, pull, rows
    TapeView projection      # its hard rows alone
    TapeView rows            # derivatives of local rows, scattered
    TapeView objective       # derivatives of f + lambda'h, scattered
    TapeView measure         # h, f, d(f + lambda'h)/dx

cdef class FleetCore:
    cdef public dict arrays
    cdef public dict tapes
    cdef FleetView view

cdef double* lower_of(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef double* upper_of(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef double* output(FleetView* fleet, TapeView* tape, Py_ssize_t i) noexcept nogil
cdef Py_ssize_t lanes_used(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef void load(FleetView* fleet, Py_ssize_t b, double* states) noexcept nogil
cdef void set_prices(FleetView* fleet, double* price) noexcept nogil
cdef void weigh_prices(FleetView* fleet, Py_ssize_t b, double* price) noexcept nogil
cdef void weigh_entries(FleetView* fleet, Py_ssize_t agent, double* multiplier, double* price) noexcept nogil
cdef void add_scaled(double* to, double* a, double value, Py_ssize_t width) noexcept nogil
cdef void add_scaled_row(out_row to, in_row a, double value) noexcept nogil
cdef void add_contributions(FleetView* fleet, Py_ssize_t b, TapeView* tape, double* grid, bint gridded, double* sums) noexcept nogil
cdef void add_entries(FleetView* fleet, Py_ssize_t agent, Py_ssize_t lane, TapeView* tape, double* grid, bint gridded, double* sums) noexcept nogil
cdef void add_term(double* to, double* h, double step, Py_ssize_t used) noexcept nogil
cdef void add_weighted(double* to, double* h, double* weight, double step, Py_ssize_t used) noexcept nogil
cdef void clear(FleetView* fleet) noexcept nogil
cdef void gather(FleetView* fleet, double* sums) noexcept nogil
cdef void gather_row(double* lanes, double* total, Py_ssize_t width) noexcept nogil
cdef FleetView* fleet_view(FleetCore core) noexcept

cdef inline FleetView** fleet_pointers(object storage) except? NULL:
    return <FleetView**>words(storage)
