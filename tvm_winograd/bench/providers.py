"""Which providers are measured: those a user names, or the default ones that can work here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tvm_winograd.errors import InputError, UnsupportedError


class Able(Protocol):
    """What both kinds of providers have."""

    name: str

    def available(self) -> str | None:
        """Says what is missing on this machine; None if nothing."""


P = TypeVar("P", bound=Able)
B = TypeVar("B")


def check_names(names: Sequence[str], known: Collection[str]) -> None:
    """Raises:
    InputError: a provider that does not exist, its variant (behind a colon) aside.
    """
    for name in names:
        if name.partition(":")[0] not in known:
            raise InputError(f"provider {name!r}: there are {', '.join(known)}")


def pick(
    makers: Mapping[str, Callable[[B], P]],
    default: Sequence[str],
    names: Sequence[str],
    bench: B,
    progress: Callable[[str], None],
) -> list[P]:
    """Makes the providers that are named ("cudnn", or "cudnn:FFT" for a variant), or of the default
    ones those that can work here.

    Raises:
        UnsupportedError: one that was named cannot work here.
    """
    wanted: dict[str, list[str]] = {}
    for text in names or default:
        name, _, variant = text.partition(":")
        wanted.setdefault(name, []).extend([variant] if variant else [])
    found: list[P] = []
    for name, variants in wanted.items():
        provider: Any = makers[name](bench)
        if (missing := provider.available()) is None:
            if variants:
                provider = Picked(provider, variants)
            found.append(provider)
        elif names:
            raise UnsupportedError(f"provider {name}: {missing}")
        else:
            progress(f"without {name}: {missing}")
    return found


class Picked:
    """A provider of convolutions with some of its variants."""

    def __init__(self, provider: Any, names: Collection[str]) -> None:
        self.name, self.ours, self.available = provider.name, provider.ours, provider.available
        self._provider, self._names = provider, names

    def variants(self, *subject: Any) -> Iterator[Any]:
        """Raises:
        InputError: one that was named does not exist.
        """
        seen = []
        for variant in self._provider.variants(*subject):
            seen.append(variant.name)
            if variant.name in self._names:
                yield variant
        for name in self._names:
            if name not in seen:
                raise InputError(
                    f"{self.name} has no variant {name!r}: there are {', '.join(seen)}"
                )
