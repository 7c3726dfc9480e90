cdef enum:
    BALL, LEVEL, COST

cdef struct PublicSet:
    Py_ssize_t sums
    double* lower
    double* upper
    Py_ssize_t regions
    int64_t* kinds           # of regions of C, and of public costs
    int64_t* starts          # region r holds members[starts[r]:starts[r + 1]]
    int64_t* members
    double* least            # what the members can be, laid out as they are
    double* most
    double* low              # where a region ends: one width beyond what its members can be
    double* high
    double* centers          # of balls, likewise
    double* radii
    double* levels
    double* rising           # of costs, likewise: 1 for a sum whose price may not be negative
    int64_t* rows            # of costs: how many rows c(w) <= 0 there are
    int64_t* variable_starts # cost r has the variables variable_starts[r] and on: its sums come first
    double* variable_least   # what they can be
    double* variable_most
    double* variable_low     # their bounds
    double* variable_high
    double* scratch          # of costs, see ``public_cost.cost_work``
    int64_t* scratch_starts
    int32_t* phi_code        # tapes of phi_r: value, gradient, Hessian; of costs see ``CostStep``
    int64_t* phi_code_starts
    double* phi_registers
    int64_t* phi_register_starts
    int32_t* phi_outputs
    int64_t* phi_output_starts

cdef Py_ssize_t PROJECTION_STEPS, ROOT_STEPS, PROJECTION_HALVINGS
cdef double PROJECTION_ROUNDING, ROOT_CLOSE, QUADRATIC

cpdef Py_ssize_t project_work(Py_ssize_t size) noexcept nogil
cdef void project(double* v, double* weight, PublicSet* public_set, double* u, double* work) noexcept nogil
cdef void project_ball(Py_ssize_t size, double* v, double* weight, double* center, double radius, double* u) noexcept nogil
cdef double phi(PublicSet* public_set, Py_ssize_t r, double* u, double* gradient, double* hessian) noexcept nogil
cdef void project_region(PublicSet* public_set, Py_ssize_t r, double* v, double* weight, double* u, double* work) noexcept nogil
cdef double minimise_penalty(PublicSet* public_set, Py_ssize_t r, double nu, double* v, double* weight, double* u, double* work) noexcept nogil
cdef void mark_active_bounds(PublicSet* public_set, Py_ssize_t r, double nu, double* v, double* weight, double* u, double* gradient, double* fixed) noexcept nogil
cdef void factorise(Py_ssize_t size, double* hessian, double nu, double* weight, double* fixed, double* factor) noexcept nogil
cdef void solve_factored(Py_ssize_t size, double* factor, double* right) noexcept nogil
