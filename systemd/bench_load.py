"""The requests of a bench: one event loop, so many always in flight, the times of first and last token."""

import asyncio
import json
import re
import time
import urllib.parse

#: Events that carry no token: the usage at the end, and the chat form's first one, which names the role.
NO_TOKEN = re.compile(rb'"choices": ?\[\]|"role": ?"')


class Failed(Exception):
    """The endpoint did not do what was asked of it; the text goes to the operator."""


def asking(model, text, chat):
    said = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    return dict(said, model=model)


def path_of(chat):
    return "/v1/chat/completions" if chat else "/v1/completions"


class Load:
    """Closed loop over one event loop: a thread a request would take the time it measures."""

    def __init__(self, release, asked, chat):
        url = urllib.parse.urlsplit(release.base)
        self.host, self.port = url.hostname, url.port or 80
        self.headers = dict(release.headers(), **{"Content-Type": "application/json", "Connection": "close"})
        self.release, self.chat, self.prompts = release, chat, asked["prompts"]
        self.max_tokens = asked["max_tokens"]
        self.concurrency = min(asked["concurrency"], len(self.prompts))
        self.todo = list(enumerate(self.prompts))[::-1]
        self.done = {}

    async def run(self):
        began = time.monotonic()
        self.finished = asyncio.Event()
        workers = [asyncio.ensure_future(self.work()) for _ in range(self.concurrency)]
        try:
            await self.until(workers)
        finally:
            for w in workers:
                w.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [self.done[n] for n in sorted(self.done)], time.monotonic() - began

    async def until(self, workers):
        """Until every counted request is answered, or one failed."""
        finished = asyncio.ensure_future(self.finished.wait())
        pending = {finished, *workers}
        while not self.finished.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for d in done - {finished}:
                if d.exception():
                    finished.cancel()
                    raise d.exception()
        finished.cancel()

    async def work(self):
        while self.todo:
            number, prompt = self.todo.pop()
            self.done[number] = await self.ask(prompt)
            if len(self.done) == len(self.prompts):
                self.finished.set()
        filler = 0
        while not self.finished.is_set():
            await self.ask(self.prompts[filler % len(self.prompts)])
            filler += 1

    async def ask(self, prompt):
        body = dict(asking(self.release.model, prompt, self.chat), max_tokens=self.max_tokens)
        body.update(temperature=0, seed=0, ignore_eos=True, stream=True)
        body["stream_options"] = {"include_usage": True}
        data = json.dumps(body).encode()
        start, writer = time.monotonic(), None
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
            writer.write(self.head(len(data)) + data)
            return await self.read(reader, start)
        except (OSError, asyncio.IncompleteReadError, ValueError, KeyError, IndexError) as e:
            raise Failed("a request broke off: %s: %s" % (type(e).__name__, e)) from e
        finally:
            if writer:
                writer.close()

    def head(self, length):
        lines = ["POST %s HTTP/1.1" % path_of(self.chat), "Host: %s:%d" % (self.host, self.port)]
        lines += ["%s: %s" % item for item in self.headers.items()] + ["Content-Length: %d" % length]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def read(self, reader, start):
        """The stream's lines with the time of the first and last token; parsed when it has ended."""
        status = (await reader.readline()).split()
        while (await reader.readline()).strip():
            pass
        if len(status) < 2 or status[1] != b"200":
            text = (await reader.read(600)).decode("utf-8", "replace")
            raise Failed("the endpoint answered %s %s" % (b" ".join(status[1:]).decode(), text))
        lines, first, last = [], None, None
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data:"):
                if not NO_TOKEN.search(line):
                    last = time.monotonic()
                    first = first or last
                lines.append(line[5:])
        return self.told([json.loads(x) for x in lines], start, first, last)

    def told(self, events, start, first, last):
        errors = [e["error"] for e in events if e.get("error")]
        usage = next((e["usage"] for e in reversed(events) if e.get("usage")), None)
        if errors or not usage or first is None:
            raise Failed("a stream ended without a token or usage: %s" % str(errors or events[-1:])[:300])
        text = "".join(_text(e["choices"][0]) for e in events if e.get("choices"))
        return {
            "ttft_s": first - start,
            "total_s": last - start,
            "prompt_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "text": text,
        }


def _text(choice):
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
