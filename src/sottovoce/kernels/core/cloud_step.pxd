cdef struct CloudView:
    Py_ssize_t p
    PublicSet* public_set
    double* unit             # sigma of every sum; any positive size where there is no noise
    double* noise            # r: sigma over the range of every sum, 0 for one without noise
    double* price            # lambda(k)
    double* answer           # the prices to report
    double* released         # the releases, averaged
    double* memory           # see kept_size
    double memory_power      # a
    double doubt
    double reach
    double start
    bint planned             # releases are noisy: the answer is their average
    Py_ssize_t begun         # rounds that count as done before the first, 0 without a memory
    double* mean_price       # lbar; these and those below point into memory
    double* mean_sum         # ybar
    double* aim              # u
    double* spread           # c
    double* covariance       # C
    double* response         # E
    double* slope            # B
    double* basis            # V
    double* total            # S
    double* pull             # R
    double* H
    double* work

cdef class CloudCore:
    cdef public dict arrays
    cdef PublicSet c_set
    cdef CloudView view
    cpdef bint round(self, Py_ssize_t k, object y, double share, double steer) except -1
    cpdef object nearest(self, object v, object metric, object u, object work, bint priced)

cdef Py_ssize_t DENSE, EVERY_ROUND
cdef double EXPLAINED, OBSCURED, FIRST_ROUNDS, NOISE_FREE, SEARCH_ROUNDS, MIN_MEMORY, MIN_SPREAD, STILL, ALIKE, RUNAWAY

cpdef Py_ssize_t entries(Py_ssize_t p) noexcept nogil
cpdef Py_ssize_t kept_size(Py_ssize_t p) noexcept nogil
cpdef Py_ssize_t memory_size(Py_ssize_t p) noexcept nogil
cdef void lay_out_cloud(CloudView* cloud) noexcept nogil
cdef bint cloud_round(CloudView* cloud, Py_ssize_t k, double* y, double share, double steer) noexcept nogil
cdef bint cloud_step(CloudView* cloud, Py_ssize_t k, double* y) noexcept nogil
cdef void first_aim(CloudView* cloud, double* y) noexcept nogil
cdef void maximise_model(CloudView* cloud, double recent) noexcept nogil
cdef void count_rounds(CloudView* cloud, Py_ssize_t k, double* y) noexcept nogil
cdef void remember(CloudView* cloud, double w) noexcept nogil
cdef void learn(CloudView* cloud) noexcept nogil
cdef void learn_rows(CloudView* cloud) noexcept nogil
cdef double reach_now(CloudView* cloud, Py_ssize_t k) noexcept nogil
cdef void regularise(CloudView* cloud, double recent, double reach) noexcept nogil
cdef void build_model(CloudView* cloud, double inverse_gain) noexcept nogil
cdef CloudView* cloud_view(CloudCore core) noexcept
