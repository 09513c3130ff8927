"""Commands for an organisation and its own: its key, its brokers and clients, whom it trusts, its roles and rights.

In reading order:

    folder         the option --org, and what these commands share
    org            `tidings org …`: create, exchange public files, approve, invite, renew, change the key
    participants   `tidings broker create …`, `tidings client create …`: enrol, renew and remove them
    rotate         `tidings broker rotate`: a broker with a new key takes the place of another
    role           `tidings role …`: named sets of rights
    who            `tidings who can …`: who may do what
    why            `tidings why …`: why a client may or may not do something, check by check
"""
