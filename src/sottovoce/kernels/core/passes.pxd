cdef double TRAILING, NEGLIGIBLE_STATE, UNPRICED
cdef Py_ssize_t MEASURES

cdef Py_ssize_t chunk_start(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks) noexcept nogil
cdef void contribute(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* grid, bint gridded, double* sums) noexcept nogil
cdef void minimise(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* grid, bint gridded, double* sums, double theta, double retained, double share) noexcept nogil
cdef void minimise_number(FleetView* fleet, double* price, double* grid, bint gridded, double* sums, double theta, double retained, double share) noexcept nogil
cdef void average(double* mean, double* x, double share, Py_ssize_t size) noexcept nogil
cdef void trail(out_row center, in_row x, Py_ssize_t size) noexcept nogil
cdef void solve_block(FleetView* fleet, Py_ssize_t b, double* states, double theta, double retained, double near) noexcept nogil
cdef double decayed_maximum(double worth, double now, double retained) noexcept nogil
cdef double proximal_weight(double worth, double lower, double upper, double theta) noexcept nogil
cdef void proximal_weights(FleetView* fleet, Py_ssize_t b, double theta, double retained, double* weight) noexcept nogil
cdef void update_worths(double* worth, in_row now, double retained) noexcept nogil
cdef void raise_worths(out_row now, in_row pull, in_row lower, in_row upper) noexcept nogil
cdef void weight_row(out_row to, in_row worth, in_row lower, in_row upper, double theta) noexcept nogil
cdef void solve_scalars(FleetView* fleet, Py_ssize_t b, double theta, double retained) noexcept nogil
cdef void solve_box(FleetView* fleet, Py_ssize_t b, double theta, double retained) noexcept nogil
cdef void solve_separable(FleetView* fleet, Py_ssize_t b, double theta, double retained, double near) noexcept nogil
cdef void lay_out_block(FleetView* fleet, Py_ssize_t b, TapeView* tape, SeparableProblem* problem) noexcept nogil
cdef void solve_interior(FleetView* fleet, Py_ssize_t b, double theta, double retained, double near, bint with_objective) noexcept nogil
cdef void project_start(FleetView* fleet) noexcept nogil
cdef void clip_block(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef void project_separable(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef void measure(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* sums, Py_ssize_t p, Py_ssize_t runs) noexcept nogil
cdef void measure_agent(FleetView* fleet, Py_ssize_t b, Py_ssize_t lane, double* out, Py_ssize_t stride) noexcept nogil
cdef void gradient_step(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* sums, double gamma, double alpha) noexcept nogil
cdef double projected_step(double x, double slope, double lower, double upper, double gamma, double alpha) noexcept nogil
cdef void step_row(out_row x, in_row slope, in_row lower, in_row upper, double gamma, double alpha) noexcept nogil
cpdef object run_minimise(FleetCore core, object price, object grid, bint gridded, object sums, Py_ssize_t k, double theta, double share)
cpdef object run_contribute(FleetCore core, object grid, bint gridded, object sums)
cpdef object run_measure(FleetCore core, object price, object sums)
cpdef object run_project_start(FleetCore core)
