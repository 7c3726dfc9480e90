"""The kernels themselves: plain Python modules, with C types beside them in .pxd files.

Lives here: arithmetic on arrays, in loops that say the order of every operation. May not live here:
formulas, problems, anything that allocates, files, clocks. Setup compiles these modules to
``sottovoce.kernels._baseline`` and ``._avx2``; here they run uncompiled, slowly, to the same bits.

Conventions:
    a pointer is a NumPy array here; ``skip(p, i)`` is ``p + i``;
    ``row(p, i)`` is the i-th row of 16 lanes, a lane being one agent or one run;
    a struct is an object with attributes, passed by pointer;
    functions without a Python object in their signature run without the global interpreter lock.
"""
