"""The protocol fuzzed from its own OpenAPI document: no 500, and only answers that the document has."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.serve.test_server import running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis makes the requests, and is not installed.")

EXAMPLES = 10  # of each operation
ENDLESS = {"text/event-stream", "multipart/x-mixed-replace"}


@pytest.fixture(scope="module")
def url():
    with running("--body-s", "2", "--header-s", "2") as (url, _):
        yield url


def operations(url):
    """The operations that end."""
    for result in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        operation = result.ok()
        answers = operation.definition.raw["responses"].values()
        if not ENDLESS & {kind for answer in answers for kind in answer.get("content", ())}:
            yield operation


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.filterwarnings("ignore")  # of schemathesis
def test_requests_of_the_document_are_answered_as_it_says(url, mode):
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

    checks = [not_a_server_error, status_code_conformance, content_type_conformance]
    tried = set()
    for operation in operations(url):

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=HealthCheck
        )
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
        def fuzz(case):
            tried.add((case.method, case.path))
            case.call_and_validate(base_url=url, checks=checks, timeout=30)

        with suppress(Unsatisfiable):  # nothing about the operation can be wrong
            fuzz()
    assert ("POST", "/v1/predict") in tried
