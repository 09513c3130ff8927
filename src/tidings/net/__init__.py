"""The live network: brokers and clients as real processes, over mutual TLS 1.3, with a journal on disk.

A `Broker` runs the same `Node` as the simulator, driven by asyncio; `serve` runs it as a process. A
`Client` publishes to it and subscribes at it; `BlockingClient` is the same for programs without an event
loop. `read_broker` and `read_client` read their configuration files, `broker_with` adds options of the command line;
`lay_out` creates the files of a whole network for development.

In reading order:

    config            the files of a broker and of a client
    ids               event ids, broker ids, keys and tokens as texts
    clock             the wall clock, read in one place
    type_files        event types as files
    transport/        frames, TLS, the handshake, connections and links between brokers
    client/           the client, with and without an event loop
    broker/           the broker: it drives a node, keeps a journal, and serves clients
    journal_storage/  where the journal is: in a SQLite file, or in PostgreSQL
    direct_delivery   events straight from their origin, where the overlay does not bring them
    revocation_sync   revocations, from registry to registry
    online_sync       which rights with an online test hold now
    gateway/          events over HTTP
    enrolment/        organisations, their keys and certificates
    recovery/         backup and restore
    observability/    metrics, spans, logs
    federation        two organisations linked: whom each trusts, and where its brokers are
    dev_network       the files of a whole network, for development
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidings.net.client.blocking import BlockingClient
from tidings.net.client.client import Client, Received, Subscription
from tidings.net.config import (
    BrokerConfig,
    ClientConfig,
    Limits,
    PeerConfig,
    broker_with,
    files_in,
    host_and_port,
    peer_at,
    read_broker,
    read_client,
)
from tidings.net.dev_network import DevNetwork, DevNetworkFiles, ReadAccess, lay_out
from tidings.net.federation import introduce, trust_authority
from tidings.net.ids import read_event_id, read_identity, read_token, show_event
from tidings.net.observability.logs import log_to_stderr
from tidings.net.transport.listen import address_of, listen
from tidings.net.transport.tls import authority_keys, certificate_end_ms, der, domains_in, is_administrator, names_in

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker
    from tidings.net.broker.process import prepare, serve
    from tidings.net.enrolment.documents import Approval, OrganisationCard, RightBundle, types_of
    from tidings.net.enrolment.documents import read as parse_document
    from tidings.net.enrolment.documents import read_file as read_document
    from tidings.net.enrolment.handover import check_can_hand_over, hand_over_managers, is_running, managers_at
    from tidings.net.enrolment.organisation import Organisation, OrganisationSettings, token_text
    from tidings.net.enrolment.participant import checked_file_name, read_request, read_request_file
    from tidings.net.enrolment.participant import install as install_approval
    from tidings.net.enrolment.participant import prepare as prepare_participant
    from tidings.net.enrolment.renewal import enrol_with_code, renew_participant
    from tidings.net.enrolment.server import serve_enrolment
    from tidings.net.gateway.http import BadRequest, HttpConnection
    from tidings.net.gateway.http import Request as HttpRequest
    from tidings.net.gateway.openapi import openapi
    from tidings.net.recovery.backup import Backup, write_backup
    from tidings.net.recovery.restore import Restored
    from tidings.net.recovery.restore import restore as restore_backup

Layout, LaidOut, Reader = DevNetwork, DevNetworkFiles, ReadAccess  # Their names in 0.1.

__all__ = [
    "Approval",
    "Backup",
    "BadRequest",
    "BlockingClient",
    "Broker",
    "BrokerConfig",
    "Client",
    "ClientConfig",
    "DevNetwork",
    "DevNetworkFiles",
    "HttpConnection",
    "HttpRequest",
    "LaidOut",
    "Layout",
    "Limits",
    "Organisation",
    "OrganisationCard",
    "OrganisationSettings",
    "PeerConfig",
    "ReadAccess",
    "Reader",
    "Received",
    "Restored",
    "RightBundle",
    "Subscription",
    "address_of",
    "authority_keys",
    "broker_with",
    "certificate_end_ms",
    "check_can_hand_over",
    "checked_file_name",
    "der",
    "domains_in",
    "enrol_with_code",
    "files_in",
    "hand_over_managers",
    "host_and_port",
    "install_approval",
    "introduce",
    "is_administrator",
    "is_running",
    "lay_out",
    "listen",
    "log_to_stderr",
    "managers_at",
    "names_in",
    "openapi",
    "parse_document",
    "peer_at",
    "prepare",
    "prepare_participant",
    "read_broker",
    "read_client",
    "read_document",
    "read_event_id",
    "read_identity",
    "read_request",
    "read_request_file",
    "read_token",
    "renew_participant",
    "restore_backup",
    "serve",
    "serve_enrolment",
    "show_event",
    "token_text",
    "trust_authority",
    "types_of",
    "write_backup",
]


_LATER = {
    # A broker loads a node and the matching kernels, which takes a second; a client does not need them.
    "Broker": ("tidings.net.broker.broker", "Broker"),
    "prepare": ("tidings.net.broker.process", "prepare"),
    "serve": ("tidings.net.broker.process", "serve"),
    # Enrolment and backups load the registry.
    "Backup": ("tidings.net.recovery.backup", "Backup"),
    "write_backup": ("tidings.net.recovery.backup", "write_backup"),
    "Restored": ("tidings.net.recovery.restore", "Restored"),
    "restore_backup": ("tidings.net.recovery.restore", "restore"),
    "Approval": ("tidings.net.enrolment.documents", "Approval"),
    "OrganisationCard": ("tidings.net.enrolment.documents", "OrganisationCard"),
    "RightBundle": ("tidings.net.enrolment.documents", "RightBundle"),
    "parse_document": ("tidings.net.enrolment.documents", "read"),
    "read_document": ("tidings.net.enrolment.documents", "read_file"),
    "types_of": ("tidings.net.enrolment.documents", "types_of"),
    "check_can_hand_over": ("tidings.net.enrolment.handover", "check_can_hand_over"),
    "hand_over_managers": ("tidings.net.enrolment.handover", "hand_over_managers"),
    "is_running": ("tidings.net.enrolment.handover", "is_running"),
    "managers_at": ("tidings.net.enrolment.handover", "managers_at"),
    "Organisation": ("tidings.net.enrolment.organisation", "Organisation"),
    "OrganisationSettings": ("tidings.net.enrolment.organisation", "OrganisationSettings"),
    "token_text": ("tidings.net.enrolment.organisation", "token_text"),
    "install_approval": ("tidings.net.enrolment.participant", "install"),
    "prepare_participant": ("tidings.net.enrolment.participant", "prepare"),
    "checked_file_name": ("tidings.net.enrolment.participant", "checked_file_name"),
    "read_request_file": ("tidings.net.enrolment.participant", "read_request_file"),
    "read_request": ("tidings.net.enrolment.participant", "read_request"),
    "enrol_with_code": ("tidings.net.enrolment.renewal", "enrol_with_code"),
    "renew_participant": ("tidings.net.enrolment.renewal", "renew_participant"),
    "serve_enrolment": ("tidings.net.enrolment.server", "serve_enrolment"),
    "openapi": ("tidings.net.gateway.openapi", "openapi"),
    # HTTP loads h11.
    "BadRequest": ("tidings.net.gateway.http", "BadRequest"),
    "HttpConnection": ("tidings.net.gateway.http", "HttpConnection"),
    "HttpRequest": ("tidings.net.gateway.http", "Request"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module, attribute = _LATER[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'tidings.net' has no attribute {name!r}")
