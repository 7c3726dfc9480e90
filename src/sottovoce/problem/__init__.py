"""Problems: what people state, who knows what of it, and the sums that couple agents.

    formulas and texts (agents, stating)  ->  families of rows (constraints, linear_rows)
    ->  rows of one agent in its set (local, feasible), others as sums (sums, decompose)
    ->  fleets with templates and parameters (fleets)  ->  numbers (numeric)

Nothing here certifies, draws noise or runs rounds.
"""
