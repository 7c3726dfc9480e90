cdef struct RunView:
    Py_ssize_t me            # this thread of the team
    Py_ssize_t team
    Py_ssize_t chunks        # sums depend on it, so it is fixed for a problem
    Py_ssize_t first_chunk   # of this thread
    Py_ssize_t last_chunk    # the one after its last
    Py_ssize_t p             # sums
    Py_ssize_t stride        # p sums, and MEASURES of every run
    uint64_t pairs           # of normals, per round
    uint64_t* seeds          # of every run
    Py_ssize_t lanes         # runs, 16 or 1
    bint gridded             # contributions are integers, numbers of grid steps
    double* offset
    double* grid
    double* sigma
    Py_ssize_t entries       # noisy entries of dg/dx
    double* entry_noise      # where their noise is read
    int64_t* order           # which normal a sum, then an entry, gets; -1 for none
    double* normals          # of 16 rounds
    double* parts            # three buffers of the chunks' sums
    double* y
    double* failed           # by run the round in which numbers stopped being finite, or 0
    double* mu               # of Algorithm 1
    double* answer
    double* price
    FleetView** fleets
    Py_ssize_t fleet_count
    CloudView* cloud
    int64_t* counter
    int64_t arrivals
    int64_t* marks
    Py_ssize_t mark_count
    double* trace            # by mark: sums, MEASURES, the answer's prices, the last prices; in lanes
    bint transcribed
    double* transcript

cdef class RunCore:
    cdef public dict arrays
    cdef public list fleets
    cdef public object cloud
    cdef RunView view
    cpdef object advance(self, Py_ssize_t done, Py_ssize_t until, object steps, object counter, object marks, object trace, object transcript)

cdef void price_rounds(RunView* run, Py_ssize_t done, Py_ssize_t until, double* steps) noexcept nogil
cdef void gradient_rounds(RunView* run, Py_ssize_t done, Py_ssize_t until, double* steps) noexcept nogil
cdef void wait(RunView* run) noexcept nogil
cdef void add_up(RunView* run, Py_ssize_t which) noexcept nogil
cdef void draw(RunView* run, Py_ssize_t k, Py_ssize_t done) noexcept nogil
cdef void add_noise(RunView* run, double* y, Py_ssize_t first, Py_ssize_t count, Py_ssize_t b) noexcept nogil
cdef void note_failures(RunView* run, double number) noexcept nogil
cdef void fail(RunView* run, Py_ssize_t lane, double number) noexcept nogil
cdef void release(RunView* run, Py_ssize_t k, Py_ssize_t done) noexcept nogil
cdef Py_ssize_t start_marks(RunView* run, Py_ssize_t done) noexcept nogil
cdef void record(RunView* run, Py_ssize_t mark, double* answer, double* price) noexcept nogil
