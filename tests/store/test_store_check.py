from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from banyankv.errors import ConfigError, TierUnavailable
from banyankv.tiers.store import check as store_check
from banyankv.tiers.store.check import Content, StoreReport, inspect
from banyankv.tiers.store.lmdb_pages import Damaged
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.objects import Header, encode

MIB = 1 << 20


def an_object(number: int, component: str = "full", model: bytes = b"A" * 16) -> bytes:
    header = Header(component, model, bytes([number]) * 32, 0, 256, 16, 1000 + number)
    return encode(header, bytes([number]) * 500)


async def fill(path: Path, items: list[tuple[bytes, bytes]]) -> None:
    store = await LmdbStore.open(path, 64 * MIB)
    assert all(await store.put(items))
    await store.aclose()


async def test_a_sound_store_is_counted_by_model_and_component(tmp_path: Path) -> None:
    kinds = [("full", b"A" * 16), ("swa", b"A" * 16), ("full", b"B" * 16), ("full", b"B" * 16)]
    objects = [an_object(n, *kind) for n, kind in enumerate(kinds)]
    await fill(tmp_path, [(bytes([n]) * 32, data) for n, data in enumerate(objects)])
    report = inspect(tmp_path)
    assert report.sound
    assert report.readable
    assert not report.unclean
    assert report.objects == 4
    assert report.bytes == sum(map(len, objects))
    assert report.contents == (
        Content("41" * 16, "full", 1, len(objects[0])),
        Content("41" * 16, "swa", 1, len(objects[1])),
        Content("42" * 16, "full", 2, len(objects[2]) * 2),
    )
    assert (report.oldest, report.newest) == (1000, 1003)
    assert report.file_bytes >= report.bytes
    assert msgspec.json.decode(msgspec.json.encode(report), type=StoreReport) == report


async def test_bad_objects_are_named_and_the_list_is_bounded(tmp_path: Path) -> None:
    good = an_object(1)
    torn = [(n.to_bytes(32, "big"), good[:-1] + b"X") for n in range(1500)]
    await fill(tmp_path, [(b"a" * 32, good), (b"b" * 32, good[:50]), *torn])
    report = inspect(tmp_path)
    assert report.readable
    assert not report.sound
    assert report.objects == 1502
    assert report.bad_objects == 1501
    assert len(report.bad) == 100
    assert report.bad[0] == store_check.BadEntry(
        "00" * 32, "checksum", "checksum does not match header and body"
    )
    assert [content.objects for content in report.contents] == [1]


async def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    await fill(tmp_path, [])
    report = inspect(tmp_path)
    assert report.sound
    assert (report.objects, report.oldest, report.contents) == (0, 0, ())


async def test_a_store_in_use_can_be_inspected(tmp_path: Path) -> None:
    store = await LmdbStore.open(tmp_path, 64 * MIB)
    await store.put([(b"a" * 32, an_object(1))])
    report = inspect(tmp_path)
    assert report.sound
    assert report.unclean
    assert report.objects == 1
    assert await store.put([(b"b" * 32, an_object(2))]) == [True]
    await store.aclose()


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store"):
        inspect(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_reading_that_takes_too_long_is_reported(tmp_path: Path) -> None:
    await fill(tmp_path, [])
    report = inspect(tmp_path, timeout=0.0)
    assert not report.readable
    assert "not over" in report.problem


async def test_a_reader_that_cannot_run_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path, [])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TierUnavailable, match="ended with code 1"):
        inspect(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(TierUnavailable, match="cannot start"):
        inspect(tmp_path)


async def test_a_store_that_is_opened_while_it_is_checked_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that came, and is there or has gone, makes pages look as if they contradicted."""
    await fill(tmp_path, [(b"a" * 32, an_object(1))])
    check_pages = store_check.check_pages
    for stays in (False, True):
        checks = 0

        def meanwhile(file: int, name: Path, stays: bool = stays) -> None:
            nonlocal checks
            checks += 1
            check_pages(file, name)
            if checks == 1:
                os.utime(name)  # as a write does
                (tmp_path / "unclean").touch() if stays else None
                raise Damaged("written meanwhile")

        monkeypatch.setattr(store_check, "check_pages", meanwhile)
        report = store_check._walk(tmp_path)
        assert (report.problem, report.objects, report.unclean) == ("", 1, stays)
        assert checks == (1 if stays else 2)


async def test_what_the_system_refuses_the_reader_is_no_damage_and_no_fault_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path, [])
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef pread(*_): raise OSError(24, 'Too many open files')\nos.pread = pread\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TierUnavailable, match="Too many open files"):
        inspect(tmp_path)


def test_the_module_is_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", store_check.__name__, str(tmp_path)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 3
