"""Kernels: the arithmetic of rounds, compiled when the package is built.

Lives here: the tape interpreter, minimisers, the cloud's step, passes over agents, noise and the
drivers of rounds (``core``, plain Python modules with C types beside them), and the few modules
below that turn fleets and public sums into what these take. May not live here: plans, results,
files, sockets, clocks. ``core`` imports nothing of the package.

The modules of ``core`` are compiled by setup.py, as one, for any processor and, on x86-64, for
AVX2; ``variant`` picks a build at first use. Where there is no C compiler they run uncompiled,
slowly, with the same bits, and a ``PlainKernelsWarning`` says so once.

What simulation and network share, so that both have the same bits:

    lower.TapeBuilder              formulas -> register code
    cloud_kernel.make_cloud        the cloud: .round(k, y, share=, steer=) fills price and answer
    fleet_tapes.local_form         the structure of a fleet's local problem
    fleet_tapes.fleet_tapes        its formulas as tapes
    fleet_kernel.FleetKernel       a fleet's tapes and numbers, which no round changes
    fleet_kernel.FleetStates       its states: .contributions, .round, .gradient_step, .measure
    run_kernel.Run, PythonRun      a run: .tasks(rounds), one per thread

Who calls what:

    a simulation              makes a FleetKernel per template (a named agent is a fleet of one),
                              per run FleetStates each and one Run, and drives Run.tasks in slices;
                              Algorithm 1 of named agents alone is ``paper.paper_ensemble``
    a cloud on the network    keeps one cloud; a round is its .round with the noisy sums
    an agent or a gateway     makes the FleetKernel of its own agents; a round is
                              FleetStates.round(k, price, grid=): integers to be sent;
                              .contributions after a start, .x and .mean to store
    an objective in code      FleetKernel(gradient=): that fleet of one runs the plain modules

Why the bits agree: a lane computes what one agent alone does, operation by operation; contributions
on a grid are integers, whose sums do not depend on their order; a run's noise is a pure function of
(seed, run, round). What depends on the order of additions are sums without a grid: they are added
per lane, then per chunk, in an order that no number of threads changes.

Array layouts are documented once each: agents and weights in ``core.fleet_view``, the cloud's
memory in ``core.cloud_step``, tapes in ``core.tape``, a run's trace in ``core.run_loop``; every
struct's fields are described in the .pxd file beside its module.
"""
