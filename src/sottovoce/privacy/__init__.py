"""What is released with how much noise, and what that promises every agent.

Here lie the Gaussian mechanism and its accounting, adjacencies, noise plans and their statements,
margins of feasible answers, samplers, the ledger and its fence. Nothing here opens a connection
but to the ledger's database, and nothing outside turns raw values into released ones.
"""
