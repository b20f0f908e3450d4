"""Tensors come back bit for bit, whatever their dtype, shape or strides, and share memory with nobody."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save

from terracekv.client.tensor_format import DTYPE_OF
from terracekv.client.tensors import (
    TensorPayloadInvalid,
    decode_tensors,
    encode_tensors,
    get_tensors,
    get_tensors_async,
    parse_tensors,
    put_tensors,
    put_tensors_async,
)
from terracekv.client.values import MISS, Hit, Miss

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

QUANTISED = {torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4}
ALL_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)} - QUANTISED, key=str)
READ_BY_SAFETENSORS = [
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64),
    *(torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
]


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype.itemsize == 1:
        plain = plain.view(torch.uint8)
    return plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_bits(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Every bit random: NaNs with payloads, negative zeros, infinities and subnormals among them."""
    size_bytes = math.prod(shape) * dtype.itemsize
    data = bytearray(random.Random(seed).randbytes(size_bytes))
    if dtype == torch.bool:
        data = bytearray(byte & 1 for byte in data)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert raw(one) == raw(other)


def round_trip(tensor: torch.Tensor) -> torch.Tensor:
    back = decode_tensors(encode_tensors({"t": tensor}))["t"]
    assert_same(back, tensor)
    return back


def test_every_dtype_of_this_build_can_be_stored() -> None:
    assert set(ALL_DTYPES) == set(DTYPE_OF.values())


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (0,), (3, 0, 5), (1,), (2, 3, 4, 6)], ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    round_trip(random_bits(dtype, *shape))


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d != torch.float4_e2m1fn_x2], ids=str)
def test_scalars_keep_their_shape(dtype: torch.dtype) -> None:
    assert round_trip(random_bits(dtype, 1).reshape(())).shape == ()


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_transposed_tensors_keep_their_values(dtype: torch.dtype) -> None:
    tensor = random_bits(dtype, 6, 4).t()
    assert round_trip(tensor).is_contiguous()


def test_special_values_keep_their_bits() -> None:
    bits = torch.tensor([0x7FC00001, -0x3FFFFF, 0x7F800001, -(2**31), 0x7F800000, 1], dtype=torch.int32)
    floats = bits.view(torch.float32)
    assert round_trip(floats).view(torch.int32).tolist() == bits.tolist()
    assert math.copysign(1, round_trip(torch.tensor(-0.0)).item()) == -1


def test_size_is_that_of_the_data_and_a_header() -> None:
    payload = encode_tensors({"t": torch.zeros(1_000, dtype=torch.bfloat16)})
    assert len(payload) == 2_000 + 128


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[2:, 1:],
        lambda t: t[0].expand(5, -1),
        lambda t: t.as_strided((3, 3), (2, 1)),
        lambda t: t.flip(0),
        lambda t: t.to(memory_format=torch.contiguous_format)[1],
        lambda t: t.reshape(1, 1, 4, 6).to(memory_format=torch.channels_last),
        lambda t: t[:, :0],
        lambda t: t.requires_grad_() * 1,
        lambda t: torch.nn.Parameter(t),
        lambda t: torch.complex(t, t).conj(),
        lambda t: torch.complex(t, t).conj().imag,
        lambda t: t.reshape([1] * 68 + [4, 6]),
        lambda t: t.reshape([1] * 68 + [4, 6]).transpose(-1, -2),
        lambda t: t.reshape([4] + [1] * 299 + [6]),
    ],
)
def test_views_are_stored_by_value(view: Any) -> None:
    back = round_trip(view(torch.arange(24.0).reshape(4, 6)))
    assert not back.requires_grad
    assert back.is_leaf


def test_tied_tensors_are_written_each_in_full_and_come_back_apart() -> None:
    embedding = torch.arange(6.0)
    back = decode_tensors(encode_tensors({"embedding": embedding, "head": embedding, "part": embedding[2:]}))
    back["embedding"].add_(1)
    assert back["head"].tolist() == embedding.tolist()
    assert back["part"].tolist() == embedding[2:].tolist()
    assert len({tensor.untyped_storage().data_ptr() for tensor in back.values()}) == 3


def test_changing_a_tensor_after_encoding_does_not_change_the_payload() -> None:
    tensor = torch.arange(1_000.0)
    payload = encode_tensors({"t": tensor})
    tensor.zero_()
    assert decode_tensors(payload)["t"].tolist() == list(range(1_000))


def test_tensors_read_from_a_writable_buffer_do_not_change_with_it() -> None:
    buffer = bytearray(encode_tensors({"t": torch.arange(100)}))
    back = decode_tensors(buffer)["t"]
    buffer[-800:] = bytes(800)
    assert back.tolist() == list(range(100))


def test_tensors_read_can_be_written_without_changing_what_the_next_reader_gets() -> None:
    payload = encode_tensors({"t": torch.ones(8)})
    decode_tensors(payload)["t"].add_(1)
    assert decode_tensors(payload)["t"].tolist() == [1] * 8


@pytest.mark.parametrize("name_length", range(1, 65))
def test_data_starts_at_a_multiple_of_64_bytes_behind_headers_of_any_length(name_length: int) -> None:
    tensors = {"n" * name_length: random_bits(torch.complex128, 3), "i": random_bits(torch.int64, 5)}
    payload = encode_tensors(tensors)
    assert (8 + int.from_bytes(payload[:8], "little")) % 64 == 0
    shifted = memoryview(b"x" * name_length + payload)[name_length:]  # data at an odd address
    for name, tensor in decode_tensors(shifted).items():
        assert_same(tensor, tensors[name])


def test_each_tensor_lies_aligned_to_its_items() -> None:
    tensors = {str(dtype): random_bits(dtype, 3) for dtype in ALL_DTYPES}
    payload = encode_tensors(tensors)
    base = np.frombuffer(payload, np.uint8).ctypes.data
    for encoded in parse_tensors(payload).values():
        offset = np.frombuffer(encoded.data, np.uint8).ctypes.data - base
        assert offset % encoded.dtype.itemsize == 0
    back = decode_tensors(payload)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_same(back[name], tensor)


def test_equal_mappings_give_equal_bytes_in_any_order() -> None:
    one = {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64), "c": torch.ones(5)}
    assert encode_tensors(one) == encode_tensors(dict(reversed(one.items())))


@pytest.mark.parametrize(
    "name", ["", "a.b/c d", "\x00\r\n", 'quo"te\\', "\u00e9", "e\u0301", "\U0001f600", "n" * 10_000]
)
def test_odd_names_come_back(name: str) -> None:
    assert list(decode_tensors(encode_tensors({name: torch.ones(1)}))) == [name]


def test_no_tensors_at_all_are_a_payload_too() -> None:
    assert decode_tensors(encode_tensors({})) == {}


@pytest.mark.parametrize("dtype", READ_BY_SAFETENSORS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)], ids=str)
def test_the_safetensors_library_reads_ours_and_we_read_its(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = {"one": random_bits(dtype, *shape, seed=1), "two": random_bits(dtype, 9, seed=2)}
    for back in (safetensors_load(encode_tensors(tensors)), decode_tensors(safetensors_save(tensors))):
        for name, tensor in tensors.items():
            assert_same(back[name], tensor)


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.float4_e2m1fn_x2], ids=str)
def test_dtypes_that_safetensors_only_writes_are_read_from_it(dtype: torch.dtype) -> None:
    tensor = random_bits(dtype, 3, 8)
    assert_same(decode_tensors(safetensors_save({"t": tensor}))["t"], tensor)


def test_metadata_of_safetensors_files_is_passed_over() -> None:
    assert list(decode_tensors(safetensors_save({"t": torch.ones(2)}, metadata={"format": "pt"}))) == ["t"]


def test_decoding_to_a_device_puts_tensors_there() -> None:
    assert decode_tensors(encode_tensors({"t": torch.ones(2)}), device="meta")["t"].device.type == "meta"


class Wrapper(torch.Tensor):
    """A subclass that keeps its data in another tensor, as quantisation libraries do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> Wrapper:
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors_are_refused_by_name() -> None:
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    with pytest.raises(TypeError, match=r"'weights': .* quantised tensor \(torch.quint8\)"):
        encode_tensors({"good": torch.ones(2), "weights": quantised})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "layout torch.sparse_csr"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
        (lambda: torch.ones(3, device="meta"), "a meta tensor"),
        (lambda: Wrapper(torch.ones(3)), "the wrapper subclass Wrapper"),
        (lambda: np.ones(3), "given: ndarray"),
        (lambda: [1.0], "given: list"),
        (lambda: torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(()), "at least one dimension"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        encode_tensors({"t": make()})


def test_unknown_dtype_is_refused_at_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("terracekv.client.tensors", fromlist=["x"]).NAME_OF, torch.float64)
    with pytest.raises(TypeError, match=r"'t': dtype torch.float64 is not one that can be stored"):
        encode_tensors({"t": torch.ones(1, dtype=torch.float64)})


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_the_format_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a tensor"):
        encode_tensors({name: torch.ones(1)})


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(TypeError, match="a str; given: int"):
        encode_tensors({3: torch.ones(1)})  # type: ignore[dict-item]


def payload(header: str | bytes, data: bytes = b"", size: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(dtype: str = "U8", shape: str = "[4]", offsets: str = "[0,4]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def one(**fields: str) -> bytes:
    return payload(f'{{"t":{entry(**fields)}}}', b"1234")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"1234567",
        bytes(8),
        payload("{}", size=3),
        payload("{}", size=2**63),
        payload("{}", b"x"),
        payload(" {}"),
        payload("[]"),
        payload("{"),
        payload("{'a':1}"),
        payload(b'{"\xff":1}'),
        payload("[" * 100_000),
        payload('{"a":' * 100_000 + "1" + "}" * 100_000),
        payload('{"t":1}'),
        payload('{"t":{}}'),
        payload('{"__metadata__":1}'),
        payload('{"__metadata__":{"a":1}}'),
        payload(f'{{"t":{entry()},"t":{entry()}}}', b"1234"),
        payload(f'{{"t":{entry()},"u":{entry()}}}', b"1234"),
        payload(f'{{"t":{entry()},"u":{entry(offsets="[5,9]")}}}', b"123456789"),
        payload(f'{{"t":{entry()},"u":{entry(offsets="[3,7]")}}}', b"1234567"),
        payload(f'{{"t":{entry(offsets="[1,5]")}}}', b"12345"),
        payload('{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"dtype":"I8"}}', b"1234"),
        payload('{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":1}}', b"1234"),
        payload(f'{{"t":{entry()}}}', b"123"),
        payload(f'{{"t":{entry()}}}', b"12345"),
        one(dtype="U9"),
        one(dtype="torch.uint8"),
        one(dtype="object"),
        one(shape="4"),
        one(shape="[5]"),
        one(shape="[-4]"),
        one(shape="[-1,-4]"),
        one(shape="[4.0]"),
        one(shape="[true,4]"),
        one(shape='["4"]'),
        one(shape="[4,NaN]"),
        one(shape="[" + "1," * 1_024 + "4]"),
        one(shape="[9223372036854775808,0]", offsets="[0,0]"),
        one(shape="[4611686018427387904,4611686018427387904,0]", offsets="[0,0]"),
        one(shape="[" + "9" * 5_000 + "]"),
        one(offsets="[0,4,4]"),
        one(offsets="[4,0]"),
        one(offsets="[-4,0]"),
        one(offsets="[0,1000000000000]", shape="[1000000000000]"),
        one(dtype="F4", shape="[8,1]", offsets="[0,4]"),
        one(dtype="F4", shape="[]", offsets="[0,1]"),
    ],
)
def test_damaged_payloads_are_refused_in_words(damaged: bytes) -> None:
    with pytest.raises(TensorPayloadInvalid, match="given:"):
        decode_tensors(damaged)


def test_payload_cut_at_any_byte_is_refused() -> None:
    whole = encode_tensors({"a": torch.arange(5), "b": torch.ones(3, dtype=torch.bfloat16)})
    for size in range(len(whole)):
        with pytest.raises(TensorPayloadInvalid):
            decode_tensors(whole[:size])


def test_random_damage_gives_tensors_of_the_same_size_or_an_error_of_ours() -> None:
    rng = random.Random(7)
    whole = encode_tensors({"a": torch.arange(5), "b": torch.ones(2, 3, dtype=torch.bfloat16)})
    refused = 0
    for _ in range(2_000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            tensors = decode_tensors(damaged)
        except TensorPayloadInvalid:
            refused += 1
        else:
            assert sum(tensor.nbytes for tensor in tensors.values()) == 52
    assert refused > 500


class Store:
    """The calls of a client that tensors need, in this process."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> int:
        self.values[key] = value
        return int(ttl_s)

    def get(self, key: bytes) -> Hit | Miss:
        return Hit(self.values[key], 1, "memory") if key in self.values else MISS


class AsyncStore(Store):
    """The same, awaited."""

    async def put(self, key: bytes, value: bytes, *, ttl_s: float) -> int:  # type: ignore[override]
        return super().put(key, value, ttl_s=ttl_s)

    async def get(self, key: bytes) -> Hit | Miss:  # type: ignore[override]
        return super().get(key)


def test_tensors_put_under_a_key_are_got_from_it() -> None:
    store: Any = Store()
    assert put_tensors(store, b"k", {"t": torch.ones(2)}, ttl_s=9) == 9
    back = get_tensors(store, b"k")
    assert back
    assert back["t"].tolist() == [1, 1]
    assert get_tensors(store, b"absent") is MISS


async def test_tensor_changed_while_an_async_put_is_on_its_way_is_stored_as_it_was() -> None:
    store: Any = AsyncStore()
    tensor = torch.ones(3)
    pending = put_tensors_async(store, b"k", {"t": tensor}, ttl_s=9)
    tensor.zero_()
    assert await pending == 9
    back = await get_tensors_async(store, b"k")
    assert back
    assert back["t"].tolist() == [1, 1, 1]
    assert await get_tensors_async(store, b"absent") is MISS
