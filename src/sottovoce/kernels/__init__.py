"""Kernels: the arithmetic of rounds, compiled when the package is built.

``core`` has the tape interpreter, minimisers, the cloud's step, passes over agents, noise and the
drivers of rounds: plain Python modules with C types beside them, which import nothing of the
package. setup.py compiles them, as one, for any processor and, on x86-64, for AVX2; ``variant``
picks a build at first use. Without a C compiler they run uncompiled, slowly, with the same bits,
and a ``PlainKernelsWarning`` says so once. The modules below turn fleets and public sums into what
``core`` takes; simulation and network share them, so that both have the same bits:

    lower.TapeBuilder              formulas -> register code
    cloud_kernel.make_cloud        the cloud: .round(k, y, share=, steer=) fills price and answer
    fleet_tapes                    the structure of a fleet's local problem, its formulas as tapes
    fleet_kernel.FleetKernel       a fleet's tapes and numbers, which no round changes
    fleet_kernel.FleetStates       its states: .contributions, .round, .measure
    run_kernel.Run, PythonRun      a run: .tasks(done, until, steps), one per thread

May not live here: plans, results, files, sockets, clocks.

Why the bits agree: a lane computes what one agent alone does, operation by operation; contributions
on a grid are integers, whose sums do not depend on their order; a run's noise is a pure function of
(seed, run, round). What depends on the order of additions are sums without a grid: they are added
per lane, then per chunk, in an order that no number of threads changes.

Array layouts are documented once each: agents and weights in ``core.fleet_view``, the cloud's
memory in ``core.cloud_step``, tapes in ``core.interpreter``, a run's trace in ``core.run_loop``;
every struct's fields are described in the .pxd file beside its module.
"""
