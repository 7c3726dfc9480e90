"""What people and machines see of a run: logs, counters, the operator's pages and the live page.

Nothing here may see a state or a contribution: it gets what was released, and who is connected.
The live page samples what all agents receive, in bounded memory;
its static files, in ``page``, ask for that in JSON.
"""
