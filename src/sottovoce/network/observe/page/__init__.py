"""The live page: what an operator sees of a run while it goes on.

Here live its static files, served as they are, and what fills them: samples of what all agents
receive, in bounded memory, sent as server-sent events. Nothing here may see a state or a
contribution; what arrives here was released, or says who is there.
"""
