"""The protocol without sockets: messages, their encoding, and a state machine for each role."""
