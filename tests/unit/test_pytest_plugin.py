"""The plugin as a project sees it: tests of a small project are run by a pytest of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowstone

PROJECT_TIMEOUT_S = 60
SOURCE = str(Path(flowstone.__file__).parents[1])


def run_project(directory: Path, source: str, *options: str) -> str:
    """What pytest has to say about the test file `source`, whether or not the plugin is installed here."""
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (directory / "test_project.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "flowstone.pytest_plugin", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": SOURCE}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROJECT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_topic_is_fresh_in_each_test_and_the_broker_is_shared(tmp_path: Path) -> None:
    source = """
import pytest
from confluent_kafka import Producer

seen = []

@pytest.mark.parametrize("case", ["first case", "second/case"])
def test_a_record(flowstone_broker, flowstone_topic, case):
    assert flowstone_broker.records(flowstone_topic) == []
    producer = Producer({"bootstrap.servers": flowstone_broker.bootstrap})
    producer.produce(flowstone_topic, case)
    assert producer.flush(10) == 0
    assert [record.value for record in flowstone_broker.wait_for(flowstone_topic, 1)] == [case.encode()]
    seen.append((id(flowstone_broker), flowstone_topic))

def test_what_the_others_saw():
    (broker, topic), (other_broker, other_topic) = seen
    assert broker == other_broker
    assert topic != other_topic
"""
    assert "3 passed" in run_project(tmp_path, source)


def test_every_process_of_xdist_has_a_broker_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    source = """
import json, os, pathlib, pytest

@pytest.mark.parametrize("case", range(2))
def test_the_address(flowstone_broker, flowstone_topic, case):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    seen = [worker, flowstone_broker.bootstrap, flowstone_broker.data_directory]
    pathlib.Path(f"seen-{worker}-{case}").write_text(json.dumps(seen))
"""
    assert "4 passed" in run_project(tmp_path, source, "-p", "xdist.plugin", "-n", "2", "--dist", "each")
    seen = {tuple(json.loads(file.read_text())) for file in tmp_path.glob("seen-*")}
    assert [len(set(column)) for column in zip(*seen, strict=True)] == [2, 2, 2]


def test_a_project_overrides_the_settings(tmp_path: Path) -> None:
    source = """
import pytest
from confluent_kafka.admin import AdminClient

@pytest.fixture(scope="session")
def flowstone_settings():
    return {"num.partitions": "3"}

def test_partitions(flowstone_broker, flowstone_topic):
    admin = AdminClient({"bootstrap.servers": flowstone_broker.bootstrap})
    assert len(admin.list_topics(flowstone_topic, 10).topics[flowstone_topic].partitions) == 3
"""
    assert "1 passed" in run_project(tmp_path, source)


def test_the_examples_for_people_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing-with-pytest.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert f"{''.join(examples).count('def test_')} passed" in run_project(tmp_path, "\n\n".join(examples))


# Neither the plugin nor a broker in a thread needs any of these, and each costs from ten milliseconds to a second.
UNUSED_LIBRARIES = {
    *("pyspark", "pyarrow", "duckdb", "confluent_kafka", "kazoo"),
    *("typer", "click", "rich", "argparse", "starlette", "uvicorn", "h11", "httptools", "difflib"),
}
UNUSED_MODULES = {
    *("flowstone.cli", "flowstone.client.cluster", "flowstone.client.connection", "flowstone.arrow"),
    *("flowstone.broker.http.pages", "flowstone.broker.clustering.cluster_node"),
    *("flowstone.cluster.zookeeper.consensus", "flowstone.cluster.memory_ensemble"),
    *("flowstone.embedded.cluster", "flowstone.embedded.process_host", "flowstone.embedded.zookeeper_server"),
}


def modules_loaded_by(statements: str) -> set[str]:
    return set(
        subprocess.run(
            [sys.executable, "-c", f"import sys; {statements}; print(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        ).stdout.split()
    )


def test_loading_the_plugin_loads_no_broker_no_spark_and_no_command_line() -> None:
    loaded = modules_loaded_by("import flowstone.pytest_plugin")
    assert "flowstone.pytest_plugin" in loaded
    assert {"uvloop", "flowstone.embedded", "flowstone.app", *UNUSED_LIBRARIES - {"argparse"}}.isdisjoint(loaded)


def test_a_broker_in_a_thread_loads_only_what_it_uses() -> None:
    loaded = modules_loaded_by("import flowstone; flowstone.Broker().stop()")
    assert "flowstone.app" in loaded
    assert (UNUSED_LIBRARIES | UNUSED_MODULES).isdisjoint(loaded), (UNUSED_LIBRARIES | UNUSED_MODULES) & loaded


def test_pytest_rewrites_no_assertions_of_an_installed_flowstone(tmp_path: Path) -> None:
    """pytest does so for every module of a distribution with a plugin, which takes longer than starting a broker."""
    information = tmp_path / "installed" / "flowstone-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: flowstone\nVersion: 0.1.0\n")
    (information / "entry_points.txt").write_text("[pytest11]\nflowstone = flowstone.pytest_plugin\n")
    (information / "RECORD").write_text("flowstone/__init__.py,,\nflowstone/pytest_plugin.py,,\n")
    (tmp_path / "test_project.py").write_text("""
import sys

def test_modules(flowstone_broker):
    loaders = {name: type(module.__loader__).__name__ for name, module in sys.modules.items() if "flowstone" in name}
    assert loaders.pop("flowstone") == "AssertionRewritingHook"  # what is marked is rewritten, so the rest would be
    loaders.pop("flowstone.pytest_plugin")
    assert set(loaders.values()) == {"SourceFileLoader"}, loaders
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_project.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'installed'}{os.pathsep}{SOURCE}"},
        capture_output=True,
        text=True,
        timeout=PROJECT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_lists_its_public_names_before_they_are_loaded() -> None:
    statements = "import flowstone, sys; print(*dir(flowstone)); print('flowstone.embedded' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", statements],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.stdout.splitlines() == ["Broker Cluster Queue __version__ read read_batches", "False"]
    assert all(getattr(flowstone, name) is not None for name in dir(flowstone))
