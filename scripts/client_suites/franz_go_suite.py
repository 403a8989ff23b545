"""The tests of kgo, franz-go's client: chains of groups whose members join and leave, with every balancer.

Its transactional chain (TestTxnEtl) is among them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from scripts.client_suites.franz_go import VERSION
from scripts.client_suites.suite import FETCH_TIMEOUT_S, CheckFailed, Server, Suite, cached, environment, run, tool

PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = 20_000
RUN_TIMEOUT_S = 600


def run_suite(suite: Suite, server: Server) -> None:
    go = tool("go")
    module = cached(f"kgo-suite-{VERSION}", lambda folder: _fetch(go, folder))
    told = _test(go, module, server)
    outcomes = {name: outcome for outcome, name in re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", told, re.MULTILINE)}
    if not outcomes:
        raise CheckFailed(told)
    parents = {name.rpartition("/")[0] for name in outcomes}
    for name in outcomes.keys() - parents:
        if outcomes[name] == "PASS":
            suite.passed += 1
        elif outcomes[name] == "FAIL":
            suite.fail(name, _said(told, name))
        else:
            suite.skip(name, _said(told, name))


def _test(go: str, module: Path, server: Server) -> str:
    """Run the tests and return their output, whether they pass or fail."""
    done = subprocess.run(
        [go, "test", "-count=1", "-timeout", f"{RUN_TIMEOUT_S}s", "-v", PACKAGE],
        cwd=module,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S + FETCH_TIMEOUT_S,
        check=False,
        env={
            **environment(),
            "KGO_SEEDS": server.address,
            "KGO_TEST_RF": str(server.brokers),
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "none",
        },
    )
    return done.stdout + done.stderr


def _said(told: str, name: str) -> str:
    """Return the last output of a test; go prints the name of the test before its lines."""
    spoken = [part.partition("\n") for part in re.split(r"^=== (?:RUN|CONT|NAME) +", told, flags=re.MULTILINE)]
    lines = [line for who, _, said in spoken if who == name for line in said.splitlines() if not _is_outcome(line)]
    return lines[-1].strip() if lines else "it does not say why"


def _is_outcome(line: str) -> bool:
    return line.lstrip().startswith(("---", "==="))


def _fetch(go: str, folder: Path) -> None:
    run([go, "mod", "init", "suite"], folder=folder)
    run([go, "get", "-t", f"{PACKAGE}@v{VERSION}"], folder=folder, timeout_s=FETCH_TIMEOUT_S)
