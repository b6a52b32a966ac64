"""Requests and answers in the OpenAI form, with the real server's status codes and error texts."""

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from . import __version__
from .texts import text
from .words import count, word

if TYPE_CHECKING:
    from .server import Engine

__all__ = ["Answers", "BadRequest"]


class BadRequest(Exception):
    """Status and the error object's type, with the text."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Answers:
    """Mixed into the HTTP handler."""

    if TYPE_CHECKING:
        engine: Engine
        command: str
        path: str
        headers: Any
        rfile: Any
        wfile: Any
        close_connection: bool

        def send_response(self, code: int, message: str | None = None) -> None: ...
        def send_header(self, keyword: str, value: str) -> None: ...
        def end_headers(self) -> None: ...

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        try:
            self._route(path, body)
        except BadRequest as e:
            self._json(e.status, e.body)

    def _route(self, path: str, body: bytes) -> None:
        if path.startswith("/v1/") and self.engine.keys and not self._signed():
            return self._json(401, {"error": "Unauthorized"})
        posts = {"/v1/completions": self._completion, "/v1/chat/completions": self._chat}
        gets = {"/health": self._health, "/ping": self._health, "/version": self._version}
        gets |= {"/metrics": self._metrics, "/v1/models": self._models}
        if path not in posts and path not in gets:
            return self._json(404, {"detail": "Not Found"})
        if (path in posts) != (self.command == "POST"):
            return self._json(405, {"detail": "Method Not Allowed"})
        return posts[path](self._asked(body)) if path in posts else gets[path]()

    def _signed(self) -> bool:
        _, _, key = self.headers.get("Authorization", "").partition("Bearer ")
        return key in self.engine.keys

    def _asked(self, body: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(body)
        except ValueError as e:
            raise BadRequest(400, "BadRequestError", f"Invalid JSON: {e}") from e
        if not isinstance(asked, dict):
            raise BadRequest(400, "BadRequestError", "the body must be a JSON object")
        wanted = asked.get("model", self.engine.model)
        if wanted != self.engine.model:
            raise BadRequest(404, "NotFoundError", text("http", "no-model", model=wanted), "model")
        return asked

    def _health(self) -> None:
        self._send(503 if self.engine.dead.is_set() else 200, b"", "text/plain")

    def _version(self) -> None:
        self._json(200, {"version": __version__})

    def _metrics(self) -> None:
        self._send(200, self.engine.metrics.render().encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _models(self) -> None:
        known = {"id": self.engine.model, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        row = {**known, "root": self.engine.root, "parent": None, "max_model_len": self.engine.length}
        self._json(200, {"object": "list", "data": [row]})

    def _completion(self, asked: dict[str, Any]) -> None:
        prompt = asked.get("prompt")
        if isinstance(prompt, list) and prompt and all(isinstance(p, str) for p in prompt):
            if len(prompt) > 1:
                raise BadRequest(400, "BadRequestError", "this stand-in takes one prompt a request", "prompt")
            prompt = prompt[0]
        if isinstance(prompt, list) and all(isinstance(p, int) for p in prompt):
            prompt = " ".join(str(p) for p in prompt)
        if not isinstance(prompt, str) or not prompt:
            raise BadRequest(400, "BadRequestError", "prompt must be a text or a list of token ids", "prompt")
        self._generate(asked, prompt, asked.get("max_tokens", 16), chat=False)

    def _chat(self, asked: dict[str, Any]) -> None:
        messages = asked.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages) or not messages:
            raise BadRequest(400, "BadRequestError", "messages must be a list of messages", "messages")
        prompt = "\n".join("{}: {}".format(m.get("role"), m.get("content")) for m in messages)
        most = asked.get("max_completion_tokens", asked.get("max_tokens"))
        self._generate(asked, prompt, most, chat=True)

    def _generate(self, asked: dict[str, Any], prompt: str, most: int | None, *, chat: bool) -> None:
        engine, tokens = self.engine, count(prompt)
        room = engine.length - tokens
        most = room if most is None else most
        if not isinstance(most, int) or most < 1:
            raise BadRequest(400, "BadRequestError", text("http", "few-tokens", given=most), "max_tokens")
        if most > room or room < 1:
            sizes = {"length": engine.length, "most": most, "tokens": tokens, "total": most + tokens}
            raise BadRequest(400, "BadRequestError", text("http", "too-long", **sizes), "input_tokens")
        if engine.dead.is_set() or self._fault() == "error-500":
            raise BadRequest(500, "InternalServerError", text("http", "dead"))
        generation = engine.add(prompt, tokens, most, ignore_eos=bool(asked.get("ignore_eos")))
        try:
            answer = Reply(self, asked, prompt, tokens, chat=chat)
            (answer.stream if asked.get("stream") else answer.whole)(generation)
        finally:
            engine.abort(generation.number)

    def _fault(self) -> str:
        try:
            return self.engine.watched.get().fault
        except ValueError:
            return ""

    def _json(self, status: int, data: Any) -> None:
        self._send(status, json.dumps(data).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Reply:
    """One completion's answer, whole or as server-sent events."""

    def __init__(self, http: Answers, asked: dict[str, Any], prompt: str, tokens: int, *, chat: bool) -> None:
        self.http, self.asked, self.prompt, self.tokens, self.chat = http, asked, prompt, tokens, chat
        self.made = 0
        kind = "chat.completion" if chat else "text_completion"
        self.head = {"id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex, "object": kind}
        self.head |= {"created": int(time.time()), "model": http.engine.model}  # type: ignore[dict-item]

    def words(self, tokens: int) -> str:
        """The next tokens; with speculation several in one piece."""
        fault = self.http._fault()
        if fault == "lossy" and not self.http.engine.speculates:
            fault = ""
        words = [word(self.prompt, self.made + n, fault=fault) for n in range(tokens)]
        self.made += tokens
        return "".join(words)

    def usage(self) -> dict[str, int]:
        total = self.tokens + self.made
        return {"prompt_tokens": self.tokens, "total_tokens": total, "completion_tokens": self.made}

    def whole(self, generation: Any) -> None:
        pieces: list[str] = []
        for tokens, end in generation:
            if end == "dead":
                raise BadRequest(500, "InternalServerError", text("http", "dead"))
            pieces.append(self.words(tokens))
            if end:
                break
        whole = "".join(pieces)
        said = {"message": {"role": "assistant", "content": whole}} if self.chat else {"text": whole}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": end, "stop_reason": None}
        self.http._json(200, {**self.head, "choices": [choice], "usage": self.usage()})

    def stream(self, generation: Any) -> None:
        http = self.http
        http.send_response(200)
        http.send_header("Content-Type", "text/event-stream; charset=utf-8")
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()
        if self.chat:
            self.head["object"] = "chat.completion.chunk"
            self.event({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        for tokens, end in generation:
            if end == "dead":
                self.chunk({"error": {"message": text("http", "dead"), "code": 500}})
                break
            piece = self.words(tokens)
            said = {"delta": {"content": piece}} if self.chat else {"text": piece}
            self.event({"index": 0, **said, "logprobs": None, "finish_reason": end, "stop_reason": None})
            if end:
                break
        if (self.asked.get("stream_options") or {}).get("include_usage"):
            self.chunk({**self.head, "choices": [], "usage": self.usage()})
        self.raw(b"data: [DONE]\n\n")
        self.raw(b"")

    def event(self, choice: dict[str, Any]) -> None:
        self.chunk({**self.head, "choices": [choice]})

    def chunk(self, data: dict[str, Any]) -> None:
        self.raw(b"data: " + json.dumps(data).encode() + b"\n\n")

    def raw(self, data: bytes) -> None:
        self.http.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
