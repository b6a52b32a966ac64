"""What each path answers. Status codes and headers are those that the clients decide by."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from tests.lab.hub.repos import Entry, Snapshot

if TYPE_CHECKING:
    from tests.lab.hub.server import Hub

__all__ = ["HubAnswers"]

_REPO = r"(?P<repo>[^/]+(?:/[^/]+)?)"
_ROUTES = (
    ("agents", r"/api/agent-harnesses"),
    ("whoami", r"/api/whoami-v2"),
    ("auth_check", rf"/api/models/{_REPO}/auth-check"),
    ("tree", rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?"),
    ("paths_info", rf"/api/models/{_REPO}/paths-info/(?P<revision>[^/]+)"),
    ("refs", rf"/api/models/{_REPO}/refs"),
    ("info", rf"/api/models/{_REPO}(?:/revision/(?P<revision>[^/]+))?"),
    ("resolve", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
    ("lfs", r"/lfs/(?P<sha256>[0-9a-f]{64})/(?P<repo>[^/]+/[^/]+)/(?P<revision>[0-9a-f]{40})/(?P<path>.+)"),
    ("mirror", r"/mirror/(?P<repo>[^/]+/[^/]+)/(?P<path>.+)"),
    ("simple", r"/simple/(?:(?P<project>[^/]+)/)?"),
    ("wheel", r"/files/(?P<name>[^/]+)"),
)
ROUTES = tuple((name, re.compile(pattern)) for name, pattern in _ROUTES)
_REDIRECTED = 302


class HubAnswers:
    """Mixed into the handler, which brings ``reply``, ``json``, ``file`` and ``link``."""

    if TYPE_CHECKING:
        hub: Hub
        route: str
        query: dict[str, list[str]]
        payload: bytes
        headers: Any

        def reply(self, status: int, *, headers: dict[str, str] | None = None, body: bytes = b"") -> None: ...
        def json(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None: ...
        def file(self, path: Path, headers: dict[str, str] | None = None) -> None: ...
        def link(self, path: str) -> str: ...

    def answer(self) -> None:
        """Find the route and let its method answer."""
        for name, pattern in ROUTES:
            if found := pattern.fullmatch(self.route):
                return getattr(self, f"on_{name}")(**found.groupdict())  # type: ignore[no-any-return]
        return self.problem(404, "", f"no such path: {self.route}")

    def problem(self, status: int, code: str, message: str, **headers: str) -> None:
        """An error as the hub words it: clients decide by X-Error-Code, people read X-Error-Message."""
        sent = {"X-Error-Message": message, **headers}
        if code:
            sent["X-Error-Code"] = code
        self.reply(status, headers=sent, body=message.encode())

    def user(self) -> str | None:
        """Who asks: a user name, "" for nobody, None for a token that no user has."""
        _, _, token = self.headers.get("Authorization", "").partition("Bearer ")
        tokens = self.hub.access.tokens
        return tokens.get(token) if token and tokens else token and "someone"

    def may(self, repo: str, *, files: bool) -> bool:
        """True when the asker may go on; else the refusal has been sent."""
        user, access = self.user(), self.hub.access
        if user is None:
            self.problem(401, "", "Invalid credentials in Authorization header")
            return False
        private = access.private.get(repo)
        if not self.hub.repos.branches(repo) or (private is not None and user not in private):
            self.problem(404 if user else 401, "RepoNotFound", "Repository not found")
            return False
        gated = access.gated.get(repo)
        if files and gated is not None and user not in gated:
            self._gate(repo, signed_in=bool(user))
            return False
        return True

    def _gate(self, repo: str, *, signed_in: bool) -> None:
        page = f"{self.hub.url}/{repo}"
        todo = (
            f"Visit {page} to ask for access."
            if signed_in
            else "You must have access to it and be authenticated."
        )
        status = 403 if signed_in else 401
        self.problem(status, "GatedRepo", f"Access to model {repo} is restricted. {todo}")

    def snapshot(self, repo: str, revision: str | None, *, files: bool = False) -> Snapshot | None:
        """The repository, or None after a refusal was sent."""
        if not self.may(repo, files=files):
            return None
        found = self.hub.repos.snapshot(repo, revision or "main")
        if found is None:
            self.problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def on_agents(self) -> None:
        self.json(200, {"standardEnvVars": [], "harnesses": {}})

    def on_whoami(self) -> None:
        if user := self.user():
            token = {"displayName": "lab", "role": "read"}
            return self.json(
                200, {"type": "user", "name": user, "auth": {"type": "access_token", "accessToken": token}}
            )
        return self.problem(401, "", "Invalid credentials in Authorization header")

    def on_auth_check(self, repo: str) -> None:
        if self.may(repo, files=True):
            self.reply(200)

    def on_refs(self, repo: str) -> None:
        if self.may(repo, files=False):
            at = {name: self.hub.repos.snapshot(repo, name) for name in self.hub.repos.branches(repo)}
            heads = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": s.commit} for n, s in at.items() if s
            ]
            self.json(200, {"branches": heads, "converts": [], "tags": []})

    def on_info(self, repo: str, revision: str | None) -> None:
        if found := self.snapshot(repo, revision):
            blobs = self.query.get("blobs") == ["true"]
            siblings = [e.sibling(blobs=blobs) for e in found.entries.values()]
            gated = "manual" if repo in self.hub.access.gated else False
            about = {"private": repo in self.hub.access.private, "gated": gated, "siblings": siblings}
            self.json(200, {"id": repo, "modelId": repo, "sha": found.commit, **about})

    def on_tree(self, repo: str, revision: str, path: str | None) -> None:
        if not (found := self.snapshot(repo, revision)):
            return None
        rows = _tree(found, path or "", recursive=self.query.get("recursive") in (["true"], ["True"], ["1"]))
        if path and not rows:
            return self.problem(404, "EntryNotFound", f"{path} does not exist on {revision}")
        start = int(self.query.get("cursor", ["0"])[0])
        end = start + self.hub.page
        more = {}
        if end < len(rows):
            keep = "&".join(f"{k}={quote(v[0])}" for k, v in self.query.items() if k != "cursor")
            more = {"Link": f'<{self.link(self.route)}?{keep}&cursor={end}>; rel="next"'}
        return self.json(200, rows[start:end], more)

    def on_paths_info(self, repo: str, revision: str) -> None:
        if found := self.snapshot(repo, revision):
            paths = _paths(self.payload, self.headers.get("Content-Type", ""))
            known = {row["path"]: row for row in _tree(found, "", recursive=True)}
            self.json(200, [known[p] for p in paths if p in known])

    def on_resolve(self, repo: str, revision: str, path: str) -> None:
        if not (found := self.snapshot(repo, revision, files=True)):
            return None
        commit = {"X-Repo-Commit": found.commit}
        if not (entry := found.entries.get(path)):
            return self.problem(404, "EntryNotFound", "Entry not found", **commit)
        if not (entry.lfs and self.hub.cdn_url):
            return self.file(entry.file, {**commit, "ETag": f'"{entry.etag}"'})
        linked = {"X-Linked-Etag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size)}
        where = quote(f"/lfs/{entry.sha256}/{repo}/{found.commit}/{path}")
        signed = f"{self.hub.cdn_url}{where}?Expires=4102444800&Signature=lab"
        return self.reply(_REDIRECTED, headers={**commit, **linked, "Location": signed})

    def on_lfs(self, sha256: str, repo: str, revision: str, path: str) -> None:
        """The CDN: no token, the address alone opens the file."""
        entry = self._entry(repo, revision, path)
        if entry is None or entry.sha256 != sha256:
            return self.problem(404, "", "NoSuchKey")
        return self.file(entry.file, {"ETag": f'"{sha256}"'})

    def on_mirror(self, repo: str, path: str) -> None:
        """A plain web server: files, and ``SHA256SUMS`` of all of them."""
        found = self.hub.repos.snapshot(repo, "main")
        if found and path == "SHA256SUMS":
            lines = "".join(f"{e.sha256}  {e.path}\n" for e in found.entries.values())
            return self.reply(200, headers={"Content-Type": "text/plain"}, body=lines.encode())
        entry = self._entry(repo, "main", path)
        return self.file(entry.file) if entry else self.problem(404, "", "Not Found")

    def on_simple(self, project: str | None) -> None:
        body = self.hub.index.page(project)
        if body is None:
            return self.problem(404, "", "Not Found")
        return self.reply(200, headers={"Content-Type": "text/html"}, body=body)

    def on_wheel(self, name: str) -> None:
        wheel = self.hub.index.wheels().get(name)
        return self.file(wheel) if wheel else self.problem(404, "", "Not Found")

    def _entry(self, repo: str, revision: str, path: str) -> Entry | None:
        found = self.hub.repos.snapshot(repo, revision)
        return found.entries.get(path) if found else None


def _tree(found: Snapshot, below: str, *, recursive: bool) -> list[dict[str, Any]]:
    """Folders and files below a path, in path order."""
    folders = [{"type": "directory", "path": f, "size": 0, "oid": found.commit} for f in found.folders()]
    rows = [e.leaf() for e in found.entries.values()] + folders
    prefix = f"{below.rstrip('/')}/" if below else ""
    inside = [r for r in rows if r["path"].startswith(prefix)]
    if not recursive:
        inside = [r for r in inside if "/" not in r["path"].removeprefix(prefix)]
    return sorted(inside, key=lambda r: str(r["path"]))


def _paths(payload: bytes, kind: str) -> list[str]:
    if "json" in kind:
        return [str(p) for p in json.loads(payload).get("paths", [])]
    return [value for name, value in parse_qsl(payload.decode()) if name == "paths"]
