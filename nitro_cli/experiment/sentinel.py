"""What traced code finds in place of a Host field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nitro_cli.errors import HostFieldError

__all__ = ["StrippedHost"]


class StrippedHost:
    """Stands for a Host field in the view that traced code receives.

    Storing it, passing it on, `repr` and `hash` are silent; every use of its value raises.

    Args:
        name: the field.
        owner: the experiment class, for the error.
        knob: whether the field is a run knob.

    Raises:
        HostFieldError: on attribute access, conversion, indexing, iteration, `len`, arithmetic, comparison,
            formatting and calls; it names the field and the three fixes.
    """

    __slots__ = ("_knob", "_name", "_owner")

    def __init__(self, name: str, owner: str = "", knob: bool = False) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_knob", knob)

    def __repr__(self) -> str:
        return f"StrippedHost({object.__getattribute__(self, '_name')!r})"

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        # Python and libraries probe for dunder names to ask what an object is; that is not a use of the value.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        _refuse(self, f"attribute access (.{name})")

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse(self, f"attribute assignment (.{name})")

    def __copy__(self) -> StrippedHost:
        return self

    def __deepcopy__(self, memo: Any) -> StrippedHost:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        get = object.__getattribute__
        return (StrippedHost, (get(self, "_name"), get(self, "_owner"), get(self, "_knob")))


def _refuse(sentinel: StrippedHost, use: str) -> NoReturn:
    get = object.__getattribute__
    name, owner, knob = get(sentinel, "_name"), get(sentinel, "_owner"), get(sentinel, "_knob")
    mark = f"a field of your own instead of the run knob {name}" if knob else name
    own = f"my_{name}" if knob else name
    raise HostFieldError(
        f"traced code used the Host field {name!r}",
        where=f"{owner}.{name}: {use}" if owner else f"{name}: {use}",
        why="a Host field is no input of the program: its value would be baked in without being part of the "
        "program's identity",
        fix=f"mark {mark} `{own}: GraphConst[...]` to bake it (another value is another program), or "
        f"`{own}: Device[...]` to make it a traced input (a new value never recompiles), or read it on the host "
        "(build_data, build_model, host metrics) and pass on what follows from it",
    )


def _raising(use: str) -> Callable[..., Any]:
    def method(self: StrippedHost, *args: Any, **kwargs: Any) -> Any:
        _refuse(self, use)

    return method


_USES = {
    "conversion": "bool int float complex index round trunc floor ceil array jax_array array_ufunc array_function "
    "bytes fspath str format dlpack array_interface",
    "indexing": "getitem setitem delitem",
    "iteration": "iter next reversed contains enter exit await",
    "len": "len length_hint",
    "arithmetic": "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv ifloordiv "
    "mod rmod imod divmod rdivmod pow rpow ipow matmul rmatmul imatmul neg pos abs invert and rand iand or ror ior "
    "xor rxor ixor lshift rlshift ilshift rshift rrshift irshift",
    "comparison": "eq ne lt le gt ge",
    "a call": "call",
}
# JAX refuses an argument that has the method before calling it; as a property it is asked for, and answers.
_PROPERTIES = frozenset({"array_interface", "jax_array"})

for _use, _names in _USES.items():
    for _short in _names.split():
        _label = f"{_use} (__{_short}__)" if _use in ("conversion", "arithmetic", "comparison") else _use
        _method: Any = _raising(_label)
        setattr(StrippedHost, f"__{_short}__", property(_method) if _short in _PROPERTIES else _method)
