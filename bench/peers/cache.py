"""A crowd of cold callers at a cache of others.

    python cache.py cashews cold UPSTREAM_URL KEY CALLERS [--lock]

REDIS_URL says where Redis is. One JSON line on stdout. Says "ready" on stderr when everything is connected, and begins
at the line "go" on stdin; KEY must not be cached yet.
"""

import argparse
import asyncio
import json
import os
import sys
import time

import aiohttp
from aiohttp import web
from cashews import Cache

TTL = "10m"
PATIENCE = 60


def fail(text):
    print(f"cache.py: {text}", file=sys.stderr)
    sys.exit(1)


def whole(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("is a number from 1 on")
    return number


async def fetch(session, url):
    async with session.get(url) as response:
        response.raise_for_status()
        return await response.text()


async def warm_up(cache, session, lock):
    """Loads what is loaded at the first call, without asking the upstream: its calls are counted."""

    async def answer(_request):
        return web.Response(text="warm")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    @cache(ttl=TTL, key="warm:{name}", lock=lock)
    async def get(name):
        return await fetch(session, f"http://127.0.0.1:{port}/")

    for n in range(100):
        await get(name=f"{os.getpid()}-{n}")
    await runner.cleanup()


async def cold(arguments):
    cache = Cache()
    # client_side: its memory in front of Redis, the two levels.
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
    cache.setup(url, client_side=True)
    calls = 0
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await warm_up(cache, session, arguments.lock)

        # Callers of one process share a call by default; lock=True makes processes wait for one another too.
        @cache(ttl=TTL, key="cold:{name}", lock=arguments.lock)
        async def get(name):
            nonlocal calls
            calls += 1
            return await fetch(session, arguments.upstream)

        print("ready", file=sys.stderr, flush=True)
        said = await asyncio.to_thread(sys.stdin.readline)
        if said.strip() != "go":
            fail(f'"go" was expected, {said!r} was said')
        began = time.perf_counter()

        async def caller():
            value = await get(name=arguments.key)
            return value, (time.perf_counter() - began) * 1_000

        callers = asyncio.gather(*(caller() for _ in range(arguments.callers)))
        answers = await asyncio.wait_for(callers, PATIENCE)
    await cache.close()
    if len({value for value, _ in answers}) != 1:
        fail("not every caller got the same answer")
    took = sorted(ms for _, ms in answers)
    return {
        "peer": "cashews",
        "mode": "cold",
        "lock": arguments.lock,
        "callers": arguments.callers,
        "calls": calls,
        "p50": round(took[len(took) // 2], 3),
        "max": round(took[-1], 3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["cashews"])
    parser.add_argument("mode", choices=["cold"])
    parser.add_argument("upstream")
    parser.add_argument("key")
    parser.add_argument("callers", type=whole)
    parser.add_argument("--lock", action="store_true")
    arguments = parser.parse_args()
    try:
        result = asyncio.run(cold(arguments))
    except Exception as error:  # whatever it is, it is said, and the exit code says it too
        fail(repr(error))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
