import contextlib
import io
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import ROOT, run
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Tensor, Unknown

pytestmark = pytest.mark.program

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool", "float8_e4m3fn")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_are_those_that_torch_reads(dtype: str, tmp_path: Path) -> None:
    import torch

    tensor = (torch.arange(24) % 2).to(getattr(torch, dtype)).reshape(2, 3, 4)
    torch.save({"one": [tensor, tensor[1]], "parameter": 3.5}, tmp_path / "a.pt")
    archive = Archive(tmp_path / "a.pt")
    whole, part = archive.value["one"]
    assert (whole.shape, part.shape, whole.dtype) == ((2, 3, 4), (3, 4), dtype)
    assert archive.read(whole).tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    assert archive.read(part).tobytes() == tensor[1].view(torch.uint8).numpy().tobytes()
    assert archive.value["parameter"] == 3.5
    assert archive.problem(complete=True) is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32"])
def test_one_number_is_read_as_torch_reads_it(dtype: str, tmp_path: Path) -> None:
    import torch

    tensor = torch.tensor([1, 3, 5]).to(getattr(torch, dtype))
    torch.save({"all": tensor, "last": tensor[2:], "none": tensor[3:]}, tmp_path / "a.pt")
    archive = Archive(tmp_path / "a.pt")
    assert (archive.first(archive.value["all"]), archive.first(archive.value["last"])) == (1, 5)
    with pytest.raises(BadArchive, match="it has no number"):
        archive.first(archive.value["none"])


@pytest.mark.job
def test_a_checkpoint_is_summarized_where_neither_torch_nor_numpy_is_installed(saved: Path) -> None:
    hidden = "import sys; sys.modules.update(torch=None, numpy=None); from pathlib import Path"
    used = (
        "from zlaunch.checkpoint.find import checkpoint_at; from zlaunch.checkpoint.summary import summarize"
    )
    said = "print([summarize(checkpoint_at(Path(one))).problems for one in sys.argv[1:]])"
    names = [saved / name for name in ("zero2", "zero3", "accelerate")]
    result = run(sys.executable, "-c", f"{hidden}; {used}; {said}", *names, cwd=ROOT)
    assert result.out == "[(), (), ()]\n", result.err


def test_a_tensor_that_is_stored_in_another_order_is_read_in_its_own(tmp_path: Path) -> None:
    import torch

    turned = torch.arange(6, dtype=torch.float32).reshape(2, 3).t()
    images = torch.arange(48, dtype=torch.float32).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last)
    torch.save({"turned": turned, "images": images, "every": torch.arange(6)[::2]}, tmp_path / "a.pt")
    archive = Archive(tmp_path / "a.pt")
    assert archive.read(archive.value["turned"]).tolist() == turned.flatten().tolist()
    assert archive.read(archive.value["images"]).tolist() == images.flatten().tolist()
    assert archive.read(archive.value["every"]).tolist() == [0, 2, 4]


class Command:
    """What an attacker would put into a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_command_in_a_pickle_is_not_executed(tmp_path: Path) -> None:
    import torch

    torch.save({"module": Command(tmp_path / "executed")}, tmp_path / "a.pt")
    found = Archive(tmp_path / "a.pt").value["module"]
    assert isinstance(found, Unknown)
    assert found.name in ("posix.mkdir", "os.mkdir")
    assert not (tmp_path / "executed").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "executed").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    import torch

    file = tmp_path_factory.mktemp("archive") / "a.pt"
    torch.save({"module": {"a": torch.ones(5, 7), "b": torch.zeros(3)}, "step": 7}, file)
    return file.read_bytes()


@given(data=st.data())
def test_damage_is_found_or_harmless_and_never_raises_anything_else(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(whole)) | st.just(len(whole))) :]
    file = tmp_path_factory.getbasetemp() / "damaged.pt"
    file.write_bytes(damaged)
    with contextlib.suppress(BadArchive):
        Archive(file).problem(complete=True)


@given(pickled=st.binary(max_size=60))
def test_a_pickle_of_any_bytes_is_read_or_refused(
    pickled: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled)
    with contextlib.suppress(BadArchive):
        Archive(file).problem()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + bytes(200), "its end is missing"),
        (pickle.dumps({"a": 1}), "not a file of `torch.save`"),
    ],
    ids=["empty", "cut", "old format"],
)
def test_a_file_that_is_no_archive_is_named_as_what_it_is(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(BadArchive, match=said):
        Archive(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("signature", "place", "value"),
    [(b"PK\1\2", 8, 1), (b"PK\1\2", 10, 12), (b"PK\1\2", 10, 14), (b"PK\3\4", 30, 0xAC)],
    ids=["encrypted", "bzip2", "lzma", "name"],
)
def test_a_wrong_byte_in_the_description_of_an_entry_is_damage(
    signature: bytes, place: int, value: int, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("é/data.pkl", pickle.dumps({"step": 3}))
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(signature) + place] = value
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(BadArchive):
        assert Archive(tmp_path / "a.pt").value


def test_another_zip_file_is_no_checkpoint(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "hello")
    (tmp_path / "a.pt").write_bytes(buffer.getvalue())
    with pytest.raises(BadArchive, match="not one of"):
        Archive(tmp_path / "a.pt")


def test_a_tensor_that_does_not_fit_its_numbers_is_found(tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(100)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content[:40] if "/data/" in name else content)
    assert "longer than its numbers" in str(Archive(tmp_path / "b.pt").problem())
    tensor = Archive(tmp_path / "b.pt").value["a"]
    assert isinstance(tensor, Tensor)
