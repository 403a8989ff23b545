"""The programs of docs/transactions.md do what they say: each order is billed once, and the first worker is fenced."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import confluent_kafka
import pytest
from aiokafka.errors import ProducerFenced

import flowstone
from examples.transactions import scene
from tests.support.pages import DOCS, ROOT, assert_prints, assert_shows, is_same, printed_by

with warnings.catch_warnings():
    # It reads its schemas, as it is imported, by a call that Python 3.11 calls deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.errors import ProducerFencedError

    from examples.transactions import aiokafka_loop, confluent_loop, kafka_python_loop

PAGE = DOCS / "transactions.md"
PROGRAM_TIMEOUT_S = 60
EXAMPLES = [confluent_loop, kafka_python_loop, aiokafka_loop]
FENCED = {
    confluent_loop: confluent_kafka.KafkaException,
    kafka_python_loop: ProducerFencedError,
    aiokafka_loop: ProducerFenced,
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with flowstone.Broker() as broker:
        yield broker.bootstrap
    # A fenced producer of aiokafka leaves futures behind, which log their exceptions when they are freed. A traceback
    # that is formatted while pytest compiles a module is a SystemError in Python 3.11.
    gc.collect()


def by_name(example: ModuleType) -> str:
    return example.__name__.rpartition(".")[2]


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_the_lines_on_the_page_are_the_programs_own(example: ModuleType) -> None:
    assert_shows(PAGE, Path(example.__file__ or ""))


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_each_order_is_billed_once_though_a_transaction_is_aborted_and_a_worker_suspended(
    example: ModuleType, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = example.run(bootstrap)
    assert result.bills == [2 * order for order in range(2 * scene.BATCH)]
    assert type(result.fenced_with) is FENCED[example]
    assert_prints(printed_by(PAGE, example.__name__), capsys.readouterr().out, is_same)


def test_librdkafka_calls_the_refusal_fatal(bootstrap: str) -> None:
    refused = confluent_loop.run(bootstrap).fenced_with.args[0]
    assert refused.fatal()
    assert refused.code() == confluent_kafka.KafkaError._FENCED


def test_a_program_runs_on_a_broker_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", confluent_loop.__name__],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_prints(printed_by(PAGE, confluent_loop.__name__), done.stdout, is_same)
