"""`flowstone cluster features`: which feature levels the cluster has agreed on, and changing them."""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.cluster.state import ClusterReader, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import screen_width, table
from flowstone.client.wire_session import SOFTWARE_NAME, SOFTWARE_VERSION
from flowstone.cluster.decisions.feature_changes import UpgradeType
from flowstone.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdate,
    UpdateFeaturesResponse,
)

COLUMNS = ("feature", "level", "supported")
LEVEL_MAX = 2**15 - 1

Levels = Annotated[list[str], typer.Argument(metavar="FEATURE=LEVEL", help="The new level; repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check whether the change is permitted, without making it.")]


def make_group() -> typer.Typer:
    group = typer.Typer(help="Show and change the feature levels that all brokers use.", rich_markup_mode=None)
    group.command("describe")(describe)
    group.command("upgrade")(upgrade)
    group.command("downgrade")(downgrade)
    return group


def describe(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show each feature's finalized level, and the levels that the broker supports."""
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
    with ClusterReader(bootstrap) as reader:
        answer = reader.ask(request, ApiVersionsResponse)
    check(answer.error_code, None)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    names = sorted({*finalized, *supported})
    if json_output:
        features = [
            {
                "feature": name,
                "level": finalized.get(name, 0),
                "supported_min": supported.get(name, (0, 0))[0],
                "supported_max": supported.get(name, (0, 0))[1],
            }
            for name in names
        ]
        print_document({"epoch": answer.finalized_features_epoch, "features": features})
        return
    rows = [[name, str(finalized.get(name, 0)), "{} to {}".format(*supported.get(name, (0, 0)))] for name in names]
    print(table(COLUMNS, rows, screen_width()))


def upgrade(
    levels: Levels, dry_run: DryRun = False, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Raise feature levels, once every broker runs a release that supports them."""
    _update(levels, UpgradeType.UPGRADE, dry_run, json_output, bootstrap)


def downgrade(
    levels: Levels,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Downgrade even if metadata that needs the higher level is lost.")
    ] = False,
    dry_run: DryRun = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Lower feature levels; level 0 turns a feature off."""
    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    _update(levels, kind, dry_run, json_output, bootstrap)


def _update(levels: list[str], kind: UpgradeType, dry_run: bool, json_output: bool, bootstrap: str) -> None:
    wanted = dict(map(_parse, levels))
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequestFeatureUpdate(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in wanted.items()
        ],
        validate_only=dry_run,
    )
    with ClusterReader(bootstrap) as reader:
        answer = reader.ask(request, UpdateFeaturesResponse)
    check(answer.error_code, answer.error_message)
    if json_output:
        print_document({"levels": wanted, "dry_run": dry_run})
        return
    for name, level in wanted.items():
        print(f"{name} can be changed to level {level}" if dry_run else f"{name} is now at level {level}")


def _parse(text: str) -> tuple[str, int]:
    name, _, level = text.rpartition("=")
    if not name or not level.isdecimal() or int(level) > LEVEL_MAX:
        raise CommandError(f"{text!r} is not FEATURE=LEVEL with a level from 0 to {LEVEL_MAX}")
    return name, int(level)
