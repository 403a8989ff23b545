"""`flowstone pipeline submit`: runs a pipeline on a Spark cluster with spark-submit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from flowstone.cli.common.connection_options import client_file
from flowstone.cli.common.errors import CommandError
from flowstone.cli.pipeline.common import Directory, PipelineBootstrap, exit_statuses, load_model


def register(app: typer.Typer) -> None:
    app.command("submit")(submit)


def submit(
    directory: Directory,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master: spark://..., yarn or k8s://...")] = "",
    deploy_mode: Annotated[
        str,
        typer.Option(
            metavar="MODE", help="Where the driver runs: client (this machine) or cluster (not on standalone clusters)."
        ),
    ] = "client",
    once: Annotated[bool, typer.Option("--once", help="Process the available records, then end.")] = False,
    python: Annotated[str, typer.Option(metavar="PATH", help="The Python of the cluster's machines.")] = "",
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
    ] = None,
    argument: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="A further argument of spark-submit; repeatable.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="NEW_DIR", help="Write the files for a later submission to this new directory instead."),
    ] = None,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Submit a pipeline to a Spark cluster, or write a bundle of files for it.

    The exit status is that of spark-submit, which in client mode is that of `flowstone pipeline run`.
    """
    from flowstone.pipeline.operations.submit import CLIENT, CLUSTER, Submission, write_bundle

    if deploy_mode not in (CLIENT, CLUSTER):
        raise CommandError(f"--deploy-mode is {deploy_mode!r}, and should be {CLIENT} or {CLUSTER}")
    with exit_statuses():
        model = load_model(directory, bootstrap)
        chosen = Submission(
            master or model.master or "local[*]",
            deploy_mode,
            once,
            python,
            bootstrap,
            _settings(conf),
            argument or (),
            client_file(),
        )
        if bundle is not None:
            print(f"wrote {write_bundle(model, chosen, bundle)}")
            return
        with tempfile.TemporaryDirectory(prefix="flowstone-submit-") as scratch:
            script = write_bundle(model, chosen, Path(scratch) / model.name)
            status = subprocess.run([str(script)], env=dict(os.environ), check=False).returncode
    raise typer.Exit(status if status >= 0 else 128 - status)


def _settings(conf: list[str] | None) -> dict[str, str]:
    pairs = {}
    for each in conf or ():
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"--conf is {each!r}, and should be NAME=VALUE")
        pairs[name.strip()] = value
    return pairs
