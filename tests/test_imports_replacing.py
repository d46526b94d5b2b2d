"""An artifact takes another's place: interrupts, foreign files, leftovers, a full disk, threads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_network import tiny as small_model

import tvm_winograd
from tvm_winograd.cli import main
from tvm_winograd.codegen import artifact, replacing
from tvm_winograd.errors import ArtifactError


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    new, path = tmp_path / "scratch" / "new", tmp_path / "a"
    for folder, text in ((new, "new"), (path, "old")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    return new, path


def test_two_names_are_exchanged_at_once(folders, monkeypatch) -> None:
    new, path = folders
    monkeypatch.setattr(os, "rename", None)
    replacing.put_in_place(new, path, new.parent / "old")
    assert (path / "file").read_text() == "new" and (new / "file").read_text() == "old"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_between_two_renames_is_undone(folders, monkeypatch, error) -> None:
    new, path = folders
    monkeypatch.setattr(replacing, "exchange", lambda *names: False)
    rename, calls = os.rename, []

    def interrupted(*names):
        calls.append(names)
        if len(calls) == 2:
            raise error
        rename(*names)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(error):
        replacing.put_in_place(new, path, new.parent / "old")
    assert (path / "file").read_text() == "old"


def test_leftovers_of_killed_runs_go(tmp_path: Path) -> None:
    path = tmp_path / "a"
    code = (
        "import sys, os, pathlib\n"
        "from tvm_winograd.codegen.replacing import scratch_beside\n"
        "with scratch_beside(pathlib.Path(sys.argv[1])) as s:\n"
        "    print(s, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    left = Path(done.stdout.strip())
    assert left.is_dir()
    other = tmp_path / ".a-unrelated"
    other.mkdir()
    with replacing.scratch_beside(path) as used:
        replacing.remove_leftovers(path)
        assert used.is_dir() and not left.exists() and other.is_dir()


def test_foreign_files_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tvm_winograd.compile(small_model(), output=path)
    tvm_winograd.compile(small_model(), output=path)  # an artifact alone is replaced
    (path / "cpu" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"cpu/notes\.txt, which would be lost"):
        tvm_winograd.compile(small_model(), output=path)
    assert (path / "cpu" / "notes.txt").read_text() == "mine"


def test_a_full_temporary_folder_is_an_error_before_the_work(monkeypatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(artifact.shutil, "disk_usage", lambda folder: usage._replace(free=1 << 20))
    with pytest.raises(ArtifactError, match="TMPDIR"):
        tvm_winograd.compile(small_model())


def test_compile_from_several_threads(tmp_path: Path) -> None:
    stdout, errors = sys.stdout, []

    def work(i: int) -> None:
        try:
            tvm_winograd.compile(small_model(), output=tmp_path / str(i))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and sys.stdout is stdout
    assert all((tmp_path / str(i) / "manifest.json").is_file() for i in range(4))


def test_an_internal_error_has_its_own_code(monkeypatch, capsys) -> None:
    from tvm_winograd.cli import env

    def broken(args):
        raise ZeroDivisionError("by zero\nand more")

    monkeypatch.setattr(env, "run", broken)
    assert main(["env"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "internal error: ZeroDivisionError: by zero (" in err
    assert "report" in err


@pytest.mark.parametrize("command", ["env", "compile", "tune"])
def test_an_interrupt_says_what_is_kept(command, monkeypatch, capsys) -> None:
    from tvm_winograd.cli import interrupt

    assert "interrupted; " in interrupt.message(command)
    from tvm_winograd.cli import env

    def stopped(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(env, "run", stopped)
    assert main(["env"]) == 130 and "interrupted" in capsys.readouterr().err


def test_ctrl_c_ends_a_command_within_a_second(tmp_path: Path) -> None:
    """Also where a library holds the main thread: here a lock that is never released."""
    code = (
        "import signal, sys, threading\n"
        # what is started in the background ignores it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tvm_winograd.cli import env, main\n"
        "env.run = lambda args: (print('begun', flush=True), stuck())\n"
        "def stuck():\n"
        "    import ctypes; ctypes.CDLL(None).sleep(60)\n"
        "sys.argv = ['tvm-winograd', 'env']\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    start = time.perf_counter()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and time.perf_counter() - start < 3
    assert err == "tvm-winograd env: interrupted; nothing was changed\n"
