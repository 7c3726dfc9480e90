"""Problems as folders that people write by hand, split by who may read what.

``problem.toml`` and the tables it names hold what the cloud knows: agents and their boxes,
constraints as text, privacy and schedule. ``agents/1.toml``, ``agents/2.toml``, ... hold what one
agent alone knows: its objective as text, its start and its local set; ``agents/fleet-ev.toml``
holds the same for a fleet, with tables for what differs between its agents.

Lives here: reading and writing these files. May not live here: what a problem is. Nothing in a file
is ever executed: formulas go through the parser of ``formula.parse``.
"""
