"""Kernels: the arithmetic of rounds, compiled when the package is built.

Lives here: the tape interpreter, minimisers, the cloud's step, passes over agents, noise and the
drivers of rounds (``core``, plain Python modules with C types beside them), and the few doors below
that turn formulas and arrays into what these take. May not live here: problems, plans, files,
sockets, clocks. Imports ``sottovoce.formula`` alone.

The modules of ``core`` are compiled by setup.py, as one, for any processor and, on x86-64, for
AVX2; ``variant`` picks a build at first use. Where there is no C compiler they run uncompiled,
slowly, with the same bits, and a ``PlainKernelsWarning`` says so once.

Doors, all of which simulation and network share, so that both have the same bits:

    lower.TapeBuilder                formulas -> register code
    cloud.Cloud(public, gains)       the cloud: .round(k, y, share=, steer=) fills price and answer
    fleet_problem.FleetProblem       what the agents of a fleet minimise, formulas and numbers
    fleet.FleetKernel(problem)       a fleet's tapes and numbers, which no round changes
    fleet.Fleet(kernel, x0)          its states: .contributions, .round, .gradient_step, .measure
    rounds.Run(fleets, release, ..)  a run: .tasks(done, until, steps, ..), one per thread
    rounds.Ensemble(problem, ..)     runs of Algorithm 1 of agents stated one by one, in lanes

Who calls what:

    a simulation              makes a FleetKernel per template (a named agent is a fleet of one),
                              per run a Fleet each and one Run, and drives Run.tasks in slices;
                              Algorithm 1 of named agents alone is an Ensemble
    a cloud on the network    keeps one Cloud; a round is Cloud.round with the noisy sums; price,
                              answer, released and memory[:kept] are what it stores
    an agent or a gateway     makes the FleetKernel of its own agents; a round is
                              Fleet.round(k, price, grid=), which returns integers to be sent;
                              Fleet.contributions after a start, Fleet.x and .mean to store
    an objective in code      FleetProblem.gradient: that fleet of one runs the plain modules

Why the bits agree: a lane computes what one agent alone does, operation by operation; contributions
on a grid are integers, whose sums do not depend on their order; a run's noise is a pure function of
(seed, run, round). What depends on the order of additions are sums without a grid: they are added
per lane, then per chunk, in an order that no number of threads changes.

Array layouts are documented once each: agents and weights in ``core.fleet_view``, the cloud's
memory in ``core.cloud_step``, tapes in ``core.tape``, a run's trace in ``core.run_loop``; every
struct's fields are described in the .pxd file beside its module.
"""
