"""What people and machines see of a run: logs, metrics, pages, and a reader of stores.

Nothing here may see a state or a contribution: it gets what was released, and who is connected.
"""
