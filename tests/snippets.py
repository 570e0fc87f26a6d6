"""The snippets of a Markdown page: found, run in order, and compared with the output that the page shows."""

import contextlib
import functools
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch
import typer
from starlette.routing import Match

import maskjet
from maskjet.cli.app import app
from maskjet.serve import create_app
from tests.cli.command_line import call
from tools.site_pages import find_commands

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = {"python", "sh", "yaml", "text", ""}
NEEDS = re.compile(r"needs (a|an) [\w ]+")
"""Title of a block that can't run here. Its Python is compiled and its commands are parsed."""

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```\n', re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:8000"
"""Where the service of a page listens; here it has a port of its own instead."""
MEASURED = re.compile(r"measured on [\w ]+")
"""Title of an output whose numbers are of one machine and one day; its words are compared."""

_TIMED = r"(?= (?:s|ms|frames/s|fps|×|MiB)\b| %)"
_NUMBER = re.compile(rf"(?P<timed>\d[\d,]*(?:\.\d+)?{_TIMED})|(?P<number>\d+(?:\.\d+)?)|(?P<rest>\.\.\.|…)")
_SHARE = 0.02  # by which a number may differ: other processors round otherwise, and the demo model's scores with them


@dataclass(frozen=True)
class Snippet:
    """One block of code."""

    language: str
    """Of LANGUAGES; yaml is not run, its commands are parsed."""
    text: str
    """The code."""
    line: int
    """Line of its first line in the page, from 1."""
    needs: str | None
    """Title of a block that can't run here."""
    shown: str | None
    """The output that the page shows below it."""
    is_measured: bool
    """Whether the numbers of the output are not compared."""

    def lines(self):
        """Those of the code, joined where they go on."""
        return self.text.replace("\\\n", " ").splitlines()


def find_snippets(page):
    """The snippets of a page's text; a block without a language right below one is its output."""
    fences = list(_FENCE.finditer(page))
    assert len(re.findall(r"^\s*(```|~~~)", page, re.MULTILINE)) == 2 * len(fences), "fences must not be indented"
    found = []
    for fence, below in zip(fences, [*fences, None][1:], strict=True):
        language, title, text = fence.groups()
        assert language in LANGUAGES, language
        if language in ("", "text"):
            continue
        assert title is None or NEEDS.fullmatch(title), title
        line = page.count("\n", 0, fence.start()) + 2
        output = below if below and not below[1] and not page[fence.end() : below.start()].strip() else None
        is_measured = bool(output and output[2])
        assert not is_measured or MEASURED.fullmatch(output[2]), output[2]
        found.append(Snippet(language, text, line, title, output and output[3], is_measured))
    outputs = [fence for fence in fences if not fence[1]]
    assert len(outputs) == sum(snippet.shown is not None for snippet in found), "an output has no snippet above it"
    return found


class Page:
    """Runs the snippets of one page, which share names, the working directory, the last exit code and a service."""

    def __init__(self, path, capsys, setenv):
        self.path, self._capsys, self._setenv = path, capsys, setenv
        self._names = {"__name__": "__main__"}
        self._code = 0
        self._service = None
        self._address = ADDRESS

    def run(self, snippet):
        """What the snippet prints."""
        return self._run(snippet).replace(self._address, ADDRESS)

    def close(self):
        """End the page's service, which must end well."""
        if self._service is not None:
            self._service.send_signal(signal.SIGTERM)
            _, errors = self._service.communicate(timeout=30)
            assert (self._service.returncode, errors) == (0, "")
            self._service = None

    def _run(self, snippet):
        if snippet.language == "yaml" or snippet.needs:
            check(snippet)
            return ""
        if snippet.language == "python":
            return self._run_python(snippet)
        printed = io.StringIO()
        for line in snippet.lines():
            for command in line.split(" # ")[0].split(";"):
                self._run_command(shlex.split(command, comments=True), printed)
        assert self._code == 0 or "echo $?" in snippet.text, f"exit code {self._code}: {printed.getvalue()}"
        return printed.getvalue()

    def _run_python(self, snippet):
        text = snippet.text.replace(ADDRESS, self._address)
        code = compile("\n" * (snippet.line - 1) + text, str(self.path), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self._names)
        return printed.getvalue()

    def _run_command(self, words, printed):
        while words and re.match(r"[A-Z_]+=", words[0]):
            self._setenv(*words.pop(0).split("=", 1))
        match words:
            case []:
                pass
            case ["maskjet", "serve", *options]:
                check_command(words[1:])
                printed.write(self._start_service(options))
            case ["curl", *arguments]:
                check_request(arguments)
                printed.write(self._ask_service(arguments))
            case ["maskjet", *arguments]:
                check_command(arguments)
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                    self._code, out, err = call(self._capsys, "maskjet", *arguments)
                printed.write(out + err)
            case ["echo", "$?"]:
                print(self._code, file=printed)
            case ["export", assignment]:
                self._setenv(*assignment.split("=", 1))
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
            case ["pip", "install", "torch", "torchvision", "--index-url", "https://download.pytorch.org/whl/cpu"]:
                pass
            case ["pip", "install", what]:
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert what == "." or what[1:].strip("[]") in extras, what
            case _:
                raise AssertionError(f"{' '.join(words)!r} can't be run here")

    def _start_service(self, options):
        """Start the service in place of the one before; returns what it says when it is ready."""
        self.close()
        command = [sys.executable, "-m", "maskjet", "serve", *options, "--port", "0", "--device", "cpu"]
        own = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # which decide on rounding
        self._service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own)
        said = self._service.stderr.readline()
        self._address = said.strip().rpartition("http://")[2]
        assert self._address, said + self._service.stderr.read()
        return said

    def _ask_service(self, arguments):
        words = [os.path.expandvars(word).replace(ADDRESS, self._address) for word in arguments]
        done = subprocess.run(["curl", *words], capture_output=True, text=True, timeout=60)
        self._code = done.returncode
        return done.stdout + done.stderr + "\n"


def check(snippet):
    """Compile its Python, or parse its commands and requests, without running them."""
    if snippet.language == "python":
        compile(snippet.text, "snippet", "exec")
        return
    for line in snippet.lines():
        for command in re.findall(r"\b(?:maskjet [a-z]|curl ).*", line.partition(" # ")[0]):
            words = shlex.split(command)
            (check_request if words[0] == "curl" else check_command)(words[1:])


def check_request(arguments):
    """Whether the service has the path that a command of curl asks for."""
    (url,) = (urlsplit(word) for word in arguments if re.match(r"\w+://", word))
    scope = {"type": "http", "method": "GET", "path": url.path, "root_path": "", "headers": []}
    assert any(route.matches(scope)[0] is not Match.NONE for route in find_routes()), url.path


@functools.cache
def find_routes():
    """The service's routes."""
    with maskjet.load("demo", device="cpu") as model:
        return create_app({"demo": model}).routes


def check_command(arguments):
    """Whether there is such a command, with such options."""
    names = {tuple(name.split()[1:]): command for name, command in find_commands(typer.main.get_command(app))}
    name = max((name for name in names if tuple(arguments[: len(name)]) == name), key=len, default=None)
    assert name, f"no command is called {' '.join(arguments)!r}"
    if "--help" not in arguments:
        names[name].make_context("maskjet", arguments[len(name) :])


def compare(shown, printed, *, is_measured=False):
    """Fail unless the output is the one shown; "..." stands for anything, times and spaces may differ."""
    shown, printed = (
        "\n".join(" ".join(line.split()) for line in text.strip().splitlines()) for text in (shown, printed)
    )
    pattern, numbers, end = "", [], 0
    for token in _NUMBER.finditer(shown):
        pattern += re.escape(shown[end : token.start()])
        if token["rest"]:
            pattern += ".*?"
        elif token["timed"] or is_measured:
            pattern = re.sub(r"\\\+$|\\-$", "[+-]", pattern)  # what is about zero may lie on either side
            pattern += r"\d[\d,]*(?:\.\d+)?"
        else:
            pattern += r"(\d+(?:\.\d+)?)"
            numbers.append(token["number"])
        end = token.end()
    found = re.fullmatch(pattern + re.escape(shown[end:]), printed, re.DOTALL)
    assert found, f"the page shows\n{shown}\nand this was printed\n{printed}"
    for expected, actual in zip(numbers, found.groups(), strict=True):
        last_place = 10.0 ** -len(expected.partition(".")[2]) if "." in expected else 0  # small counts are exact
        most = max(_SHARE * float(expected), last_place) * 1.001
        assert abs(float(expected) - float(actual)) <= most, f"{expected} is shown, and {actual} was printed\n{printed}"
