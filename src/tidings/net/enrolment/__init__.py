"""Enrolment: an organisation's folder, its brokers and clients, and what they hand each other.

In reading order:

    folder_lock    one change at a time in a folder
    documents      signed files: an organisation's public file, an approval, rights for another organisation
    participant    the folder of a broker or a client: its key, its request, and what an approval puts there
    organisation   the folder of an organisation: it approves, trusts, renews, removes, and changes its key
    handover       a type's key manager moves from one broker of the organisation to another
    server         the same over HTTPS, for participants and organisations elsewhere
    renewal        the caller's side of that
    live_files     replaced files take effect while a participant runs, and it renews by itself

A private key is made where it is used and never leaves that folder. What travels is signed and holds no secret, except
an invitation's code until it is used. Certificates and rights are short; who is removed is not renewed.
"""
