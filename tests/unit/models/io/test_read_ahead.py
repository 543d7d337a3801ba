import pytest
import torch
from safetensors.torch import save_file

from fairbits.core.errors import InputError
from fairbits.models import checkpoint, streaming_model
from fairbits.models.io.safetensors_files import read_header, read_tensor
from fairbits.models.streaming_model import ReadAhead


@pytest.fixture
def llama(make):
    return make("llama")


@pytest.fixture
def parts(llama):
    return [list(block.weights) for block in llama.architecture.blocks]


class Threads:
    """What reads ahead on a GPU, with memory that is not pinned, and the names that were read."""

    def __init__(self, monkeypatch):
        self.names = []
        monkeypatch.setattr(streaming_model, "is_gpu", lambda _device: True)
        monkeypatch.setattr(checkpoint, "read_tensor", self.read)

    def read(self, info, *, pinned):
        assert pinned
        self.names.append(info.name)
        return read_tensor(info)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("turn", [1, -1])
def test_every_tensor_is_that_of_the_file(llama, parts, monkeypatch, gpu, turn):
    threads = Threads(monkeypatch) if gpu else None
    outside = next(name for name in llama.tensors if "embed" in name)
    with ReadAhead(llama, "cpu", parts) as reader:
        for names in parts[::turn]:
            for name in (*names, outside):
                assert torch.equal(reader.read(name), llama.read(name))
            assert reader.read(names[0]) is reader.read(names[0]) or not gpu
    if threads is not None and turn == 1:
        assert sorted(threads.names) == sorted(name for names in parts for name in names)  # each once


def test_the_next_block_is_read_while_this_one_is_used(llama, parts, monkeypatch):
    threads = Threads(monkeypatch)
    with ReadAhead(llama, "cpu", parts) as reader:
        reader.read(parts[0][0])
        for future in reader._reading[1].values():
            future.result()
        assert set(parts[1]) <= set(threads.names)


def test_a_file_that_is_gone_is_reported_where_the_tensor_is_needed(llama, parts, monkeypatch):
    Threads(monkeypatch)
    with ReadAhead(llama, "cpu", parts) as reader:
        reader.read(parts[0][0])
        reader._reading.clear()
        for path in llama.directory.glob("*.safetensors"):
            path.rename(path.with_suffix(".gone"))
        with pytest.raises(InputError, match="can no longer be read"):
            reader.read(parts[1][0])
        for path in llama.directory.glob("*.gone"):
            path.rename(path.with_suffix(".safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.int64])
def test_tensors_of_all_types_are_read(tmp_path, dtype):
    tensors = {"a": torch.arange(12).reshape(3, 4).to(dtype), "none": torch.empty(0, 4, dtype=dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    for name, info in read_header(tmp_path / "model.safetensors").items():
        assert torch.equal(read_tensor(info), tensors[name])


def test_a_file_that_became_shorter_is_reported(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(100)}, file)
    info = read_header(file)["a"]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="shorter than when it was opened"):
        read_tensor(info)
