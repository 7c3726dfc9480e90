from libc.math cimport fabs, sqrt
from .box_newton cimport GradientTape
from .box_newton cimport minimise as minimise_box
from .dual_search cimport RowSearch, SeparableProblem, box_search, row_search, two_row_search
from .dual_search cimport lay_out as lay_out_separable
from .fleet_view cimport (
    INTERIOR, NEWTON, SCALAR, SEPARABLE, FleetCore, FleetView, TapeView, add_contributions, clear, gather,
    lanes_used, load, output, run_tape, set_prices, weigh_prices
)
from .interior_point cimport DerivativeTapes, interior_minimum
from .lanes cimport LANES, copy, copy_some, doubles, fill, in_row, out_row, row, skip, spread
from .scalar_search cimport LaneSearch, SlopeTape, minimise_lanes
from .scalar_search cimport lay_out as lay_out_search
from .scalar_search cimport minimise as minimise_scalar

cdef Py_ssize_t MEASURES

cdef Py_ssize_t chunk_start(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks) noexcept nogil
cdef void contribute(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* grid, bint gridded, double* sums) noexcept nogil
cdef void minimise(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* grid, bint gridded, double* sums, Py_ssize_t k, double theta, double share) noexcept nogil
cdef void average(double* mean, double* x, double share, Py_ssize_t size) noexcept nogil
cdef void solve_block(FleetView* fleet, Py_ssize_t b, double* states, double root, double theta, double near) noexcept nogil
cdef double damping(double pull, double lower, double upper, double root, double theta) noexcept nogil
cdef void damping_row(out_row to, in_row pull, in_row lower, in_row upper, double root, double theta) noexcept nogil
cdef void solve_scalar(FleetView* fleet, Py_ssize_t b, double root, double theta) noexcept nogil
cdef void solve_scalars(FleetView* fleet, Py_ssize_t b, double root, double theta) noexcept nogil
cdef void solve_box(FleetView* fleet, Py_ssize_t b, double root, double theta) noexcept nogil
cdef void solve_separable(FleetView* fleet, Py_ssize_t b, double root, double theta, double near) noexcept nogil
cdef void damp_curvature(out_row to, in_row curvature, in_row pull, in_row lower, in_row upper, double root, double theta, double near) noexcept nogil
cdef void copy_bounds(FleetView* fleet, Py_ssize_t b, SeparableProblem* at) noexcept nogil
cdef void copy_rows(FleetView* fleet, TapeView* tape, SeparableProblem* at, Py_ssize_t start, Py_ssize_t count) noexcept nogil
cdef void search(SeparableProblem* at, Py_ssize_t rows) noexcept nogil
cdef void solve_interior(FleetView* fleet, Py_ssize_t b, double root, double theta, double near, bint with_objective) noexcept nogil
cdef void set_derivatives(FleetView* fleet, DerivativeTapes* tapes, bint with_objective) noexcept nogil
cdef void project_start(FleetView* fleet) noexcept nogil
cdef void clip_block(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef void project_separable(FleetView* fleet, Py_ssize_t b) noexcept nogil
cdef void measure(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* sums, Py_ssize_t p) noexcept nogil
cdef void measure_agent(FleetView* fleet, Py_ssize_t b, Py_ssize_t lane, double* out) noexcept nogil
cdef void gradient_step(FleetView* fleet, Py_ssize_t chunk, Py_ssize_t chunks, double* price, double* sums, double gamma, double alpha) noexcept nogil
cdef double projected_step(double x, double slope, double lower, double upper, double gamma, double alpha) noexcept nogil
cdef void step_row(out_row x, in_row slope, in_row lower, in_row upper, double gamma, double alpha) noexcept nogil
cpdef object run_minimise(FleetCore core, object price, object grid, bint gridded, object sums, Py_ssize_t k, double theta, double share)
cpdef object run_contribute(FleetCore core, object grid, bint gridded, object sums)
cpdef object run_measure(FleetCore core, object price, object sums)
cpdef object run_project_start(FleetCore core)
cpdef object run_gradient_step(FleetCore core, object price, object sums, double gamma, double alpha)
