"""What tests an agent or a cloud that others wrote: the schema, vectors, a cloud and an agent.

``schema.json`` and ``vectors.json`` are written by ``tests/network/conformance_files.py`` from the
messages and machines themselves.
"""
