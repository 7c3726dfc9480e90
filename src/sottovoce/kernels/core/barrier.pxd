from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_MSC_VER)
    #include <intrin.h>
    #include <windows.h>
    static inline void sv_arrive(int64_t *c) { _InterlockedIncrement64((volatile long long *)c); }
    static inline int64_t sv_arrived(int64_t *c) { return _InterlockedOr64((volatile long long *)c, 0); }
    static inline void sv_yield(void) { SwitchToThread(); }
    #else
    #include <sched.h>
    static inline void sv_arrive(int64_t *c) { __atomic_fetch_add(c, 1, __ATOMIC_SEQ_CST); }
    static inline int64_t sv_arrived(int64_t *c) { return __atomic_load_n(c, __ATOMIC_SEQ_CST); }
    static inline void sv_yield(void) { sched_yield(); }
    #endif
    """
    void arrive "sv_arrive" (int64_t* counter) noexcept nogil
    int64_t arrived "sv_arrived" (int64_t* counter) noexcept nogil
    void yield_thread "sv_yield" () noexcept nogil

cdef enum:
    SPINS = 300  # rounds take microseconds, far less than waking a sleeping thread

cdef inline void barrier(int64_t* counter, int64_t expected) noexcept nogil:
    """Spin until the counter, which every thread that arrives raises by 1, is ``expected``."""
    cdef int spins = 0
    arrive(counter)
    while arrived(counter) < expected:
        spins += 1
        if spins > SPINS:
            yield_thread()
