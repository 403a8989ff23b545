from __future__ import annotations

import inspect
import io
import struct

import pytest
from pyspark.errors import PySparkException
from pyspark.util import handle_worker_exception

from flowstone.client import GaveUp
from pyspark_flowstone.loss import DataLost
from pyspark_flowstone.reporting import QueryError, reported, reported_items
from pyspark_flowstone.values import OptionError

LENGTHS = struct.Struct(">ii")  # the mark of an exception, and how long its text is


def sent_to_the_jvm(error):
    written = io.BytesIO()
    handle_worker_exception(error, written)
    return written.getvalue()[LENGTHS.size :].decode()


@reported
def fail(error):
    raise error


@pytest.mark.parametrize("kind", [OptionError, DataLost, GaveUp])
def test_an_expected_error_reaches_the_jvm_as_its_sentence_alone(kind):
    with pytest.raises(QueryError) as raised:
        fail(kind("subscribe: there is no topic nowhere"))
    assert sent_to_the_jvm(raised.value) == "flowstone: subscribe: there is no topic nowhere\n"


def test_an_unexpected_error_keeps_its_class_and_its_traceback():
    try:
        fail(KeyError("a defect"))
    except KeyError as error:
        text = sent_to_the_jvm(error)
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("KeyError: 'a defect'\n")


def test_an_error_among_items_is_reported_after_those_before_it():
    def items():
        yield 1
        raise OptionError("no more")

    found = reported_items(items())
    assert next(found) == 1
    with pytest.raises(QueryError, match="no more"):
        next(found)


def test_the_error_is_one_of_pysparks():
    assert issubclass(QueryError, PySparkException)


def test_a_decorated_method_keeps_its_signature():
    """Spark counts the parameters of `latestOffset` to learn what a reader can do."""

    @reported
    def latest(start, limit):
        return start, limit

    assert list(inspect.signature(latest).parameters) == ["start", "limit"]
    assert latest(1, limit=2) == (1, 2)
