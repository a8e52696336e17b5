"""The page's server: the numbers of the plan, the words of the command line, and who may ask."""

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from meshplan.planner.cli.main import exit_code
from meshplan.planner.search import footprint
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.ui import answers
from meshplan.planner.ui.guard import TOKEN_HEADER, Access
from meshplan.planner.ui.requests import SolveRequest
from meshplan.planner.ui.server import LOOPBACK, Server, listen

ACCESS = Access(port=8577, token="secret")
JOB = {
    "model": "tiny-llama",
    "cluster": "dgx-h100",
    "gpus": 16,
    "seq_len": "1024",
    "global_batch": 64,
}


@pytest.fixture(scope="module")
def client() -> TestClient:
    """A client that has the token."""
    app = Server((), lambda error: exit_code(error) is not None).app(ACCESS)
    address = f"http://{ACCESS.hosts[0]}"
    return TestClient(app, base_url=address, headers={TOKEN_HEADER: ACCESS.token})


def asked(client: TestClient, path: str, **question: Any) -> dict[str, Any]:
    """The answer to a question about `JOB`."""
    answer = client.post(path, json={"job": JOB, "choice": {}, **question})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_solved_layout_prices_as_in_the_plan(client: TestClient) -> None:
    """Solve with tp pinned, priced from its sliders, has the plan file's layout and numbers."""
    pinned = {"choice": {"tensor_parallel": 2}, "pinned": ["tensor_parallel"]}
    found = asked(client, "/api/solve", **pinned)
    shown = asked(client, "/api/price", choice=found["choice"])
    assert found["plan"]["layout"]["tensor_parallel"] == 2
    assert shown["layout"] == found["plan"]["layout"]
    assert shown["prediction"] == found["plan"]["prediction"]
    assert found["proof"][0].startswith("OPTIMAL: under the event simulation")


def test_why_nothing_fits_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for as long again as the search was given, and the answer says what that left
    out.
    """
    request = SolveRequest.model_validate({"job": JOB, "choice": {}, "time_limit_s": 0.2})
    monkeypatch.setattr(answers, "solve", nothing_fits)
    monkeypatch.setattr(footprint, "nearest_miss", lambda *_: time.sleep(30))
    started = time.monotonic()
    found = answers.solve_document(request, None)
    assert time.monotonic() - started < 10
    assert any(line.startswith("the time limit left out: ") for line in found["infeasible"])


def nothing_fits(*_: Any) -> None:
    """A search that finds no layout."""
    raise NoLayoutFits("no layout fits")


def test_runner_up_prices_as_in_the_plan(client: TestClient) -> None:
    """A runner-up's sliders give the step time that the plan states for it."""
    found = asked(client, "/api/solve")
    for shown, planned in zip(found["runners_up"], found["plan"]["runners_up"], strict=True):
        priced = asked(client, "/api/price", choice=shown["choice"])
        assert priced["prediction"]["step_time_s"] == planned["step_time_s"]


@pytest.mark.parametrize(("experts_on", "splits"), [(1, 2), (2, 1)])
def test_the_engine_says_which_ranks_split_experts(
    client: TestClient, experts_on: int, splits: int
) -> None:
    """torchtitan's tensor parallelism splits those that are not spread, whatever is chosen."""
    job = JOB | {"model": "qwen3-30b-a3b", "engine": "torchtitan"}
    choice = {"tensor_parallel": 2, "expert_parallel": experts_on, "zero_stage": 3}
    shown = asked(client, "/api/price", job=job, choice=choice)
    assert shown["layout"].get("expert_tensor_parallel", 1) == splits


def test_parts_add_up_to_the_step(client: TestClient) -> None:
    """The parts that are drawn are the whole step."""
    shown = asked(client, "/api/price", choice={"pipeline_parallel": 2})
    assert sum(shown["parts"].values()) == pytest.approx(shown["prediction"]["step_time_s"])
    assert len(shown["prediction"]["memory"]) == 2


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"context_parallel": 3}, "16 GPUs are not a multiple of tensor x context x pipeline = 3"),
        ({"expert_parallel": 2}, "tiny-llama has no experts: expert_parallel must be 1, not 2"),
        ({"zero_stage": 2}, "the profile of megatron-bridge does not cover zero_stage 2"),
        ({"micro_batch_size": 3}, "global batch 64 is not a multiple of data_parallel 16 x"),
    ],
    ids=["16 % 3", "dense ep2", "megatron zero2", "64 % (16 x 3)"],
)
def test_refused_layout_says_the_rule(client: TestClient, choice: dict[str, int], why: str) -> None:
    """A layout that the rules forbid is refused in their words, and its stop says the same."""
    shown = asked(client, "/api/price", choice=choice)
    assert shown["refused"].startswith(why)
    ((axis, value),) = choice.items()
    (stop,) = [each for each in shown["stops"][axis] if each["value"] == value]
    assert stop["why"] == shown["refused"]


@pytest.mark.parametrize(
    ("batch", "widest"),
    [pytest.param(64, 8, id="a node's 8"), pytest.param(1, 16, id="1 sequence on 2 nodes: 16")],
)
def test_stops_of_tensor_parallel_are_those_of_the_search(
    client: TestClient, batch: int, widest: int
) -> None:
    """Legal or not, with why."""
    job = JOB | {"global_batch": batch}
    stops = asked(client, "/api/price", job=job)["stops"]["tensor_parallel"]
    assert max(stop["value"] for stop in stops) == widest


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpus": 0}, "job.gpus"),
        ({"gpus": 2**40}, "job.gpus"),
        ({"colour": 1}, "job.colour: no such field"),
        ({"seq_len": "long"}, "--seq-len 'long' is not a number of tokens"),
        ({"model": "/etc/passwd"}, "the page opens no file by name"),
        ({"cluster": "/etc/passwd.toml"}, "the page does not open /etc/passwd.toml"),
        ({"model_config_text": "[" * 100_000}, "tiny-llama is not a config.json"),
        ({"global_batch": None}, "say the batch of one step once"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_jobs_are_one_line(client: TestClient, change: dict[str, Any], told: str) -> None:
    """A value that the command line refuses is 400 with its line."""
    answer = client.post("/api/price", json={"job": {**JOB, **change}, "choice": {}})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(told)
    assert "\n" not in answer.json()["error"]


def test_what_is_not_json_is_refused(client: TestClient) -> None:
    """A body that is no JSON, or too large, is one line."""
    assert client.post("/api/price", content=b"{").json()["error"].startswith("not JSON")
    assert client.post("/api/price", content=b" " * 6_000_000).status_code == 413


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"host": "evil.example:8577"}, "Host 'evil.example:8577' is not this server"),
        ({"host": "127.0.0.1:1"}, "Host '127.0.0.1:1' is not this server"),
        ({"origin": "http://evil.example"}, "Origin 'http://evil.example' is another page"),
        ({"origin": "null"}, "Origin 'null' is another page"),
        ({TOKEN_HEADER: "guess"}, "no token of this start"),
        ({TOKEN_HEADER: ""}, "no token of this start"),
    ],
    ids=["rebound name", "other port", "other origin", "sandboxed frame", "guess", "none"],
)
def test_others_are_refused(client: TestClient, headers: dict[str, str], told: str) -> None:
    """Another Host, another Origin or no token gets 403 and nothing else."""
    answer = client.get("/api/catalogue", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"].startswith(told)
    assert client.get("/api/catalogue").status_code == 200


def test_it_listens_on_loopback_only() -> None:
    """The socket is bound to 127.0.0.1."""
    with listen(0) as socket:
        assert socket.getsockname()[0] == LOOPBACK == "127.0.0.1"


def test_page_is_served_with_its_policy(client: TestClient) -> None:
    """The page and its files come with a policy that allows no other origin."""
    for path in ("/", "/page.js", "/page.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")


def test_what_scrolls_is_reached_by_keyboard(client: TestClient) -> None:
    """Each element that the style lets scroll takes the focus, and says what it is."""
    scrolling = re.findall(
        r"^([.#])([\w-]+) \{.*overflow-[xy]: auto", client.get("/page.css").text, re.M
    )
    tags = re.findall(r"<\w+ [^>]*>", client.get("/").text)
    for sign, name in scrolling:
        kind = "id" if sign == "#" else "class"
        found = [tag for tag in tags if f'{kind}="{name}"' in tag]
        assert found
        assert all('tabindex="0"' in tag and "aria-label=" in tag for tag in found), found
    assert len(scrolling) == 2


def test_config_beside_the_layout(client: TestClient) -> None:
    """An uploaded config is compared; one that nobody recognises is one line."""
    answer = client.post(
        "/api/compare", json={"job": JOB, "choice": {}, "name": "a.yaml", "text": "a: 1"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("no config format recognised")
    config = "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --bf16"
    text = f"#!/bin/bash\ntorchrun pretrain_gpt.py {config} --seq-length 1024\n"
    found = asked(client, "/api/compare", name="run.sh", text=text)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["layout"]["yours"].startswith("dp8 tp2")
    assert rows["layout"]["ours"] == "dp16 zero0 mbs1"


def test_without_the_extra_one_line_says_how() -> None:
    """`meshplan ui` without starlette is exit code 2 and the install command."""
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name: None if name == 'starlette' else find(name)\n"
        "from meshplan.planner.cli.main import app; app(['ui', '--no-open'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "error: the page needs the extra `ui`: pip install 'meshplan[ui]'\n"


def test_answers_are_plain_json(client: TestClient) -> None:
    """No number of an answer is infinite or missing."""
    json.dumps(asked(client, "/api/price"), allow_nan=False)
