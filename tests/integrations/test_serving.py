"""The server as its clients see it: answers, usage, salts, errors; curl and the openai package."""

import json
import shutil
import subprocess

import openai
import pytest
import trio

from .serving import NAME, WARM, reusable, serving, text, uncached

CHAT = "/v1/chat/completions"
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
RENDERED = "<system>be brief\n<user>hello\n<assistant>"


async def test_an_answer_is_what_the_model_says_by_itself():
    prompt = text(1, 100)
    async with serving() as server:
        assert await server.complete(prompt, 20) == (uncached(prompt, 20), 0)
        assert await server.complete(prompt, 20) == (uncached(prompt, 20), reusable(99))


@pytest.mark.parametrize("component", ["full", "swa", "mamba"])
async def test_a_wrong_page_would_be_noticed(component):
    """Text depends on what is restored, so that the tests here can fail."""
    prompt = text(1, 100)
    async with serving() as server:
        await server.complete(prompt, 40)
        for pool in server.cache.pools.view(component):
            pool.mul_(-1)
        wrong, cached = await server.complete(prompt, 40)
        assert cached == reusable(99)
        assert wrong != uncached(prompt, 40)


@pytest.mark.parametrize(
    ("path", "said", "prompt"),
    [
        ("/v1/completions", {"prompt": text(2, 50)}, text(2, 50)),
        ("/v1/completions", {"prompt": list(b"some token ids")}, "some token ids"),
        (CHAT, {"messages": HELLO}, RENDERED),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]},
            "<user>in parts\n<assistant>",
        ),
    ],
)
async def test_streams_say_the_same_as_whole_answers(path, said, prompt):
    said = said | WARM | {"max_tokens": 12}
    async with serving() as server:
        whole = (await server.post(path, **said)).json()
        async with server.stream(path, **said, stream_options={"include_usage": True}) as stream:
            *pieces, last = [event async for event in stream]
        again = (await server.post(path, **said)).json()
    choice = whole["choices"][0]
    told = choice["message"]["content"] if path == CHAT else choice["text"]
    parts = [piece["choices"][0] for piece in pieces]
    streamed = [p["delta"]["content"] if path == CHAT else p["text"] for p in parts]
    assert told == "".join(streamed) == uncached(prompt, 12)
    assert [p["finish_reason"] for p in parts] == [None] * 11 + ["length"]
    assert choice["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"] == again["usage"]
    assert {piece["usage"] for piece in pieces} == {None}
    assert whole["object"] == ("chat.completion" if path == CHAT else "text_completion")


async def test_usage_counts_tokens_and_what_was_cached_where():
    prompt = text(3, 70)
    async with serving() as server:
        for cached in (0, reusable(69)):
            usage = (await server.post(prompt=prompt, max_tokens=5)).json()["usage"]
            assert usage == {
                "prompt_tokens": 70,
                "completion_tokens": 5,
                "total_tokens": 75,
                "prompt_tokens_details": {
                    "cached_tokens": cached,
                    "cached_tokens_details": {"device": cached, "host": 0, "storage": 0},
                },
            }
        await server.cache.settle()
        for component, pages in server.cache.config.l1.items():
            await server.cache.evict(component, pages)
        usage = (await server.post(prompt=prompt, max_tokens=5)).json()["usage"]
        details = usage["prompt_tokens_details"]["cached_tokens_details"]
        assert details == {"device": 0, "host": reusable(69), "storage": 0}


async def test_the_next_turn_of_a_chat_reuses_the_answer_too():
    async with serving() as server:
        first = (await server.post(CHAT, messages=HELLO, max_tokens=30, **WARM)).json()
        said = first["choices"][0]["message"]
        messages = [*HELLO, said, {"role": "user", "content": "and then?"}]
        second = (await server.post(CHAT, messages=messages, max_tokens=4, **WARM)).json()
        # The last token of an answer is chosen and not computed.
        reused = reusable(first["usage"]["total_tokens"] - 1)
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == reused
        prompt = f"{RENDERED}{said['content']}\n<user>and then?\n<assistant>"
        assert second["choices"][0]["message"]["content"] == uncached(prompt, 4)


async def test_conversations_fork_where_the_system_prompt_ends():
    system = {"role": "system", "content": text(4, 55)}  # ends at 64: a page's end
    async with serving() as server:
        for question, cached in (("one", 0), ("another", 64)):
            messages = [system, {"role": "user", "content": question}]
            usage = (await server.post(CHAT, messages=messages)).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == cached


async def test_salts_never_share():
    prompt = text(5, 60)
    async with serving() as server:
        for salt in (None, "one", "two"):
            assert (await server.complete(prompt, cache_salt=salt))[1] == 0
        for salt in (None, "one", "two"):
            assert (await server.complete(prompt, cache_salt=salt))[1] == reusable(59)
        assert (await server.complete(prompt, cache_salt="three"))[1] == 0


async def test_sampling_repeats_with_a_seed_and_varies_without():
    prompt = text(6, 40)
    async with serving() as server:
        one, other = [(await server.complete(prompt, 24, seed=seed))[0] for seed in (1, 1)]
        assert one == other
        drawn = {(await server.complete(prompt, 24, temperature=2, seed=None))[0] for _ in "ab"}
        assert len(drawn) == 2


@pytest.mark.parametrize(
    ("path", "said", "status", "param", "code"),
    [
        ("/v1/completions", {"prompt": ""}, 400, "prompt", None),
        ("/v1/completions", {}, 400, "prompt", None),
        ("/v1/completions", {"prompt": [1, 256]}, 400, "prompt[1]", None),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt[0]", None),
        ("/v1/completions", {"prompt": {}}, 400, "prompt", None),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", None),
        ("/v1/completions", {"prompt": "a", "max_tokens": "b"}, 400, "max_tokens", None),
        ("/v1/completions", {"prompt": "a", "temperature": 3}, 400, "temperature", None),
        ("/v1/completions", {"prompt": "a", "seed": -1}, 400, "seed", None),
        ("/v1/completions", {"prompt": "a", "seed": 2**64}, 400, "seed", None),
        ("/v1/completions", {"prompt": "a", "cache_salt": ""}, 400, "cache_salt", None),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n", None),
        ("/v1/completions", {"prompt": "a", "logprobs": 0}, 400, "logprobs", None),
        ("/v1/completions", {"prompt": "a", "stop": ["x"]}, 400, "stop", None),
        ("/v1/completions", {"prompt": "a", "model": "b"}, 404, "model", "model_not_found"),
        (CHAT, {"messages": []}, 400, "messages", None),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0]", None),
        (CHAT, {"messages": [{"role": "pig", "content": ""}]}, 400, "messages[0].role", None),
        (CHAT, {"messages": HELLO, "tools": [{}]}, 400, "tools", None),
        ("/v1/completions", {"prompt": "a" * 745}, 400, "prompt", "context_length_exceeded"),
        (CHAT, {"messages": HELLO, "max_tokens": 999}, 400, "messages", "context_length_exceeded"),
        ("/v1/nothing", {}, 404, None, None),
        ("/v1/models", {}, 405, None, None),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(path, said, status, param, code):
    async with serving() as server:
        response = await server.post(path, **said)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (status, param, code)
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert (await server.cache.stats()).requests == 0


async def test_no_request_is_longer_than_the_model_s_prefixes_stay_the_same():
    async with serving(longest=60) as server:
        response = await server.post("/v1/completions", prompt="a" * 50, max_tokens=11)
        assert response.json()["error"]["code"] == "context_length_exceeded"
        response = await server.post("/v1/completions", prompt="a" * 50, max_tokens=10)
        assert response.status_code == 200


async def test_the_least_temperature_is_greedy():
    prompt = text(6, 40)
    async with serving() as server:
        texts = [(await server.complete(prompt, temperature=least))[0] for least in (0, 5e-324)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b"\xff", b'{"prompt": "a"}', b'{"a":' * 5_000, b" " * 80_000],
    ids=range(7),
)
async def test_bodies_that_are_no_requests(body):
    async with serving() as server:
        response = await server.client.post("/v1/completions", content=body)
        assert response.status_code == (413 if len(body) == 80_000 else 400)
        assert response.json()["error"]["message"]


async def test_bodies_that_never_come_are_not_waited_for():
    async with serving(body_timeout=0.2) as server:
        host, port = server.url.removeprefix("http://").split(":")
        answers = []

        async def half():
            async with await trio.open_tcp_stream(host, int(port)) as socket:
                head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
                await socket.send_all(head.encode())
                answers.append(
                    b"".join([part async for part in socket])
                )  # until the server hangs up

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(half)
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
        assert (await server.complete(text(1, 20), 4))[0] == uncached(text(1, 20), 4)


@pytest.mark.parametrize("origin", ["https://example.com", "null", "http://localhost.example.com"])
async def test_pages_of_other_sites_may_not_ask(origin):
    said = {"model": NAME, "prompt": "hello", "max_tokens": 1}
    async with serving() as server:
        for own in (server.url, "http://localhost:3000"):
            answer = await server.client.post("/v1/completions", json=said, headers={"Origin": own})
            assert answer.status_code == 200
        answer = await server.client.post("/v1/completions", json=said, headers={"Origin": origin})
        assert answer.status_code == 403
        assert origin in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_connection_ends_with_the_answer_where_the_client_wants_it(version, stream):
    body = json.dumps({"model": NAME, "prompt": text(8, 40), "stream": stream}).encode()
    async with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as socket:
            head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nConnection: close\r\n"
            await socket.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = b"".join([part async for part in socket])  # up to the end of the connection
            assert answer.count(b'"finish_reason":"length"') == 1


async def test_the_longest_prompt_that_fits_is_answered():
    prompt = text(7, 744)
    async with serving() as server:
        assert await server.complete(prompt, 16) == (uncached(prompt, 16), 0)
        assert (await server.complete(prompt, 16))[1] == reusable(743)


async def test_health_models_and_metrics():
    async with serving() as server:
        await server.complete(text(8, 40))
        await server.complete(text(8, 40))
        health = (await server.client.get("/health")).json()
        assert health == {"status": "ok", "running": 0, "waiting": 0, "leases": 0}
        models = (await server.client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == [NAME]
        told = await server.client.get("/metrics")
        assert told.headers["content-type"].startswith("text/plain")
        values = {}
        for line in told.text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name.partition("{")[0], 'tier="l1"' in name] = float(value)
        assert values["banyankv_requests_total", False] == 2
        assert values["banyankv_match_requested_total", False] == 80
        assert values["banyankv_match_hit_total", True] == reusable(39)
        assert values["banyankv_server_time_to_first_token_seconds_count", False] == 2
        assert values["banyankv_server_requests_running", False] == 0
        assert values["banyankv_server_requests_preempted_total", False] == 0


async def test_the_openai_package():
    async with serving() as server:
        await trio.to_thread.run_sync(talk, f"{server.url}/v1")


def talk(url):
    """Use the server as everybody would: with the package's blocking client."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [NAME]
        done = client.completions.create(
            model=NAME, prompt="once upon", max_tokens=9, extra_body={"cache_salt": "s"}, **WARM
        )
        assert done.choices[0].text == uncached("once upon", 9)
        asked = {"model": NAME, "messages": HELLO} | WARM
        whole = client.chat.completions.create(**asked, max_tokens=9)
        assert whole.choices[0].message.content == uncached(RENDERED, 9)
        *pieces, last = client.chat.completions.create(
            **asked, max_completion_tokens=9, stream=True, stream_options={"include_usage": True}
        )
        assert "".join(p.choices[0].delta.content for p in pieces) == uncached(RENDERED, 9)
        assert last.usage.prompt_tokens_details.cached_tokens == reusable(len(RENDERED) - 1)
        with pytest.raises(openai.NotFoundError, match="only 'lara-mini'"):
            client.completions.create(model="gpt-5", prompt="a")
        with pytest.raises(openai.BadRequestError, match="context of"):
            client.completions.create(model=NAME, prompt="a" * 2000)


async def curl(server, *arguments):
    command = ["curl", "--silent", "--show-error", "--no-buffer", *arguments]
    done = await trio.run_process(command, capture_stdout=True)
    return done.stdout.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
async def test_curl():
    said = {"model": NAME, "prompt": "curl", "max_tokens": 6} | WARM
    async with serving() as server:
        where = f"{server.url}/v1/completions"
        whole = json.loads(await curl(server, where, "--data", json.dumps(said)))
        assert whole["choices"][0]["text"] == uncached("curl", 6)
        told = await curl(server, where, "--data", json.dumps(said | {"stream": True}))
        lines = [line.removeprefix("data: ") for line in told.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == uncached(
            "curl", 6
        )
        failed = ["--fail", where, "--data", "{}"]
        with pytest.raises(subprocess.CalledProcessError):
            await curl(server, *failed)
