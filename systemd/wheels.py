"""All wheels of a lock in one folder, for hosts that copy them from each other.

    wheels.py fetch  < request.json    from the host's package index
    wheels.py verify < request.json    a folder that was pushed or copied

Request: {"folder", "work", "packages": {name: [sha256]}, "index", "python": [3, 12], "glibc": 39}.
Works in folder + ".partial"; the folder has its name when each package has a wheel with a locked hash in it.
Prints JSON lines: {"done", "total"} (wheels) while it works, at the end {"ok": true} or {"error": text}.
"""

import base64
import concurrent.futures
import hashlib
import html.parser
import json
import netrc
import os
import pathlib
import platform
import re
import shutil
import sys
import urllib.parse
import urllib.request

WHOLE = ".eyas-whole"
CHUNK = 1 << 20
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
OLD_NAMES = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}


class Failed(Exception):
    """The folder could not be made; the text says why."""


def say(**words):
    print(json.dumps(words), flush=True)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while data := f.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


def missing(folder, packages):
    """Packages without a right wheel; files that are in no lock are removed."""
    found = set()
    for path in sorted(folder.iterdir()):
        name = normal(path.name.split("-")[0])
        if path.suffix == ".whl" and digest_of(path) in packages.get(name, ()):
            found.add(name)
        elif path.is_file():
            path.unlink()
    return sorted(set(packages) - found)


# ---- which file of an index fits this host


def rank(filename, python, glibc, machine):
    """How well a wheel fits, a larger tuple is better; None: not at all."""
    parts = filename[: -len(".whl")].split("-")
    if not filename.endswith(".whl") or len(parts) < 5:
        return None
    pys, abis, platforms = (p.split(".") for p in parts[-3:])
    best = [level(p, glibc, machine) for p in platforms]
    speed = [fit(py, abi, python) for py in pys for abi in abis]
    if max(best) < 0 or max(speed) < 0:
        return None
    return max(speed), max(best)


def fit(py, abi, python):
    """4: built for this Python, 3: for its stable interface, 2 and 1: pure."""
    major, minor = python
    mine, found = "cp%d%d" % (major, minor), re.fullmatch(r"(cp|py)(\d)(\d*)", py)
    if not found or int(found.group(2)) != major or int(found.group(3) or 0) > minor:
        return -1
    if py == mine and abi in (mine, "none"):
        return 4
    if abi == "abi3" and found.group(1) == "cp":
        return 3
    return (2 if found.group(3) else 1) if abi == "none" and found.group(1) == "py" else -1


def level(tag, glibc, machine):
    """The glibc a platform tag asks for, 0 for any; -1: not this host."""
    if tag == "any":
        return 0
    name, _, rest = tag.partition("_")
    if name == "manylinux" and (found := re.fullmatch(r"2_(\d+)_(.+)", rest)):
        wanted, rest = int(found.group(1)), found.group(2)
    else:
        wanted = OLD_NAMES.get(name, 1 if name == "linux" else 1000)
    return wanted if rest == machine and wanted <= glibc else -1


# ---- the index


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        href = dict(attributes).get("href")
        if tag == "a" and href:
            self.found.append(href)


def opened(url, accept="*/*"):
    """The URL's answer, asked with the user and password of the URL, or of root's .netrc."""
    parts = urllib.parse.urlsplit(url)
    user, password = parts.username, parts.password
    if not user and pathlib.Path("~/.netrc").expanduser().exists():
        user, _, password = netrc.netrc().authenticators(parts.hostname or "") or ("", "", "")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare, headers={"Accept": accept})
    if user:
        words = "%s:%s" % (urllib.parse.unquote(user), urllib.parse.unquote(password or ""))
        request.add_header("Authorization", "Basic " + base64.b64encode(words.encode()).decode())
    return urllib.request.urlopen(request, timeout=60)


def files_of(index, name):
    """[(file name, URL, sha256)] as the index tells."""
    url = index.rstrip("/") + "/" + name + "/"
    with opened(url, ACCEPT) as r:
        kind, body = r.headers.get_content_type(), r.read().decode("utf-8", "replace")
    if kind.endswith("json"):
        told = [(f["url"], f["hashes"].get("sha256", "")) for f in json.loads(body)["files"]]
    else:
        links = Links()
        links.feed(body)
        told = [(h.partition("#")[0], h.partition("#sha256=")[2]) for h in links.found]
    credentials = urllib.parse.urlsplit(url).netloc.rpartition("@")[0]
    return [(n, u, sha) for n, u, sha in (_absolute(url, h, sha, credentials) for h, sha in told)]


def _absolute(page, href, sha, credentials):
    parts = urllib.parse.urlsplit(urllib.parse.urljoin(page, href))
    same = parts.hostname == urllib.parse.urlsplit(page).hostname
    if credentials and same and "@" not in parts.netloc:
        parts = parts._replace(netloc=credentials + "@" + parts.netloc)
    return urllib.parse.unquote(parts.path.rsplit("/", 1)[-1]), parts.geturl(), sha


def bring(request, folder, name):
    """One wheel, hash-checked. Raise Failed when the index has none that is locked and fits."""
    wanted = request["packages"][name]
    ranked = []
    for filename, url, sha in files_of(request["index"], name):
        how = rank(filename, request["python"], request["glibc"], platform.machine())
        if sha in wanted and how:
            ranked.append((how, filename, url, sha))
    if not ranked:
        raise Failed("the index has no locked wheel of %s for this host" % name)
    _, filename, url, sha = max(ranked)
    part = folder / (filename + ".part")
    with opened(url) as r, open(part, "wb") as f:
        shutil.copyfileobj(r, f, CHUNK)
    if digest_of(part) != sha:
        part.unlink()
        raise Failed("%s is not the file its index tells of" % filename)
    os.replace(part, folder / filename)


def fetch(request, folder):
    names = missing(folder, request["packages"])
    total = len(request["packages"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(bring, request, folder, name) for name in names]
        for n, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            job.result()
            say(done=total - len(names) + n, total=total)


def seal(folder, final):
    """Readable by all, on disk, then named."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    os.sync()
    (folder / WHOLE).touch()
    shutil.rmtree(final, ignore_errors=True)
    os.rename(folder, final)


def make(word, request):
    final = pathlib.Path(request["folder"])
    folder = final.with_name(final.name + ".partial")
    folder.mkdir(parents=True, exist_ok=True)
    if word == "fetch":
        fetch(request, folder)
    lost = missing(folder, request["packages"])
    if lost:
        raise Failed("missing or not as locked: " + ", ".join(lost[:5]))
    seal(folder, final)


def main(word):
    request = json.load(sys.stdin)
    work = os.open(request["work"], os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        make(word, request)
    except (Failed, OSError, ValueError, KeyError) as e:
        say(error=str(e) or type(e).__name__)
        return 1
    finally:
        os.close(work)
    say(ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
