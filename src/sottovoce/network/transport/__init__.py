"""The edge: a TLS listener with limits, WebSocket channels, and a client that reconnects.

Bytes become messages here, and messages bytes; what they say is for ``protocol``. aiohttp does HTTP
and WebSocket. What a reverse proxy does better (floods from many addresses, or beyond what one
machine accepts) is left to one: docs/how-to/deploy.md.
"""
