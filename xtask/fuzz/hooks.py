"""Checks of schemathesis for solely: what is refused has changed nothing, and says so in one shape."""

import json
import os
import threading
import urllib.request

import schemathesis

URL = os.environ["SOLELY_FUZZ_URL"]
KEY = os.environ["SOLELY_FUZZ_KEY"]
BEFORE = threading.local()


def get(path):
    request = urllib.request.Request(URL + path, headers={"Authorization": "Bearer " + KEY})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def state():
    """What a refused request must leave as it is. Leases end by themselves, so only new ones count."""
    leases = {item["key"]: item["fence"] for item in get("/v1/leases?limit=200")["items"]}
    queues = get("/v1/queues?limit=200")["items"]
    queues = {item["name"]: item["pausedUntil"] for item in queues if item["pausedUntil"]}
    return leases, queues


@schemathesis.hook
def map_body(context, body):
    """Whoever waits for a lease that another has may do so for a minute, which is no answer that is looked at here."""
    if isinstance(body, dict) and isinstance(body.get("waitMs"), int) and 100 < body["waitMs"] <= 60_000:
        return {**body, "waitMs": 100}
    return body


@schemathesis.hook
def before_call(context, case, kwargs):
    BEFORE.state = state()


@schemathesis.check
def refused_changes_nothing(ctx, response, case):
    if response.status_code < 400:
        return
    leases, queues = BEFORE.state
    leases_now, queues_now = state()
    assert leases_now.items() <= leases.items(), "a refused request has taken a lease"
    assert queues_now == queues, "a refused request has paused or resumed a queue"


@schemathesis.check
def errors_have_one_shape(ctx, response, case):
    if response.status_code < 400:
        return
    body = response.json()
    assert set(body) <= {"error", "message", "requestId", "retryAfter", "details"}, body
    assert isinstance(body["error"], str) and body["error"].isupper(), body
    assert isinstance(body["message"], str) and isinstance(body["requestId"], str), body
    assert response.headers["x-request-id"] == [body["requestId"]], (response.headers, body)
    if "retryAfter" in body:
        assert int(response.headers["retry-after"][0]) >= body["retryAfter"] / 1000, body
