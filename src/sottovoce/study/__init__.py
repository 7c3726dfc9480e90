"""Studies of problems, plans and deployed code: advise, compare, audit.

Each verb has its value, its table and its figure here. Studies may see everything: objectives,
states, seeds. Nothing here runs in a cloud or an agent; the audit drives their machines in one
process, and states what is released independently of them (``study.released_outputs``).
"""
