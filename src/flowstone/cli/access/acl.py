"""`flowstone acl`: adds, lists and removes access rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from flowstone.authentication.delegation_tokens import USER_PREFIX
from flowstone.cli.access.broker_requests import AnyBroker, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME, AclFilter
from flowstone.cluster.decisions.acl_operations import (
    CLUSTER_OPERATIONS,
    GROUP_OPERATIONS,
    TOPIC_OPERATIONS,
    TRANSACTIONAL_ID_OPERATIONS,
    USER_OPERATIONS,
    AclOperation,
    ResourceType,
)
from flowstone.cluster.image.acl import (
    ALL_OPERATIONS,
    ALLOW,
    ANY_OPERATION,
    ANY_PATTERN,
    ANY_PERMISSION,
    ANY_RESOURCE,
    DENY,
    LITERAL,
    MATCH_PATTERN,
    PREFIXED,
    WILDCARD,
    Acl,
)
from flowstone.wire.messages import (
    CreateAclsRequest,
    CreateAclsRequestCreation,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
# The operations that rules for each type of resource may name.
OPERATIONS: dict[ResourceType, Sequence[AclOperation]] = {
    ResourceType.TOPIC: TOPIC_OPERATIONS,
    ResourceType.GROUP: GROUP_OPERATIONS,
    ResourceType.CLUSTER: CLUSTER_OPERATIONS,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID_OPERATIONS,
    ResourceType.USER: USER_OPERATIONS,
}

User = Annotated[
    str | None, typer.Option(metavar="NAME", help="The user; * stands for all. The rule names the principal User:NAME.")
]
PrincipalName = Annotated[
    str | None, typer.Option("--principal", metavar="TYPE:NAME", help="The principal, in place of --user.")
]
Topic = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A topic; * stands for all; repeatable.")]
Group = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A consumer group; * for all; repeatable.")]
TransactionalId = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="A transactional id; * for all; repeatable.")
]
TokenOwner = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A user who owns delegation tokens; * for all; repeatable.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Operation = Annotated[
    list[str] | None,
    typer.Option(metavar="OPERATION", help="read, write, create, delete, alter, describe, all...; repeatable."),
]
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="The client's IP address; default: any.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow; a rule that denies takes precedence.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Treat the names as prefixes.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Add, list and remove access rules (ACLs).", rich_markup_mode=None)
    group.command("add")(add)
    group.command("list")(list_rules)
    group.command("remove")(remove)
    app.add_typer(group, name="acl", no_args_is_help=True)


def add(
    user: User = None,
    principal: PrincipalName = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    token_owner: TokenOwner = None,
    cluster: Cluster = False,
    operation: Operation = None,
    host: Host = None,
    deny: Deny = False,
    prefixed: Prefixed = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Allow, or with --deny forbid, a user operations on resources: one rule per resource and operation."""
    who = _principal(user, principal)
    if who is None:
        raise CommandError("whom is the rule for? Name a user with --user, or all of them with --user '*'")
    resources = list(_resources(topic, group, transactional_id, token_owner, cluster))
    if not resources:
        raise CommandError(
            "what is the rule for? Name a --topic, --group, --transactional-id, --token-owner, or --cluster"
        )
    if not operation:
        raise CommandError("which operation is the rule for? Name one with --operation, such as read, write or all")
    rules = [
        Acl(
            kind,
            name,
            PREFIXED if prefixed and kind is not ResourceType.CLUSTER else LITERAL,
            who,
            host or WILDCARD,
            _operation(each, kind),
            DENY if deny else ALLOW,
        )
        for kind, name in resources
        for each in operation
    ]
    request = CreateAclsRequest(
        creations=[
            CreateAclsRequestCreation(
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                resource_pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        ]
    )
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(request, CreateAclsResponse)
    for result in answer.results:
        check(result.error_code, result.error_message)
    _print(rules, json_output)


def list_rules(
    user: User = None,
    principal: PrincipalName = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    token_owner: TokenOwner = None,
    cluster: Cluster = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print all rules, or those that apply to the named resources, including rules for prefixes and *."""
    who = _principal(user, principal)
    resources = list(_resources(topic, group, transactional_id, token_owner, cluster))
    filters = [AclFilter(kind, name, MATCH_PATTERN, who) for kind, name in resources] or [AclFilter(principal=who)]
    rules: dict[Acl, None] = {}
    with AnyBroker(bootstrap) as broker:
        for each in filters:
            answer = broker.ask(
                DescribeAclsRequest(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    operation=ANY_OPERATION,
                    permission_type=ANY_PERMISSION,
                ),
                DescribeAclsResponse,
            )
            check(answer.error_code, answer.error_message)
            rules.update(dict.fromkeys(_described(answer)))
    _print(sorted(rules, key=lambda rule: (rule.principal, rule.resource_type, rule.resource_name)), json_output)


def remove(
    user: User = None,
    principal: PrincipalName = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    token_owner: TokenOwner = None,
    cluster: Cluster = False,
    operation: Operation = None,
    host: Host = None,
    deny: Deny = False,
    prefixed: Prefixed = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove the rules that match all given options."""
    who = _principal(user, principal)
    resources = list(_resources(topic, group, transactional_id, token_owner, cluster))
    wanted: list[tuple[ResourceType | None, str | None]] = [*resources] or [(None, None)]
    operations: list[str | None] = [*(operation or ())] or [None]
    if who is None and not resources:
        raise CommandError(
            "which rules? Name a --user, --topic, --group, --transactional-id, --token-owner, or --cluster"
        )
    pattern = (PREFIXED if prefixed else LITERAL) if resources else ANY_PATTERN
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsRequestFilter(
                resource_type_filter=kind or ANY_RESOURCE,
                resource_name_filter=name,
                pattern_type_filter=LITERAL if kind is ResourceType.CLUSTER else pattern,
                principal_filter=who,
                host_filter=host,
                operation=ANY_OPERATION if each is None else _operation(each, kind),
                permission_type=DENY if deny else ANY_PERMISSION,
            )
            for kind, name in wanted
            for each in operations
        ]
    )
    if not yes:
        confirm(f"removing the rules of {who or 'all users'} for {_named(resources)}")
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(request, DeleteAclsResponse)
    removed: list[Acl] = []
    for result in answer.filter_results:
        check(result.error_code, result.error_message)
        removed += (
            Acl(
                each.resource_type,
                each.resource_name,
                each.pattern_type,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
            for each in result.matching_acls
        )
    if not removed and not json_output:
        raise CommandError("no rule matches; see `flowstone acl list`")
    _print(removed, json_output)
    if not json_output:
        print(f"removed {counted(len(removed), 'rule')}")


def _principal(user: str | None, principal: str | None) -> str | None:
    if user is not None and principal is not None:
        raise CommandError("--user and --principal name the same: give one of them")
    return f"{USER_PREFIX}{user}" if user is not None else principal


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    token_owners: list[str] | None,
    cluster: bool,
) -> Iterator[tuple[ResourceType, str]]:
    yield from ((ResourceType.TOPIC, name) for name in topics or ())
    yield from ((ResourceType.GROUP, name) for name in groups or ())
    yield from ((ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids or ())
    for name in token_owners or ():
        yield ResourceType.USER, name if name == WILDCARD else f"{USER_PREFIX}{name}"
    if cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _operation(text: str, kind: ResourceType | None) -> int:
    name = text.strip().upper().replace("-", "_")
    if name == "ALL":
        return ALL_OPERATIONS
    known = OPERATIONS[kind] if kind is not None else tuple(AclOperation)
    for each in known:
        if name in (each.name, each.name.replace("_", "")):
            return each
    named = ", ".join(each.name.lower().replace("_", "-") for each in known)
    what = f"a {_kind_text(kind)}" if kind is not None else "a rule"
    raise CommandError(f"{text!r} is not an operation of {what}: use all, {named}")


def _described(answer: DescribeAclsResponse) -> Iterator[Acl]:
    for resource in answer.resources:
        for rule in resource.acls:
            yield Acl(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                rule.principal,
                rule.host,
                rule.operation,
                rule.permission_type,
            )


def _print(rules: Sequence[Acl], json_output: bool) -> None:
    documents = [_document(rule) for rule in rules]
    if json_output:
        for each in documents:
            print_document(each)
    elif documents:
        print(table(COLUMNS, [list(each.values()) for each in documents], screen_width()))


def _document(rule: Acl) -> dict[str, Any]:
    operation = "all" if rule.operation == ALL_OPERATIONS else _text(AclOperation(rule.operation).name)
    return {
        "principal": rule.principal,
        "permission": "allow" if rule.permission == ALLOW else "deny",
        "operation": operation,
        "resource": _kind_text(ResourceType(rule.resource_type)),
        "name": rule.resource_name,
        "pattern": "literal" if rule.pattern_type == LITERAL else "prefixed",
        "host": rule.host,
    }


def _kind_text(kind: ResourceType) -> str:
    return _text(kind.name)


def _text(name: str) -> str:
    return name.lower().replace("_", "-")


def _named(resources: Sequence[tuple[ResourceType, str]]) -> str:
    return ", ".join(f"{_kind_text(kind)} {name}" for kind, name in resources) or "all resources"
