"""The HTTP gateway of a broker: in reading order `server`, `sse` (server-sent events), `dpop` (proofs of possession), `http`."""
