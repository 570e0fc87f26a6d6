"""Compiled functions: when they are called, once, and read again by later processes."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from maskjet import jit
from maskjet.host import cache

MODULE = """
from maskjet.jit import Inlined, compiled

@Inlined
def twice(value):
    return value + value

@compiled("int64(int64)")
def inner(value):
    return twice(value) + 1

@compiled("int64(Array(int64, 1, 'A', True))")
def outer(values):
    result = 0
    for value in values:
        result += inner(value)
    return result
"""
PROGRAM = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import functions
thread = threading.Thread(target=functions.outer, args=(np.arange(3),))
thread.start()
time.sleep(0.2)
child = os.fork()
found = functions.outer(np.arange(4)), functions.inner(5)
thread.join()
assert found == (16, 11), found
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_made", [*jit._made])  # `compile_all` is not to find the functions made here
    return tmp_path / "cache" / "numba"


@pytest.fixture
def load(tmp_path):
    """Writes the functions' module, and imports it as another process would."""

    def load(text=MODULE):
        (tmp_path / "functions.py").write_text(text)
        module = ModuleType("functions")
        exec(compile(text, tmp_path / "functions.py", "exec"), vars(module))  # not from bytecode of a moment before
        return module

    return load


@pytest.fixture
def compilations(monkeypatch):
    """Names of the functions that were compiled and not read from the cache."""
    names, save = [], jit._Cache.save_overload

    def note(self, *given):
        names.append(self._function.__name__)
        save(self, *given)

    monkeypatch.setattr(jit._Cache, "save_overload", note)
    return names


def test_compiled_at_the_first_call_with_all_that_it_calls(folder, load, compilations):
    functions = load()
    assert not compilations
    frozen = np.arange(10)[::3]
    frozen.flags.writeable = False
    assert functions.outer(frozen) == 40
    assert sorted(compilations) == ["inner", "outer"]
    assert functions.inner(2) == functions.inner.py_func(2) == 5
    with pytest.raises(TypeError):
        functions.outer(frozen.astype(float))  # which a bare njit would compile for
    assert len(list(folder.iterdir())) == len(compilations) == 2


def test_read_by_the_next_process_without_what_it_calls(load, compilations, monkeypatch):
    load().outer(np.arange(3))
    before = sorted(compilations)
    again = load()
    assert again.outer(np.arange(4)) == 16
    assert sorted(compilations) == before
    monkeypatch.setattr(Dispatcher, "compile", None)
    with pytest.raises(TypeError):
        again.inner(1)  # was not even read


def test_another_source_of_a_called_function_is_another_function(load, compilations):
    assert load().outer(np.arange(4)) == 16
    assert load(MODULE.replace("+ 1", "+ 2")).outer(np.arange(4)) == 20
    assert sorted(compilations) == ["inner", "inner", "outer", "outer"]


def test_first_calls_of_many_threads_compile_once(load, compilations):
    functions = load()
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(functions.outer, [np.arange(4)] * 16)) == [16] * 16
    assert sorted(compilations) == ["inner", "outer"]


def test_a_fork_while_another_thread_compiles(load, tmp_path):
    load()
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.parametrize("how", ["nowhere", "damaged", "no home"])
def test_without_a_cache_it_is_compiled_anew(folder, load, compilations, monkeypatch, how):
    load().outer(np.arange(3))
    if how == "damaged":
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes()[:1000])
    else:
        monkeypatch.setenv("MASKJET_CACHE_DIR", "/dev/null/cache" if how == "nowhere" else "")
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setattr(cache.Path, "expanduser", lambda _: exec('raise RuntimeError("no home")'))
    assert load().outer(np.arange(4)) == 16
    assert len(compilations) == 4


def test_other_failures_are_not_swallowed(load):
    functions = load(MODULE.replace("result += inner(value)", "result.nothing()"))
    with pytest.raises(Exception, match="nothing"):
        functions.outer(np.arange(3))


def test_a_terminal_is_told_once(monkeypatch):
    ours, theirs = os.openpty()
    told, tell = threading.Event(), cache._tell
    monkeypatch.setattr(cache, "_tell", lambda: (tell(), told.set()))
    monkeypatch.setattr(cache, "_PATIENCE_S", 1e-6)
    monkeypatch.setattr(cache, "_spent_s", 0.0)
    with os.fdopen(theirs, "w", buffering=1) as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        for _ in range(3):
            with cache.telling():
                assert told.wait(60)
    assert os.read(ours, 1000) == b"maskjet: compiling for this machine, which later runs need not ...\r\n"
    os.close(ours)
