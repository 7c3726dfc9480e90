cdef enum:
    ADD, SUB, MUL, DIV, MULADD, SUBMUL, SQRT, EXP, LOG, POW, ABS, SIGN, MAX, WHERE, ADD3, SUM, DOT

cdef struct TapeView:
    int32_t* code
    Py_ssize_t size
    int32_t* outputs         # registers; (kind, place, register) where outputs are scattered
    Py_ssize_t count

cdef void run_tape(TapeView* tape, double* r, Py_ssize_t width) noexcept nogil
cdef void interpret(int32_t* code, Py_ssize_t size, double* r, Py_ssize_t width) noexcept nogil
cdef void repeat(int op, int32_t* run, Py_ssize_t length, double* r, Py_ssize_t width) noexcept nogil
cdef void operate(int op, out_row to, in_row a, in_row b, in_row c, Py_ssize_t width) noexcept nogil
cdef double compute(int op, double a, double b, double c) noexcept nogil
cdef void total(int32_t* run, Py_ssize_t length, double* r, Py_ssize_t width, bint products) noexcept nogil
cdef void accumulate(out_row value, in_row a, Py_ssize_t width) noexcept nogil
cdef void accumulate_product(out_row value, in_row a, in_row b, Py_ssize_t width) noexcept nogil
cdef object point_to_tape(TapeView* view, tuple tape)
cpdef object evaluate(object code, object r, Py_ssize_t width)
