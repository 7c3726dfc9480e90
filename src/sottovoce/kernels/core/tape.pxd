cdef enum:
    ADD, SUB, MUL, DIV, MULADD, SUBMUL, SQRT, EXP, LOG, POW, ABS, SIGN, MAX, WHERE, ADD3, SUM, DOT

ctypedef void (*unary_row)(out_row to, in_row a) noexcept nogil
ctypedef void (*binary_row)(out_row to, in_row a, in_row b) noexcept nogil
ctypedef void (*ternary_row)(out_row to, in_row a, in_row b, in_row c) noexcept nogil

# Inline, so that the function is known where they are called, and inline as well.
cdef inline void repeat_unary(unary_row function, double* to, double* a, Py_ssize_t times, Py_ssize_t step_a) noexcept nogil:
    while times > 0:
        function(to, a)
        to += LANES
        a += step_a
        times -= 1

cdef inline void repeat_binary(binary_row function, double* to, double* a, double* b, Py_ssize_t times, Py_ssize_t step_a, Py_ssize_t step_b) noexcept nogil:
    while times > 0:
        function(to, a, b)
        to += LANES
        a += step_a
        b += step_b
        times -= 1

cdef inline void repeat_ternary(ternary_row function, double* to, double* a, double* b, double* c, Py_ssize_t times, Py_ssize_t step_a, Py_ssize_t step_b, Py_ssize_t step_c) noexcept nogil:
    while times > 0:
        function(to, a, b, c)
        to += LANES
        a += step_a
        b += step_b
        c += step_c
        times -= 1

cdef struct TapeView:
    int32_t* one             # code for one
    Py_ssize_t one_size
    int32_t* lanes           # code for 16 lanes
    Py_ssize_t lanes_size
    int32_t* outputs         # registers; (kind, place, register) where outputs are scattered
    Py_ssize_t count

cdef void run_tape(TapeView* tape, double* r, Py_ssize_t width) noexcept nogil
cdef object point_to_tape(TapeView* view, tuple tape)
cdef void tape_run(int32_t* code, Py_ssize_t size, double* r) noexcept nogil
cdef void tape_run_one(int32_t* code, Py_ssize_t size, double* r) noexcept nogil
cdef void operate(int op, double* to, double* r, int32_t* operands) noexcept nogil
cdef double operate_one(int op, double a, double b, double c) noexcept nogil
cdef double total_one(double* r, int32_t* terms, Py_ssize_t count) noexcept nogil
cdef void total_row(double* to, double* r, int32_t* terms, Py_ssize_t count) noexcept nogil
cdef void accumulate(out_row value, in_row a) noexcept nogil
cdef double dot_one(double* r, int32_t* terms, Py_ssize_t count) noexcept nogil
cdef void dot_row(double* to, double* r, int32_t* terms, Py_ssize_t count) noexcept nogil
cdef void accumulate_product(out_row value, in_row a, in_row b) noexcept nogil
cdef void add(out_row to, in_row a, in_row b) noexcept nogil
cdef void add_three(out_row to, in_row a, in_row b, in_row c) noexcept nogil
cdef void subtract(out_row to, in_row a, in_row b) noexcept nogil
cdef void multiply(out_row to, in_row a, in_row b) noexcept nogil
cdef void divide(out_row to, in_row a, in_row b) noexcept nogil
cdef void multiply_add(out_row to, in_row a, in_row b, in_row c) noexcept nogil
cdef void subtract_product(out_row to, in_row a, in_row b, in_row c) noexcept nogil
cdef void square_root(out_row to, in_row a) noexcept nogil
cdef void raise_to(out_row to, in_row a, in_row b) noexcept nogil
cdef void absolute(out_row to, in_row a) noexcept nogil
cdef void sign(out_row to, in_row a) noexcept nogil
cdef void maximum(out_row to, in_row a, in_row b) noexcept nogil
cdef void where(out_row to, in_row a, in_row b, in_row c) noexcept nogil
cpdef object run_lanes(object code, object r)
cpdef object run_one(object code, object r)
