"""The content cache: what is read back is what was written, or nothing."""

import hashlib
from pathlib import Path

import pytest

from mlsys_gpu import cache


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MLSYS_GPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_entries_come_back(folder):
    assert cache.read("kind", "name") is None
    cache.write("kind", "name", b"first")
    cache.write("kind", "name", b"second")
    cache.write("other", "name", b"")
    assert cache.read("kind", "name") == b"second"
    assert cache.read("other", "name") == b""
    assert [p.name for p in (folder / "kind").iterdir()] == ["name"]  # no temporary file is left


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + b"!", lambda b: b""])
def test_damaged_entries_are_made_again(folder, damage):
    cache.write("kind", "name", b"what was made")
    path = folder / "kind" / "name"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("kind", "name") is None


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("MLSYS_GPU_CACHE", str(in_the_way))
    cache.write("kind", "name", b"data")
    assert cache.read("kind", "name") is None


def test_keys_tell_where_parts_end():
    assert cache.key("ab", "c") != cache.key("a", "bc")
    assert cache.key("a") == cache.key(b"a")
    assert cache.key("a") == hashlib.sha256((1).to_bytes(8, "little") + b"a").hexdigest()


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv("MLSYS_GPU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.directory() == Path("/somewhere/mlsys-gpu")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.directory() == Path.home() / ".cache" / "mlsys-gpu"
