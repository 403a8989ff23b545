"""The settings of authorization and of the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.coordinators import CoordinatorConfig
from flowstone.config.setting import INT_MAX, KIB, MIB, Kind, broker_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig(CoordinatorConfig):
    """Settings of authorization and of the audit log."""

    authorizer_class_name: str = broker_setting(
        "authorizer.class.name",
        Kind.STRING,
        "",
        "StandardAuthorizer, or Kafka's full name of it: access rules (ACLs) decide what clients may do. Empty: every "
        "client may do everything.",
        choices=("", "StandardAuthorizer", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    )
    super_users: str = broker_setting(
        "super.users",
        Kind.STRING,
        "",
        "Principals that may do everything, separated by semicolons: User:admin;User:broker-1.",
    )
    allow_everyone_if_no_acl_found: bool = broker_setting(
        "allow.everyone.if.no.acl.found",
        Kind.BOOLEAN,
        False,
        "Whether everybody may use a resource that no access rule names.",
    )
    audit_log_directory: str = broker_setting(
        "audit.log.directory",
        Kind.STRING,
        "",
        "Directory of the audit log (audit.jsonl); empty: audit in the first of log.dirs; off: none.",
    )
    audit_log_max_bytes: int = broker_setting(
        "audit.log.max.bytes", Kind.LONG, 64 * MIB, "Size at which a file of the audit log is renamed.", low=4 * KIB
    )
    audit_log_max_files: int = broker_setting(
        "audit.log.max.files",
        Kind.INT,
        10,
        "Number of files of the audit log; the oldest is removed.",
        low=1,
        high=1000,
    )
    quota_window_num: int = broker_setting(
        "quota.window.num", Kind.INT, 11, "Number of samples over which the rates of clients are measured.", low=1
    )
    quota_window_size_seconds: int = broker_setting(
        "quota.window.size.seconds", Kind.INT, 1, "Length of a sample for the rates of clients.", low=1
    )
    controller_quota_window_num: int = broker_setting(
        "controller.quota.window.num",
        Kind.INT,
        11,
        "Number of samples for quotas of controller mutations: together they are the largest burst.",
        low=1,
    )
    controller_quota_window_size_seconds: int = broker_setting(
        "controller.quota.window.size.seconds", Kind.INT, 1, "Length of a sample for controller mutations.", low=1
    )
    max_connections_per_ip_overrides: tuple[str, ...] = broker_setting(
        "max.connections.per.ip.overrides",
        Kind.LIST,
        (),
        "Maximum numbers of connections from single addresses, instead of max.connections.per.ip, as ADDRESS:COUNT.",
        read_only=False,
        pattern=r".+:[0-9]+",
    )
    max_connection_creation_rate: int = broker_setting(
        "max.connection.creation.rate",
        Kind.INT,
        INT_MAX,
        "Maximum number of new connections per second; further ones wait until they are accepted.",
        low=1,
        read_only=False,
    )
