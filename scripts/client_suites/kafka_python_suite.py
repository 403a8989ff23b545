"""kafka-python's own integration tests from its source distribution, once per broker version that they support.

Tests of unsupported features are excluded by name, so that any other test that starts to fail counts as failed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from scripts.client_suites.suite import FETCH_TIMEOUT_S, CheckFailed, Server, Suite, cached, run

VERSION = "3.0.12"
TEST_TIMEOUT_S = 60
RUN_TIMEOUT_S = 300

PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test/integration",
    "--ignore", "test/integration/test_ssl_integration.py", "--ignore", "test/integration/test_sasl_integration.py",
)  # fmt: skip
# Parts of the names of tests, by what they would need.
NOT_SERVED = {
    "needs an authorizer, which the suites' brokers have not": ("acls",),
    "expects its own fixture's settings": ("broker_resource",),
}
# The release that the client detects from our newest versions. A test expects the suite's configured one.
INFERRED_VERSION = "4.3.0"
INFERENCE = {f"the client rightly takes us for Kafka {INFERRED_VERSION}": ("version_infer",)}
# Its fixtures have one broker, which some tests require.
ONE_BROKER = {
    "assigns partitions to broker 0, its fixtures' only one": ("create_partitions",),
    "expects one poll to bring what three leaders have": ("delete_records",),
}
# The suite starts its own brokers through this module, which is not in the distribution.
SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self): pass
    def close(self): pass
    def stop(self): pass
    def dump_logs(self): pass
    def wait_for(self, *_, **__): pass


class SpawnedService(ExternalService):
    pass
"""


def suite_for(version: str) -> Callable[[Suite, Server], None]:
    return partial(_run_suite, version=version)


def _run_suite(suite: Suite, server: Server, *, version: str) -> None:
    source = cached(f"kafka-python-{VERSION}", _fetch)
    reasons = dict(NOT_SERVED)
    if version != INFERRED_VERSION:
        reasons |= INFERENCE
    if server.brokers > 1:
        reasons |= ONE_BROKER
    left_out = " or ".join(part for parts in reasons.values() for part in parts)
    with tempfile.TemporaryDirectory(prefix="flowstone-kafka-python-") as folder:
        report = Path(folder, "report.xml")
        variables = {
            "KAFKA_URI": f"kafka://{server.address.partition(',')[0]}",
            "KAFKA_VERSION": version,
            "KAFKA_ROOT": folder,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        pytest = partial(run, folder=source, timeout_s=RUN_TIMEOUT_S, variables=variables)
        try:
            pytest([*PYTEST, "--timeout", str(TEST_TIMEOUT_S), "--junit-xml", str(report), "-k", f"not ({left_out})"])
        except CheckFailed:
            if not report.exists():
                raise
        _count(suite, report)
        for line in pytest([*PYTEST, "--collect-only", "-k", left_out]).splitlines():
            _path, found, name = line.partition("::")
            if found:
                suite.skip(name, next(why for why, parts in reasons.items() if any(part in name for part in parts)))


def _count(suite: Suite, report: Path) -> None:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("name", "")
        problem, skipped = case.find("failure"), case.find("skipped")
        problem = case.find("error") if problem is None else problem
        if problem is not None:
            suite.fail(name, problem.get("message", ""))
        elif skipped is not None:
            suite.skip(name, skipped.get("message", ""))
        else:
            suite.passed += 1


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "kafka-python",
             f"kafka-python=={VERSION}", "-d", work],
            timeout_s=FETCH_TIMEOUT_S,
        )  # fmt: skip
        (archive,) = Path(work).glob("*.tar.gz")
        run(["tar", "-xf", str(archive), "-C", work])
        (unpacked,) = (each for each in Path(work).iterdir() if each.is_dir())
        for name in ("kafka", "test"):
            run(["cp", "-r", str(unpacked / name), str(folder / name)])
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(SERVICE)
    # Otherwise pytest uses a configuration from a parent folder.
    (folder / "pytest.ini").write_text("[pytest]\n")
