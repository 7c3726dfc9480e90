cdef struct EnsembleView:
    Py_ssize_t width         # runs of a block, 16 or 1
    Py_ssize_t n             # states
    Py_ssize_t m             # rows of g
    uint64_t pairs           # of normals, per round
    Py_ssize_t released      # numbers of a round's transcript
    int32_t* code
    Py_ssize_t code_size
    int32_t* outputs         # df/dx (n), g (m), entries of g'
    double* r                # x (n), mu (m), then the tape's own
    double* lower
    double* upper
    double* sigma
    int64_t* row_order       # which normal a value gets; -1 for none
    int64_t* entry_start     # entries of state i are entry_start[i] .. entry_start[i + 1]
    int64_t* entry_row
    int64_t* entry_order
    int64_t* entry_output    # the place of a noisy entry in the transcript
    uint64_t* seeds
    double* normals
    double* slopes
    double* failed
    int64_t* marks
    Py_ssize_t mark_count
    double* trace            # x and mu at every mark
    bint transcribed
    double* transcript

cdef class EnsembleCore:
    cdef public dict arrays
    cdef EnsembleView view
    cpdef object advance(self, Py_ssize_t done, Py_ssize_t until, object steps, object marks, object trace, object transcript)

cdef void rounds_of_runs(EnsembleView* e, Py_ssize_t done, Py_ssize_t until, double* steps) noexcept nogil
cdef void rounds_of_one(EnsembleView* e, Py_ssize_t done, Py_ssize_t until, double* steps) noexcept nogil
cdef Py_ssize_t first_mark(EnsembleView* e, Py_ssize_t done) noexcept nogil
cdef void bound_step(EnsembleView* e, Py_ssize_t i, double gamma, double alpha) noexcept nogil
cdef void add_noise(out_row to, in_row value, in_row normal, double sigma) noexcept nogil
cdef void multiplier_row(out_row mu, in_row y, double gamma, double alpha) noexcept nogil
cdef void note_failure(EnsembleView* e, double number) noexcept nogil
cdef void mark_failure(in_row total, double number, out_row failed) noexcept nogil
