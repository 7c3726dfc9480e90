"""The kernels themselves: plain Python modules, with C types beside them in .pxd files.

Lives here: arithmetic on arrays, in loops that say the order of every operation. May not live here:
formulas, problems, anything that allocates, files, clocks. Here they run uncompiled, slowly. Setup
joins them, in the order below, into one module that it compiles to ``sottovoce.kernels._baseline``
and ``._avx2``, to the same bits: one module, so that the C compiler may inline any function in any
other. Joining leaves out imports of each other, so a name means the same in all of them. It adds
a function per struct that sets the fields that a dictionary names: ``fill_run_view(to, values)``.

A function without a Python object in its signature runs without the global interpreter lock.
"""

MODULES = (
    "plain", "functions", "normals", "tape", "linear", "projection", "public_cost", "prices",
    "cloud_step", "box_search", "dual_search", "interior_point", "fleet_view", "passes", "run_loop",
)  # fmt: skip
