"""Compiled kernels are kept between runs; what is damaged, old or foreign is compiled anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_winograd.codegen import kernel_cache, nvrtc
from tvm_winograd.codegen.kernel_cache import KernelCache, key_of, user_cache

SOURCE = 'extern "C" __global__ void cached(float* x) { x[0] = 1.0f; }'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compiled(source: str = SOURCE, **options):
    nvrtc._last.clear()  # of this process: not what is tested
    return nvrtc.compile_cuda(source, "sm_90", **options)


def test_a_second_run_compiles_nothing(folder, monkeypatch):
    first = compiled()
    monkeypatch.setattr(nvrtc, "_run_nvrtc", lambda *_: pytest.fail("compiled again"))
    again = compiled()
    assert not first.cached and again.cached
    assert (again.binary, again.log, again.kind) == (first.binary, first.log, first.kind)
    assert [path.stat().st_mode & 0o077 for path in folder.iterdir()] == [0]


def test_what_differs_is_another_entry(folder):
    assert not compiled().cached
    assert not compiled(SOURCE.replace("1.0f", "2.0f")).cached
    assert not compiled(ptx=True).cached
    assert len(list(folder.iterdir())) == 3


def test_without_a_cache_nothing_is_read_or_written(folder, monkeypatch):
    assert not compiled(cache=False).cached and not folder.exists()
    monkeypatch.setenv(kernel_cache.VARIABLE, kernel_cache.OFF)
    assert user_cache() is None and not compiled().cached


@pytest.mark.parametrize("damage", [b"", b"x" * 200, None])
def test_a_damaged_entry_is_compiled_anew(folder, damage):
    good = compiled()
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    again = compiled()
    assert not again.cached and again.binary == good.binary
    assert compiled().cached


def test_it_stays_below_its_size_and_keeps_what_was_used_last(tmp_path):
    cache = KernelCache(tmp_path, most_bytes=3 * 1100)
    for i in range(3):
        cache.put(str(i), bytes(1000), "log")
        os.utime(tmp_path / str(i), (i, i))
    assert cache.get("0") == (bytes(1000), "log")  # used now
    cache.put("3", bytes(1000), "log")
    assert {path.name for path in tmp_path.iterdir()} == {"0", "2", "3"}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    KernelCache(tmp_path / "file" / "below").put("key", b"binary", "log")
    assert KernelCache(tmp_path / "file" / "below").get("key") is None


def test_parts_do_not_run_together():
    assert key_of(["ab", "c"]) != key_of(["a", "bc"]) != key_of(["abc"])


WRITER = """
import sys
from pathlib import Path
from tvm_winograd.codegen.kernel_cache import KernelCache
cache = KernelCache(Path(sys.argv[1]), most_bytes=20_000)
for i in range(200):
    cache.put(str(i % 7), bytes([i % 7]) * 4000, "log")
    found = cache.get(str(i % 7))
    assert found is None or found == (bytes([i % 7]) * 4000, "log"), i
"""


def test_processes_share_it(tmp_path: Path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".new-")]
