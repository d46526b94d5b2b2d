"""Device code inside libraries, and what a kernel in it costs, without any CUDA tool.

`device_blobs` reads the modules TVM serialises into its shared libraries; `resources` reads a
cubin, which is an ELF file with NVIDIA's attribute sections.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError

ELF_MAGIC = b"\x7fELF"
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
EM_CUDA = 190  # e_machine of a cubin
_MODULE = struct.pack("<Q", 4) + b"cuda"  # the kind of a serialised CUDA module

# EIATTR_* codes of .nv.info sections
_MAX_THREADS, _FRAME_SIZE, _MIN_STACK, _REGCOUNT = 0x05, 0x11, 0x12, 0x2F
_RESERVED = ".nv.shared.reserved.0"  # from sm_90 on, every kernel's section counts
_RESERVED_BYTES = 1024  # what the system keeps of each block's shared memory
_SIZED = 4  # attribute format: a payload of the given size follows


@dataclass(frozen=True)
class KernelResources:
    """What one kernel occupies; bytes unless said otherwise."""

    name: str
    registers: int  # per thread
    static_shared_bytes: int  # per block; a launch may ask for more, `shared_bytes` of a config
    local_bytes: int  # frame: per-thread arrays and spills
    stack_bytes: int  # frame plus calls
    max_threads: int | None  # per block, from __launch_bounds__
    spill_stores: int | None = None  # None without a ptxas log
    spill_loads: int | None = None


@dataclass(frozen=True)
class _Section:
    name: str
    size: int
    info: int
    data: bytes


def device_blobs(library: str | Path | bytes) -> list[tuple[str, bytes]]:
    """The device code in a TVM library: pairs of kind and bytes.

    The kind tells what the bytes are, whatever the library calls them: "cubin", "fatbin", "ptx",
    "cuda" (source text: no machine code at all) or "unknown".
    """
    data = library if isinstance(library, bytes) else Path(library).read_bytes()
    blobs = []
    start = data.find(_MODULE)
    while start >= 0:
        code = _module_code(data, start + len(_MODULE))
        if code is not None:
            blobs.append((kind_of(code), code))
        start = data.find(_MODULE, start + 1)
    return blobs


def kind_of(code: bytes) -> str:
    """Kind of a device blob: "cubin", "fatbin", "ptx", "cuda" or "unknown"."""
    if code.startswith(ELF_MAGIC):
        return "cubin" if _machine(code) == EM_CUDA else "unknown"
    if code.startswith(FATBIN_MAGIC):
        return "fatbin"
    head = code.lstrip()
    if head.startswith((b"//", b".version")) and re.search(rb"^\.version \d", code, re.M):
        return "ptx"
    return "cuda" if b"__global__" in code or b"#include" in code else "unknown"


def resources(cubin: bytes, log: str = "") -> list[KernelResources]:
    """What each kernel of a cubin occupies, in the order of the file.

    Args:
        cubin: the file's bytes.
        log: of `ptxas -v`; the only place that knows how much of the local memory is spills.

    Raises:
        BuildError: not a cubin.
    """
    if not cubin.startswith(ELF_MAGIC) or _machine(cubin) != EM_CUDA:
        raise BuildError(f"not a cubin but {kind_of(cubin)}: only machine code can be inspected")
    sections = {s.name: s for s in _sections(cubin)}
    attributes, spills = _function_attributes(sections), _spills(log)
    names = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    return [
        _kernel(name, sections, attributes.get(name, {}), spills.get(name))
        for name in names
        if f".nv.info.{name}" in sections
    ]


def _kernel(
    name: str,
    sections: Mapping[str, _Section],
    attributes: Mapping[int, int],
    spills: tuple[int, int] | None,
) -> KernelResources:
    shared = sections.get(f".nv.shared.{name}")
    reserved = _RESERVED_BYTES if _RESERVED in sections else 0
    threads = dict(_attributes(sections[f".nv.info.{name}"].data)).get(_MAX_THREADS)
    return KernelResources(
        name=name,
        # before ELF ABI 8 (CUDA 13) the count is in the section header only
        registers=attributes.get(_REGCOUNT, sections[f".text.{name}"].info >> 24),
        static_shared_bytes=max(0, shared.size - reserved) if shared else 0,
        local_bytes=attributes.get(_FRAME_SIZE, 0),
        stack_bytes=attributes.get(_MIN_STACK, 0),
        max_threads=_product(threads) if threads else None,
        spill_stores=spills[0] if spills else None,
        spill_loads=spills[1] if spills else None,
    )


def _machine(elf: bytes) -> int:
    return int(struct.unpack_from("<H", elf, 18)[0]) if len(elf) >= 64 else 0


class _Reader:
    """Reads TVM's serialisation: 64-bit lengths before strings and arrays."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def size(self) -> int:
        (value,) = struct.unpack("<Q", self.raw(8))
        return int(value)

    def raw(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise EOFError
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> bytes:
        return self.raw(self.size())


def _module_code(data: bytes, start: int) -> bytes | None:
    """The code of the CUDA module whose bytes begin at `start`; None if it is no module.

    Layout: size, {format, functions {key, name, types, launch tags, argument tags}, code}.
    """
    try:
        module = _Reader(_Reader(data[start:]).text())
        module.text()
        for _ in range(module.size()):
            module.text()
            module.text()
            module.raw(4 * module.size())  # DLDataType
            for _ in range(module.size()):
                module.text()
            module.raw(4 * module.size())  # ArgExtraTags
        code = module.text()
    except EOFError:
        return None
    return code if module.at == len(module.data) and code else None


def _sections(elf: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry, count, names_index = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry) for i in range(count)]
    names = headers[names_index]
    for name, kind, _, _, offset, size, _, info, _, _ in headers:
        data = b"" if kind == 8 else elf[offset : offset + size]  # SHT_NOBITS has no bytes
        yield _Section(_string(elf, names[4] + name), size, info, data)


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, code, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield code, info[at : at + size]
            at += size


def _function_attributes(sections: dict[str, _Section]) -> dict[str, dict[int, int]]:
    """Attributes of `.nv.info`, which name their function by its number in the symbol table."""
    symbols, strings = sections[".symtab"].data, sections[".strtab"].data
    found: dict[str, dict[int, int]] = {}
    for code, value in _attributes(sections[".nv.info"].data if ".nv.info" in sections else b""):
        if code in (_REGCOUNT, _FRAME_SIZE, _MIN_STACK) and len(value) == 8:
            index, amount = struct.unpack("<II", value)
            (name,) = struct.unpack_from("<I", symbols, 24 * index)
            found.setdefault(_string(strings, name), {})[code] = amount
    return found


def _product(dims: bytes) -> int:
    x, y, z = struct.unpack_from("<III", dims)
    return int(x * y * z)


def _spills(log: str) -> dict[str, tuple[int, int]]:
    pattern = (
        r"Function properties for (\S+)\s[^\n]*?\d+ bytes stack frame, "
        r"(\d+) bytes spill stores, (\d+) bytes spill loads"
    )
    return {n: (int(s), int(l)) for n, s, l in re.findall(pattern, log)}
