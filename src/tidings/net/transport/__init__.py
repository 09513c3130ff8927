"""Connections between processes.

In reading order:

    frames       what goes over a connection, and its encoding
    tls          certificates, authorities, and why a connection fails
    listen       listening sockets, and what a stranger can hold of them
    handshake    who is at the other end, and which version both speak
    connection   frames that come and go, with a bounded queue
    peer_links   the connections to other brokers
    copies       of two copies of one broker, the one that was restored last counts
    shaping      padding and cover traffic
    capture      a record of what is sent to other brokers
"""
