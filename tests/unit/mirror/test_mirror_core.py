"""Sources, manifests, ranges and what is refused: no disk, no network."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events import Event
from libs.events.commands import CancelImport, ImportVersion, RemoveVersion, RestartModel
from libs.events.leadership import MirrorElected
from libs.events.library import (
    ImportEnded,
    ImportStarted,
    LibraryVersion,
    MirrorServing,
    VersionAdded,
    VersionRemoved,
    WeightFile,
)
from libs.events.model import Adapter, ModelDefined, ModelRemoved, ModelSpec
from libs.events.refusal import Refused
from services.mirror.core.manifest import in_order, version_of
from services.mirror.core.ranges import ByteRange, Unsatisfiable, byte_range, matches_any, still_the_same
from services.mirror.core.source import (
    PackageSource,
    PathSource,
    is_licence_file,
    left_out,
    licence_in,
    parse_source,
    path_problem,
)
from services.mirror.core.state import State, decide, entries, evolve, retirements
from services.mirror.core.unsafe import HEAD_BYTES, unsafe_content, unsafe_name

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


# sources


def test_sources() -> None:
    assert parse_source("path:/models/qwen") == PathSource("/models/qwen")
    assert parse_source("package:some_model.gguf") == PackageSource("some_model.gguf")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path:models", "absolute path"),
        ("path:", "absolute path"),
        ("package:os; import x", "name of a Python module"),
        ("package:.x", "name of a Python module"),
        ("hf:Qwen/Qwen3-8B", "is not a source"),
        ("", "is not a source"),
    ],
)
def test_what_is_no_source_is_refused_by_its_field(text: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        parse_source(text)
    assert caught.value.problems[0].path == "source"


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "a//b", "", ".", "a\\b", "a\nb", "x\x7f", "a\udc80", "./a"])
def test_paths_that_cannot_stand_in_a_manifest(path: str) -> None:
    assert path_problem(path) is not None


@pytest.mark.parametrize("path", ["model.gguf", "a/b.safetensors", "tokenizer.json", "größe.txt", "a b"])
def test_paths_that_can(path: str) -> None:
    assert path_problem(path) is None


def test_what_is_left_out_of_a_folder() -> None:
    assert left_out(".git/config")
    assert left_out("a/.cache/x")
    assert left_out("modeling_x.py")
    assert left_out("__pycache__/x.pyc")
    assert not left_out("model.safetensors")


def test_licences() -> None:
    assert licence_in("---\nlicense: apache-2.0\ntags:\n- x\n---\n# Model") == "apache-2.0"
    assert licence_in('---\ntags: []\nlicense: "gemma"\n---\n') == "gemma"
    assert licence_in("# Model\nlicense: mit") == ""
    assert licence_in("---\nnever closed\nlicense: mit") == ""
    assert all(
        is_licence_file(name) for name in ("LICENSE", "LICENCE.txt", "GEMMA_TERMS.html", "NOTICE.md", "README.md")
    )
    assert not any(is_licence_file(name) for name in ("SHA256SUMS", "model.gguf", "determs.txt"))


# what is unsafe


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.PT", "a/b.pkl", "w.ckpt", "x.joblib", "x.npz", "m.nemo"])
def test_unsafe_names(name: str) -> None:
    assert name in (unsafe_name(name) or "")


def test_safe_names() -> None:
    for name in ("model.safetensors", "m.gguf", "tokenizer.model", "config.json", "merges.txt", "README.md"):
        assert unsafe_name(name) is None


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_seen_whatever_its_name_and_protocol(protocol: int) -> None:
    assert "pickle" in (unsafe_content("model.safetensors", pickle.dumps(Evil(), protocol)) or "")
    long = pickle.dumps([Evil(), list(range(100_000))], protocol)
    assert "pickle" in (unsafe_content("model.gguf", long[:HEAD_BYTES]) or "")


def test_archives_are_seen() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("data.pkl", b"x")
    assert "zip" in (unsafe_content("model.safetensors", archive.getvalue()) or "")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as out:
        out.addfile(tarfile.TarInfo("x"))
    assert "tar" in (unsafe_content("model.gguf", archive.getvalue()) or "")
    assert unsafe_content("model.gguf", b"\x1f\x8b\x08\x00") is not None


def safetensors(header_bytes: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return header_bytes.to_bytes(8, "little") + header.ljust(header_bytes) + b"\0" * 4


@given(st.integers(80, 5000).map(lambda n: n // 8 * 8))
def test_safetensors_are_not_taken_for_pickles_whatever_their_header_length(length: int) -> None:
    """Given a header of 640 bytes, the file begins with 80 02, as a pickle does."""
    assert unsafe_content("m.safetensors", safetensors(length)[:HEAD_BYTES]) is None


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF\x03\0\0\0",
        b"{}",
        b'{"a": 1}',
        b"",
        b".gitattributes",
        b"cat\ndog\n.",
        b"# Model\n\nText.",
        b"I am\n",
        b"a b\nc d\n",
    ],
)
def test_plain_files_are_taken(content: bytes) -> None:
    assert unsafe_content("x", content) is None


@given(st.binary(max_size=300))
def test_no_content_breaks_the_look_at_it(content: bytes) -> None:
    unsafe_content("x", content)


# manifests


def file(path: str, content: str = "", size: int = 1) -> WeightFile:
    return WeightFile(path=path, size_bytes=size, sha256=(content or path).encode().hex().ljust(64, "0"))


def test_the_same_files_give_the_same_version_in_any_order() -> None:
    a, b = file("a"), file("b")
    assert version_of([a, b]) == version_of([b, a])
    assert in_order([b, a]) == (a, b)
    assert len(version_of([a])) == 12
    assert version_of([a]) != version_of([b])
    # Pinned: a version's name must not depend on the release that made it.
    assert version_of([WeightFile(path="m.gguf", size_bytes=3, sha256="ab" * 32)]) == "f16f8ec32439"


# ranges


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None),
        ("bytes=0-", ByteRange(0, 100)),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=10-19", ByteRange(10, 10)),
        ("bytes=90-1000", ByteRange(90, 10)),
        ("bytes=-5", ByteRange(95, 5)),
        ("bytes=-500", ByteRange(0, 100)),
        ("Bytes = 3 - 4", ByteRange(3, 2)),
        ("bytes=0-1,5-6", None),
        ("bytes=5-3", None),
        ("bytes=-", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes=" + "9" * 30 + "-", None),
    ],
)
def test_ranges(header: str | None, part: ByteRange | None) -> None:
    assert byte_range(header, 100) == part


@pytest.mark.parametrize(("header", "size"), [("bytes=100-", 100), ("bytes=-0", 100), ("bytes=0-", 0), ("bytes=-5", 0)])
def test_ranges_outside_the_file(header: str, size: int) -> None:
    with pytest.raises(Unsatisfiable):
        byte_range(header, size)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_what_slicing_gives(size: int, start: int, end: int) -> None:
    content = bytes(range(size))
    try:
        part = byte_range(f"bytes={start}-{end}", size)
    except Unsatisfiable:
        assert start >= size
        return
    if part is None:
        assert end < start
    else:
        assert content[part.start : part.start + part.length] == content[start : end + 1]


def test_conditions() -> None:
    assert matches_any('"a", W/"b"', '"b"')
    assert matches_any("*", '"b"')
    assert not matches_any(None, '"b"')
    assert not matches_any('"a"', '"b"')
    assert still_the_same(None, '"a"')
    assert still_the_same('"a"', '"a"')
    assert not still_the_same('W/"a"', '"a"')
    assert not still_the_same("Sun, 29 Nov 2026 12:00:00 GMT", '"a"')


# the library


def version(name: str, version: str, *files: WeightFile) -> VersionAdded:
    return VersionAdded(
        at=NOW,
        name=name,
        version=LibraryVersion(name=name, version=version, files=files, source="path:/x", licence="mit"),
    )


def library(*events: object) -> State:
    state = State()
    for position, event in enumerate(events, 1):
        state = evolve(state, event, position)  # type: ignore[arg-type]
    return state


def test_an_import_is_checked_before_anything_is_read() -> None:
    begun = decide(State(), ImportVersion(name="m", source="path:/x"), "c", NOW)
    assert begun == ImportStarted(at=NOW, name="m", source="path:/x")
    with pytest.raises(Refused, match="is not a name"):
        decide(State(), ImportVersion(name="My Model", source="path:/x"), "c", NOW)
    with pytest.raises(Refused, match="is not a source"):
        decide(State(), ImportVersion(name="m", source="/x"), "c", NOW)
    with pytest.raises(Refused, match="takes no command"):
        decide(State(), RestartModel(model="m"), "c", NOW)


def test_an_import_goes_on_until_the_log_says_how_it_ended() -> None:
    begun = ImportStarted(at=NOW, name="m", source="path:/x")
    state = library(begun, ImportStarted(at=NOW, name="n", source="path:/y"))
    assert [(one.name, one.started) for one in state.imports.values()] == [("m", 1), ("n", 2)]
    assert decide(state, ImportVersion(name="m", source="path:/x"), "c", NOW) is None
    with pytest.raises(Refused, match=r"m is being imported from path:/x since 2026-.* `llmgw library cancel m`"):
        decide(state, ImportVersion(name="m", source="path:/other"), "c", NOW)
    given_up = decide(state, CancelImport(name="n", reason="too large"), "c", NOW)
    assert given_up == ImportEnded(at=NOW, name="n", started=2, problem="cancelled: too large")
    state = evolve(state, given_up, 3)
    added = msgspec.structs.replace(version("m", "v1", file("a")), started=1)
    assert evolve(state, added, 4).imports == {}
    with pytest.raises(Refused, match="no import of 'n' is under way"):
        decide(state, CancelImport(name="n"), "c", NOW)


def test_a_mirror_that_says_nothing_for_a_week_is_retired_and_the_rest_stay() -> None:
    """Ten years in which one mirror says every day that it serves and others come and go."""
    state = State()
    position = 0

    def say(event: Event) -> None:
        nonlocal state, position
        position += 1
        state = evolve(state, event, position)

    now = NOW
    say(MirrorElected(at=now, instance="steady"))
    assert retirements(state, now) == []
    sizes = []
    for day in range(3650):
        now = NOW + timedelta(days=day)
        say(MirrorServing(at=now, mirror_id="steady", url="http://a"))
        if day % 30 == 0:
            say(MirrorServing(at=now, mirror_id=f"m-{day}", url="http://b"))
        for cause, event in retirements(state, now):
            assert cause.startswith("mirror:retired:m-")
            say(event)
        sizes.append(len(state.mirrors))
    assert "steady" in state.mirrors
    assert max(sizes) == 2
    # After a time in which all were away, each has a day to say that it is there.
    now += timedelta(days=60)
    say(MirrorElected(at=now, instance="steady"))
    assert retirements(state, now + timedelta(hours=1)) == []
    assert len(retirements(state, now + timedelta(days=2))) == 1


def test_entries_show_every_version_the_newest_and_where_they_are() -> None:
    state = library(
        version("m", "v1", file("a")),
        version("m", "v2", file("b")),
        MirrorServing(at=NOW, mirror_id="m-2", url="http://b"),
        MirrorServing(at=NOW, mirror_id="m-1", url="http://a"),
        MirrorServing(at=NOW, mirror_id="m-2", url="http://c"),
    )
    entry = entries(state)["m"]
    assert entry.versions == {"v1": (file("a"),), "v2": (file("b"),)}
    assert (entry.latest, entry.mirrors, entry.licence) == ("v2", ("http://a", "http://c"), "mit")


def test_removing_frees_what_nothing_else_has_and_says_how_much() -> None:
    """Given two versions sharing a file, when one is removed, then the shared one stays and only the rest may go."""
    shared = file("shared", size=100)
    state = library(version("m", "v1", file("own", size=7), shared), version("n", "v9", shared))
    event = decide(state, RemoveVersion(name="m", version="v1"), "c", NOW)
    assert event == VersionRemoved(at=NOW, name="m", version="v1", freed_bytes=7, kept_bytes=100)
    state = evolve(state, event, 3)
    assert state.former == {file("own").sha256}
    assert "m" not in entries(state)
    again = evolve(state, version("m", "v1", file("own", size=7)), 4)
    assert again.former == set()


def test_removing_what_is_not_there_names_what_is() -> None:
    state = library(version("m", "v1", file("a")))
    with pytest.raises(Refused, match="it has: m"):
        decide(state, RemoveVersion(name="x", version="v1"), "c", NOW)
    with pytest.raises(Refused, match="it has: v1"):
        decide(state, RemoveVersion(name="m", version="v2"), "c", NOW)


def test_what_a_model_runs_on_stays() -> None:
    def model(source: str) -> ModelDefined:
        return ModelDefined(
            at=NOW, model="chat", fingerprint="f", spec=ModelSpec(name="chat", source=source, profiles=())
        )

    state = library(version("m", "v1", file("a")), version("m", "v2", file("b")), model("library:m@v1"))
    with pytest.raises(Refused, match="chat runs on it"):
        decide(state, RemoveVersion(name="m", version="v1"), "c", NOW)
    state = evolve(state, model("library:m"), 4)
    removed = decide(state, RemoveVersion(name="m", version="v1"), "c", NOW)
    assert removed is not None
    state = evolve(state, removed, 5)
    with pytest.raises(Refused, match="chat runs on it"):
        decide(state, RemoveVersion(name="m", version="v2"), "c", NOW)
    state = evolve(state, ModelRemoved(at=NOW, model="chat"), 6)
    assert decide(state, RemoveVersion(name="m", version="v2"), "c", NOW) is not None


steps = st.lists(
    st.tuples(st.sampled_from("mno"), st.sampled_from("123"), st.frozensets(st.sampled_from("abcd"), min_size=1))
)


@given(steps, st.randoms(use_true_random=False))
def test_what_may_be_deleted_is_never_what_a_version_has(
    added: list[tuple[str, str, frozenset[str]]], random: object
) -> None:
    state = State()
    for position, (name, v, files) in enumerate(added, 1):
        if random.random() < 0.5:  # type: ignore[attr-defined]
            evolve(state, version(name, v, *(file(f) for f in sorted(files))), position)
        elif v in state.versions.get(name, {}):
            event = decide(state, RemoveVersion(name=name, version=v), "c", NOW)
            assert event is not None
            evolve(state, event, position)
        assert not state.former & state.files().keys()


def test_what_a_fine_tuning_is_made_of_stays_too() -> None:
    spec = ModelSpec(name="chat", profiles=(), loras=(Adapter(name="law", source="library:law"),))
    defined = ModelDefined(at=NOW, model="chat", fingerprint="f", spec=spec)
    state = library(version("law", "v1", file("a")), defined)
    with pytest.raises(Refused, match="chat runs on it"):
        decide(state, RemoveVersion(name="law", version="v1"), "c", NOW)
